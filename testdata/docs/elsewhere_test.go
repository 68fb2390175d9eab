package docs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// elsewhere is a file that runs commands of the documentation, or a reason why no test does.
type elsewhere struct{ file, reason string }

// runElsewhere are sections whose commands are not run here; * stands for all sections of a page. A
// file without a reason has to name the page.
var runElsewhere = map[string]elsewhere{
	"README.md#Try it":                    {".ci/run", "CI runs the demo and the tests as steps of their own"},
	"docs/compatibility.md#NATS":          {"testdata/compat/storage_test.go", ""},
	"docs/runbook.md#*":                   {"bridge/e2e/runbook_test.go", ""},
	"docs/troubleshooting.md#*":           {"testdata/docs/troubleshooting_test.go", ""},
	"docs/logs.md#Read an app's logs":     {"logsvc/e2e/readme_test.go", ""},
	"docs/apps.md#Operate apps":           {"bridge/appsvc/e2e/readme_test.go", ""},
	"docs/install.md#With Docker Compose": {"testdata/compose/compose_test.go", "needs a Docker engine: `make compose-test`"},
	"docs/install.md#With the chart":      {"testdata/chart/install_test.go", ""},
	"docs/install.md#Values that matter":  {"testdata/chart/install_test.go", ""},
	"docs/install.md#Uninstall":           {"testdata/chart/install_test.go", ""},
	"docs/benchmarks.md#*":                {"testdata/bench/bench_test.go", "half an hour of an idle machine; the tests of bin/bench run it on a few apps"},
}

// commandsElsewhere are commands that are not run here, by what their lines begin with.
var commandsElsewhere = map[string]elsewhere{
	"nats --user ":      {"testdata/accounts/table_test.go", "needs the server of deploy/nats, whose users that package tries"},
	"appbridge logs --": {"testdata/accounts/table_test.go", "needs the server of deploy/nats, whose users that package tries"},
	"appbridge watch shop/production/storefront --until": {"cmd/appbridge/watch/until_test.go", "needs an app that becomes ACTIVE, or goes, meanwhile"},
	"helm ":                                 {"testdata/chart/install_test.go", "needs a cluster that runs pods"},
	"kubectl apply --server-side":           {"testdata/chart/install_test.go", "needs a file of a release"},
	"kubectl --namespace appbridge rollout": {"bridge/e2e/rollout_test.go", "needs a cluster that runs pods"},
}

// exceptions counts the entries that are used.
type exceptions map[string]bool

func (x exceptions) section(t *testing.T, page, title string) bool {
	t.Helper()
	for _, key := range []string{page + "#" + title, page + "#*"} {
		if other, ok := runElsewhere[key]; ok {
			x.use(t, key, filepath.Base(page), other)
			return true
		}
	}
	return false
}

func (x exceptions) command(t *testing.T, line string) bool {
	t.Helper()
	for begins, other := range commandsElsewhere {
		if strings.HasPrefix(line, begins) {
			x.use(t, begins, begins, other)
			return true
		}
	}
	return false
}

func (x exceptions) use(t *testing.T, key, name string, other elsewhere) {
	t.Helper()
	if x[key] {
		return
	}
	x[key] = true
	if text, err := os.ReadFile(filepath.Join(root, other.file)); err != nil {
		t.Error(err)
	} else if other.reason == "" && !strings.Contains(string(text), name) {
		t.Errorf("%s does not name %s", other.file, name)
	}
}

// unused names the entries for which no page has a command.
func (x exceptions) unused(t *testing.T) {
	t.Helper()
	for key := range runElsewhere {
		if !x[key] {
			t.Errorf("%s has no commands", key)
		}
	}
	for begins := range commandsElsewhere {
		if !x[begins] {
			t.Errorf("no command begins with %s", begins)
		}
	}
}
