package e2e_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// Every command line that docs/apps.md shows first, run in its
// order and as it stands there.
func TestReadme(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	app := testenv.App{Project: "shop", Domain: "production", Name: "storefront"}
	svc, err := w.Create(t.Context(), app)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		opts := testenv.PodOptions{Name: fmt.Sprintf("storefront-shop-production-%d", i+1), Service: svc.Name}
		if _, err := w.Kubelet.RunPod(t.Context(), opts); err != nil {
			t.Fatal(err)
		}
	}
	nc := w.connect(t)
	eventually(t, "the app and its replicas are shown", func() error {
		a, err := asks(t.Context(), nc, subjectOf(t, subjects.APIGet, app.ID()), "")
		if err != nil || a.refused() != "" {
			return fmt.Errorf("%s, %w", a.refused(), err)
		}
		if a, err = asks(t.Context(), nc, subjectOf(t, subjects.APIReplicas, app.ID()), ""); err != nil {
			return err
		}
		var list appv1.ReplicaList
		if a.message(t, &list); len(list.GetItems()) != 2 {
			return fmt.Errorf("%d replicas", len(list.GetItems()))
		}
		return nil
	})

	// What a line prints, and what the CLI says of the headers; "!" before what
	// must not be there.
	checks := map[string][]string{
		`.api.list.shop '{"request": {"limit"`:   {`"name":"storefront"`, "!" + subjects.HeaderEventSequence},
		`.api.list.shop '{"request": {"filters"`: {"{", `!"name":"storefront"`},
		".api.get.shop.production.storefront ":   {`{"app":{`, `"name":"storefront"`},
		".api.replicas.":                         {`"name":"storefront-shop-production-1"`, `"name":"storefront-shop-production-2"`},
		".api.ingress.":                          {`{"publicUrl":"https://storefront-shop-production.apps.example.com"}`},
		".api.deploy.shop.production.hello ":     {`"image":"registry.example.com/hello:1"`, subjects.HeaderOutcome + ": created\n", subjects.HeaderResourceVersion + ": "},
		".api.stop.shop.production.hello ":       {"DEPLOYMENT_STATUS_STOPPED", subjects.HeaderOutcome + ": stopped\n", subjects.HeaderResourceVersion + ": "},
		".api.delete-replica.":                   {subjects.HeaderOutcome + ": deleted\n"},
		".api.delete.shop.production.hello ''":   {subjects.HeaderOutcome + ": deleted\n", subjects.HeaderUID + ": "},
	}
	for _, line := range suite.Lines(t, filepath.Join("..", "..", "..", "docs", "apps.md"), "## Operate apps", checks) {
		c := w.Start(t, "export NATS_TIMEOUT=5m; "+line.Text) // the machine may be busy
		got := c.Wait() + c.Stderr()
		for _, want := range append(checks[line.Key], "!"+subjects.HeaderServiceError) {
			without, forbidden := strings.CutPrefix(want, "!")
			if strings.Contains(got, without) == forbidden {
				t.Errorf("%s\nwant %q, got\n%s", line.Text, want, got)
			}
		}
	}
}
