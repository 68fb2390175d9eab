package bridge

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
)

// describe lists what a registry holds as rows of the table in docs/metrics.md.
func describe(t *testing.T, reg *prometheus.Registry) []string {
	t.Helper()
	form := regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "([^"]+)", .*variableLabels: \{([^}]*)\}`)
	descs := make(chan *prometheus.Desc)
	go func() {
		reg.Describe(descs)
		close(descs)
	}()
	var rows []string
	for d := range descs {
		m := form.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("cannot read %s", d)
		}
		labels := ""
		if m[3] != "" {
			labels = " (label `" + m[3] + "`)"
		}
		rows = append(rows, fmt.Sprintf("| `%s`%s | %s |", m[1], labels, m[2]))
	}
	slices.Sort(rows)
	return rows
}

// docs/metrics.md lists every metric, as the program describes it.
func TestMetricsAreDocumented(t *testing.T) {
	reg := prometheus.NewRegistry()
	newMetrics(reg).watch(reg, &Bridge{nc: &nats.Conn{}})
	rows := describe(t, reg)

	file := filepath.Join("..", "docs", "metrics.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), "| --- | --- |\n")
	if !ok {
		t.Fatalf("%s has no table", file)
	}
	table, tail, _ := strings.Cut(rest, "\n\n")
	want := strings.Join(rows, "\n")
	if *update {
		if err := os.WriteFile(file, []byte(head+"| --- | --- |\n"+want+"\n\n"+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != want {
		t.Errorf("%s lists\n%s\nwant (go test ./bridge -run MetricsAreDocumented -update)\n%s", file, table, want)
	}
}
