package suite

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// MetricsTable checks that the table of a page that begins after head lists the
// metrics of a registry as they describe themselves, or writes it with update.
func MetricsTable(t *testing.T, file, head string, reg *prometheus.Registry, update bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), head)
	if !ok {
		t.Fatalf("%s has no table after %q", file, head)
	}
	table, after, _ := strings.Cut(rest, "\n\n")
	want := strings.Join(rows(t, reg), "\n")
	if update {
		if err := os.WriteFile(file, []byte(before+head+want+"\n\n"+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != want {
		t.Errorf("%s lists\n%s\nwant (go test . -run MetricsAreDocumented -update)\n%s", file, table, want)
	}
}

// rows lists what a registry holds as rows of a table.
func rows(t *testing.T, reg *prometheus.Registry) []string {
	t.Helper()
	form := regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "([^"]+)", .*variableLabels: \{([^}]*)\}`)
	descs := make(chan *prometheus.Desc)
	go func() {
		reg.Describe(descs)
		close(descs)
	}()
	var all []string
	for d := range descs {
		m := form.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("cannot read %s", d)
		}
		labels := ""
		if m[3] != "" {
			labels = " (label `" + strings.ReplaceAll(m[3], ",", "`, `") + "`)"
		}
		all = append(all, fmt.Sprintf("| `%s`%s | %s |", m[1], labels, m[2]))
	}
	slices.Sort(all)
	return all
}
