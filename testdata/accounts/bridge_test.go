package accounts_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// Everything that appbridge does works with the rights of its user, and uses each of them.
func TestBridgeRights(t *testing.T) {
	var allowed []string
	s := serve(t, "nats.conf", func(opts *server.Options) {
		for _, user := range opts.Users {
			if user.Username == "bridge" {
				allowed = slices.Clone(user.Permissions.Publish.Allow)
			}
		}
		withRoot(opts)
	})
	s.world = cluster.Get(t).Beside()
	s.world.NATS = s.url("bridge")
	t.Cleanup(func() {
		if err := s.world.Stop(); err != nil {
			t.Error(err)
		}
	})
	heard, root := s.tap(), s.client("root")
	options := []string{
		"--enable-writes", "--base-domain", "apps.example.com", "--marker-max-age", "1s", "--audit-interval", "10s",
		"--stream-max-age", "720h", // with a limit the bridge lists the durable consumers
	}
	var err error
	if s.bridge, err = s.world.Serve(t.Context(), nil, options...); err != nil {
		t.Fatal(err)
	}
	s.answers()
	if _, err := root.request("flyte.apps.logs.open.shop.production.storefront", ""); err != nil {
		t.Error(err)
	}
	if _, err := s.client("shop").request("flyte.apps.api.list.shop", ""); err != nil {
		t.Error(err)
	}
	// Delete markers are removed when they are old and not the newest.
	for _, name := range []string{"gone-a", "gone-b"} {
		app := testenv.App{Project: "shop", Domain: "production", Name: name}
		svc, err := s.world.Create(t.Context(), app)
		if err != nil {
			t.Fatal(err)
		}
		s.entry(name, "")
		if err := s.world.Client.Delete(t.Context(), svc); err != nil {
			t.Fatal(err)
		}
		s.entry(name, "KV-Operation")
	}
	s.uses(heard, "$JS.API.STREAM.PURGE.KV_flyte-apps")
	bridges := []*kubesuite.Instance{s.bridge}
	for _, change := range []func(*client){s.unmark, s.lose} {
		if err := s.bridge.Stop(suite.Patience); err != nil {
			t.Fatal(err)
		}
		change(root)
		if s.bridge, err = s.world.Serve(t.Context(), nil, options...); err != nil {
			t.Fatal(err)
		}
		bridges = append(bridges, s.bridge)
	}
	for _, subject := range allowed {
		s.uses(heard, subject)
	}
	cmd := s.prepare("appbridge verify --repair --cluster-name test --base-domain apps.example.com --kubeconfig " +
		s.world.KubeconfigPath + " --nats-url '" + s.world.NATS + "'")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("verify: %v\n%s", err, out)
	}
	for _, bridge := range bridges {
		log, err := os.ReadFile(bridge.LogPath())
		if err != nil {
			t.Fatal(err)
		}
		if refused := regexp.MustCompile(`(?i).*permissions violation.*`).FindAllString(string(log), -1); len(refused) > 0 {
			t.Errorf("the server refused %s", strings.Join(refused, "\n"))
		}
	}
}

// unmark takes the stream's id off stream and bucket: the bridge marks them again.
func (s *site) unmark(root *client) {
	s.t.Helper()
	for _, name := range []string{"FLYTE_APPS", "KV_flyte-apps"} {
		js, cfg := s.config(root, name)
		delete(cfg.Metadata, subjects.MetadataStreamID)
		if _, err := js.UpdateStream(s.t.Context(), cfg); err != nil {
			s.t.Fatal(err)
		}
	}
}

// lose replaces the stream by an empty one: the bridge carries it past what was acknowledged.
func (s *site) lose(root *client) {
	s.t.Helper()
	js, cfg := s.config(root, "FLYTE_APPS")
	if err := js.DeleteStream(s.t.Context(), cfg.Name); err != nil {
		s.t.Fatal(err)
	}
	suite.Recreate(s.t, js, cfg)
}

func (s *site) config(root *client, name string) (jetstream.JetStream, jetstream.StreamConfig) {
	s.t.Helper()
	js, err := jetstream.New(root.nc)
	if err != nil {
		s.t.Fatal(err)
	}
	stream, err := js.Stream(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	return js, stream.CachedInfo().Config
}

// uses waits until something was published to a subject of a pattern.
func (s *site) uses(heard *tap, pattern string) {
	s.t.Helper()
	expression := regexp.QuoteMeta(pattern)
	expression = strings.ReplaceAll(expression, `\*`, `[^.]+`)
	expression = "^" + strings.TrimSuffix(expression, ">") + map[bool]string{true: ".+", false: ""}[strings.HasSuffix(pattern, ">")] + "$"
	suite.Eventually(s.t, suite.Patience, "the bridge uses "+pattern, func() error {
		if len(heard.matching(expression)) == 0 {
			return fmt.Errorf("nothing was published to it")
		}
		return nil
	})
	s.t.Logf("used: %s", pattern)
}

// entry waits until the bucket's message of an app of shop has a header, or any of it is there.
func (s *site) entry(name, header string) {
	s.t.Helper()
	c := s.client("root")
	defer c.nc.Close()
	suite.Eventually(s.t, suite.Patience, "the bucket follows "+name, func() error {
		msg, err := c.request("$JS.API.DIRECT.GET.KV_flyte-apps.$KV.flyte-apps.shop.production."+name, "")
		if err == nil && header != "" && msg.Header.Get(header) == "" {
			err = fmt.Errorf("its header is %v", msg.Header)
		}
		return err
	})
}
