package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// printed is what a command prints, by a part of its line. Others print anything.
var printed = map[string]string{
	"nats stream ls":           "FLYTE_APPS",
	"nats sub ":                "Flyte-Resource-Version: ",
	"nats kv ls":               "shop.production.storefront",
	"nats kv get":              `"name":"storefront"`,
	"nats kv watch":            "shop.production.storefront",
	"CONSUMER.MSG.NEXT.KV_":    "Flyte-Event-Sequence: ",
	"CONSUMER.MSG.NEXT.FLYTE_": "Flyte-Resource-Version: ",
	"CONSUMER.CREATE.":         `"num_pending"`,
	"STREAM.MSG.GET.":          `"subject":"$KV.flyte-apps.`, // of any app: other tests make some, too
	"STREAM.INFO.":             "appbridge-stream-id",
	"nats consumer next":       "Flyte-Resource-Version: ",
	"nats micro info flyte-ap": "flyte-apps",
	"appbridge watch shop/pro": "storefront",
	"/readyz":                  "ok",
	"/metrics":                 "appbridge_ready 1",
	"appbridge verify":         "no difference in ",
}

// follows are the commands that end with Ctrl-C alone, and ends the watches that do not.
var (
	follows = regexp.MustCompile(`^nats (sub|kv watch) |--replies=0.*24h|^nats micro .*--watch|^appbridge watch\b`)
	ends    = regexp.MustCompile(`^appbridge watch .*(--once|--at)`)
)

// TestCommands runs every command of the blocks of README.md and docs/ that are shell, as it stands
// there, or knows the test that does. A reader's defaults are replaced: addresses by those of this
// test, and the files of the home folder are there.
func TestCommands(t *testing.T) {
	t.Parallel()
	kubesuite.Needed(t)
	except := exceptions{}
	for _, p := range pages(t) {
		var r *reader
		for _, s := range p.sections {
			for _, b := range s.blocks {
				if b.language != "sh" || except.section(t, p.path, s.title) {
					continue
				}
				lines := slices.DeleteFunc(b.lines(), func(line string) bool { return except.command(t, line) })
				if len(lines) == 0 {
					continue
				}
				if r == nil {
					r = newReader(t)
				}
				t.Run(fmt.Sprintf("%s:%d", p.path, b.line), func(t *testing.T) {
					for _, line := range lines {
						r.runs(t, line)
					}
				})
			}
		}
	}
	except.unused(t)
}

// reader is someone who follows a page with a bridge and a NATS server of their own, and the app
// that the pages name.
type reader struct {
	*site
	bridge *command
	http   string
	change func(t *testing.T)
}

// changes counts those of the app, by every reader.
var changes int

// storefront is the app that the pages name, made by the first page that needs it.
func storefront(t *testing.T, c *testenv.Cluster) *servingv1.Service {
	t.Helper()
	app := testenv.App{Project: "shop", Domain: "production", Name: "storefront"}
	svc := app.Service()
	err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(svc), svc)
	if apierrors.IsNotFound(err) {
		svc, err = c.Create(t.Context(), app)
	}
	if err != nil {
		t.Fatal(err)
	}
	return svc
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
	svc := storefront(t, r.world)
	r.change = func(t *testing.T) {
		t.Helper()
		changes++
		patch := map[string]any{"metadata": map[string]any{"annotations": map[string]any{"change": fmt.Sprint(changes)}}}
		if _, err := r.world.Patch(t.Context(), svc, patch); err != nil {
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
	s := &shell{dir: root, env: append(append([]string{}, r.env...), "APPBRIDGE_HTTP_LISTEN=127.0.0.1:0", "APPBRIDGE_BASE_DOMAIN=apps.example.com",
		"APPBRIDGE_NATS_URL="+r.options["nats-url"], "APPBRIDGE_CLUSTER_NAME=production", "GOFLAGS="+os.Getenv("GOFLAGS"))}
	for _, name := range []string{"GOPATH", "GOMODCACHE", "GOCACHE", "GOPROXY"} {
		if value := goEnv(t, name); value != "" {
			s.env = append(s.env, name+"="+value)
		}
	}
	asShown := line
	for shown, here := range map[string]string{
		"127.0.0.1:8080": r.http, "nats://127.0.0.1:4222": r.options["nats-url"], "nats://nats.example.com:4222": r.options["nats-url"],
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
	case follows.MatchString(asShown) && !ends.MatchString(asShown):
		suite.Eventually(t, suite.Patience, asShown+" prints "+want, func() error {
			r.change(t)
			if !strings.Contains(c.output(), want) {
				return fmt.Errorf("it prints\n%s", c.output())
			}
			return nil
		})
		c.insist()
	default:
		if code := c.wait(); code != 0 || !strings.Contains(c.output(), want) || c.output() == "" {
			t.Errorf("%s: exit code %d, want 0 and %q in\n%s", asShown, code, want, c.output())
		}
	}
}
