package alerts_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// The rules are what Prometheus accepts, and do what rules.test.yaml says of restarts, of counters
// that are born above 0, of rollouts and of the texts.
func TestRules(t *testing.T) {
	t.Parallel()
	suite.Slow(t, "needs promtool")
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", rulesFile)
	promtool(t, "test", "rules", "rules.test.yaml")
}

// Rules and dashboard use metrics that the program has.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := metricsOf(string(text))
	for name := range usedMetrics(t) {
		if base := strings.TrimSuffix(name, "_bucket"); strings.HasPrefix(name, "appbridge_") && !known[base] && name != "appbridge_build_info" {
			t.Errorf("docs/metrics.md does not have %s", name)
		}
	}
}

// The dashboard is what Grafana reads: JSON, with its data source as a variable.
func TestDashboardDatasource(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(dashFile)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		UID    string
		Panels []struct {
			Title, Type string
			Targets     []struct{ Datasource struct{ UID string } }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil || dashboard.UID == "" {
		t.Fatalf("uid %q: %v", dashboard.UID, err)
	}
	for _, p := range dashboard.Panels {
		if (p.Type == "row") != (len(p.Targets) == 0) {
			t.Errorf("panel %s of type %s has %d queries", p.Title, p.Type, len(p.Targets))
		}
		for _, target := range p.Targets {
			if got, want := target.Datasource.UID, "${datasource}"; got != want {
				t.Errorf("panel %s reads from %q, want %q", p.Title, got, want)
			}
		}
	}
}

// usedMetrics are the names of metrics that rules and dashboard use.
func usedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, file := range []string{rulesFile, dashFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for name := range metricsOf(string(text)) {
			all[name] = true
		}
	}
	return all
}
