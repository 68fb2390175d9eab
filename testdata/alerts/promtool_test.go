package alerts_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/appbridge/appbridge/testdata/testenv"
)

var (
	files     = filepath.Join("..", "..", "deploy", "chart", "appbridge", "files") //nolint:gochecknoglobals // constants
	rulesFile = filepath.Join(files, "rules.yaml")                                 //nolint:gochecknoglobals // likewise
	dashFile  = filepath.Join(files, "dashboard.json")                             //nolint:gochecknoglobals // likewise
)

// The format of `promtool test rules`, as far as it is used. JSON is YAML.
type (
	ruleTests struct {
		RuleFiles          []string   `json:"rule_files"`
		EvaluationInterval string     `json:"evaluation_interval"`
		Tests              []ruleTest `json:"tests"`
	}
	ruleTest struct {
		Name        string        `json:"name"`
		Interval    string        `json:"interval"`
		InputSeries []inputSeries `json:"input_series"`
		Exprs       []exprTest    `json:"promql_expr_test"`
	}
	inputSeries struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	exprTest struct {
		Expr     string   `json:"expr"`
		EvalTime string   `json:"eval_time"`
		Samples  []sample `json:"exp_samples"`
	}
	sample struct {
		Labels string  `json:"labels"`
		Value  float64 `json:"value"`
	}
)

// promtool runs Prometheus' own tool, and fails the test when it does.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := testenv.Promtool()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// testRules has promtool run generated tests.
func testRules(t *testing.T, tests []ruleTest) {
	t.Helper()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(ruleTests{
		RuleFiles: []string{rules}, EvaluationInterval: fmt.Sprintf("%ds", scrapeInterval), Tests: tests,
	}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "runs.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", file)
}

// fired is the test that these alerts, and no other, fired in the course of a run.
func fired(tp *tape, alerts ...string) exprTest {
	test := exprTest{Expr: `group by (alertname) (last_over_time(ALERTS{alertstate="firing"}[7d]))`, EvalTime: tp.end(), Samples: []sample{}}
	for _, alert := range alerts {
		test.Samples = append(test.Samples, sample{Labels: fmt.Sprintf("{alertname=%q}", alert), Value: 1})
	}
	return test
}

type alert struct {
	Name        string            `json:"alert"`
	Expr        string            `json:"expr"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func readRules(t *testing.T) []alert {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []alert `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var all []alert
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("there is no rule")
	}
	return all
}

// query is one of a panel of the dashboard.
type query struct{ panel, expr string }

// readDashboard returns the queries of the dashboard, with what Grafana puts in the place of its
// variables.
func readDashboard(t *testing.T) []query {
	t.Helper()
	text, err := os.ReadFile(dashFile)
	if err != nil {
		t.Fatal(err)
	}
	type panel struct {
		Title   string
		Targets []struct{ Expr string }
		Panels  []struct{}
	}
	var dashboard struct{ Panels []panel }
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "1h", "$namespace", ".*", "$job", "(appbridge|other)")
	var all []query
	for _, p := range dashboard.Panels {
		if len(p.Panels) > 0 {
			t.Errorf("row %s holds panels, which are not read", p.Title)
		}
		for _, target := range p.Targets {
			all = append(all, query{p.Title, variables.Replace(target.Expr)})
		}
	}
	if len(all) == 0 {
		t.Fatal("the dashboard has no query")
	}
	return all
}

// shows is the test that a query of the dashboard returns a series with a number.
func (q query) shows(tp *tape) exprTest {
	return exprTest{Expr: fmt.Sprintf("group((%s) >= -Inf)", q.expr), EvalTime: tp.end(), Samples: []sample{{"{}", 1}}}
}

var metricName = regexp.MustCompile(`\b(appbridge|process|go)_[a-z_]+\b`)

// metricsOf are the names of the metrics that a text uses.
func metricsOf(text string) map[string]bool {
	names := map[string]bool{}
	for _, name := range metricName.FindAllString(text, -1) {
		names[name] = true
	}
	return names
}
