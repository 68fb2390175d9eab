package machinery

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/knative"
)

// A program that ends at once is an error with its own words, and nothing of the start runs on.
func TestStartFails(t *testing.T) {
	bin, err := testenv.KnativeDir()
	if err != nil {
		t.Fatal(err)
	}
	broken := t.TempDir()
	for _, name := range []string{"kube-controller-manager", "config"} {
		if err := os.Symlink(filepath.Join(bin, name), filepath.Join(broken, name)); err != nil {
			t.Fatal(err)
		}
	}
	script := "#!/bin/sh\necho no luck today\nexit 3\n"
	if err := os.WriteFile(filepath.Join(broken, "knative"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := testenv.Start(t.Context(), testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	k, err := knative.Start(t.Context(), c, knative.Options{Bin: broken})
	if k != nil || err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no luck today") {
		t.Errorf("it starts, or says: %v", err)
	}
	// The kubelet's node goes with it.
	nodes := &corev1.NodeList{}
	if err := c.Client.List(t.Context(), nodes); err != nil || len(nodes.Items) > 0 {
		t.Errorf("nodes are still there: %v, %v", nodes.Items, err)
	}
	settings := map[string]map[string]string{"config-none": {"a": "b"}}
	if _, err := knative.Start(t.Context(), c, knative.Options{Settings: settings}); err == nil || !strings.Contains(err.Error(), "no config map of that name") {
		t.Errorf("settings of no config map of Knative's: %v", err)
	}
}
