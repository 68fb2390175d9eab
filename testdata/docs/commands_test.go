package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// runElsewhere are the commands that another test runs, by page and section; * stands for all
// sections. A file has to name the page or, with a heading, both.
var runElsewhere = map[string]struct{ file, reason string }{
	"README.md#Try it":                                {".ci/run", "CI runs the demo and the tests as steps of their own"},
	"docs/runbook.md#*":                               {"bridge/e2e/runbook_test.go", ""},
	"docs/troubleshooting.md#*":                       {"testdata/docs/troubleshooting_test.go", ""},
	"docs/logs.md#Read an app's logs":                 {"logsvc/e2e/readme_test.go", ""},
	"docs/apps.md#Operate apps":                       {"bridge/appsvc/e2e/readme_test.go", ""},
	"docs/benchmarks.md#*":                            {"testdata/bench/bench_test.go", "half an hour of an idle machine; the tests of bin/bench run it on a few apps"},
	"docs/install-binary.part.md#With Docker Compose": {"testdata/compose/compose_test.go", "needs a Docker engine: `make compose-test`"},
}

// printed is what a command prints, by a part of its line. Others print anything.
var printed = map[string]string{
	"nats stream ls":           "FLYTE_APPS",
	"nats sub ":                "Flyte-Resource-Version: ",
	"nats kv ls":               "shop.production.storefront",
	"nats kv get":              `"name":"storefront"`,
	"nats kv watch":            "shop.production.storefront",
	"nats micro info flyte-ap": "flyte-apps",
	"/readyz":                  "ok",
	"/metrics":                 "appbridge_ready 1",
	"appbridge verify":         "no difference in ",
}

// follows are the commands that end with Ctrl-C alone.
var follows = regexp.MustCompile(`^nats (sub|kv watch) |--replies=0.*24h|^nats micro .*--watch`)

// TestCommands runs every command of the blocks of README.md and docs/ that are shell, as it stands
// there, or knows the test that does. A reader's defaults are replaced: addresses by those of this
// test, and the files of the home folder are there.
func TestCommands(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	r := newReader(t)
	for _, p := range pages(t) {
		for _, s := range p.sections {
			for _, b := range s.blocks {
				if b.language != "sh" {
					continue
				}
				if elsewhere(t, p.path, s.title, used) {
					continue
				}
				t.Run(fmt.Sprintf("%s:%d", p.path, b.line), func(t *testing.T) {
					for _, line := range b.lines() {
						r.runs(t, line)
					}
				})
			}
		}
	}
	for key := range runElsewhere {
		if !used[key] {
			t.Errorf("%s has no commands", key)
		}
	}
}

// elsewhere reports whether another test runs a section's commands.
func elsewhere(t *testing.T, path, title string, used map[string]bool) bool {
	t.Helper()
	for _, key := range []string{path + "#" + title, path + "#*"} {
		other, ok := runElsewhere[key]
		if !ok || used[key] {
			if ok {
				return true
			}
			continue
		}
		used[key] = true
		text, err := os.ReadFile(filepath.Join(root, other.file))
		if err != nil {
			t.Fatal(err)
		}
		if names := filepath.Base(path); other.reason == "" && !strings.Contains(string(text), names) {
			t.Errorf("%s does not name %s", other.file, names)
		}
		return true
	}
	return false
}

// reader is someone who follows the documentation with a bridge and an app of their own.
type reader struct {
	*site
	bridge *command
	http   string
	change func(t *testing.T)
}

func newReader(t *testing.T) *reader {
	t.Helper()
	r := &reader{site: &site{shell: newShell(t)}}
	r.join(t)
	natsOf(t, r.site, nil)
	r.options["enable-writes"], r.options["base-domain"] = "true", "apps.example.com"
	kubeconfig, err := os.ReadFile(filepath.Join(r.dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(r.dir, ".kube"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.write(t, filepath.Join(".kube", "config"), string(kubeconfig))
	svc, err := r.world.Create(t.Context(), testenv.App{Project: "shop", Domain: "production", Name: "storefront"})
	if err != nil {
		t.Fatal(err)
	}
	changes := 0
	r.change = func(t *testing.T) {
		t.Helper()
		changes++
		patch := map[string]any{"metadata": map[string]any{"annotations": map[string]any{"change": fmt.Sprint(changes)}}}
		if svc, err = r.world.Patch(t.Context(), svc, patch); err != nil {
			t.Fatal(err)
		}
	}
	r.bridge = r.command(t, fault{})
	r.bridge.untilReady()
	r.http = listens.FindStringSubmatch(r.bridge.output())[1]
	return r
}

// runs runs a command line, in the repository. The program that `make build` makes is the one that
// is on the path.
func (r *reader) runs(t *testing.T, line string) {
	t.Helper()
	s := &shell{dir: root, env: append(append([]string{}, r.env...), "APPBRIDGE_HTTP_LISTEN=127.0.0.1:0", "APPBRIDGE_BASE_DOMAIN=apps.example.com", "GOFLAGS="+os.Getenv("GOFLAGS"))}
	for _, name := range []string{"GOPATH", "GOMODCACHE", "GOCACHE", "GOPROXY"} {
		if value := goEnv(t, name); value != "" {
			s.env = append(s.env, name+"="+value)
		}
	}
	asShown := line
	for shown, here := range map[string]string{
		"127.0.0.1:8080": r.http, "nats://127.0.0.1:4222": r.options["nats-url"],
	} {
		line = strings.ReplaceAll(line, shown, here)
	}
	want := ""
	for part, text := range printed {
		if strings.Contains(asShown, part) {
			want = text
		}
	}
	c := s.start(t, freed(t, line))
	switch {
	case strings.Contains(asShown, "appbridge serve "):
		c.untilReady()
		if code := c.interrupt(); code != 0 {
			t.Errorf("%s: exit code %d\n%s", asShown, code, c.output())
		}
	case follows.MatchString(asShown):
		suite.Eventually(t, suite.Patience, asShown+" prints "+want, func() error {
			r.change(t)
			if !strings.Contains(c.output(), want) {
				return fmt.Errorf("it prints\n%s", c.output())
			}
			return nil
		})
		c.interrupt()
	default:
		if code := c.wait(); code != 0 || !strings.Contains(c.output(), want) || c.output() == "" {
			t.Errorf("%s: exit code %d, want 0 and %q in\n%s", asShown, code, want, c.output())
		}
	}
}
