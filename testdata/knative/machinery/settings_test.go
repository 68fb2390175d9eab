package machinery

import (
	"strings"
	"testing"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A stopped app has a Revision without pods that becomes ready, and comes back from there.
func TestZeroScale(t *testing.T) {
	c, _ := start(t)
	svc := newService("stopped", "dev.local/stopped:1")
	create(t, c, svc)
	eventually(t, c, svc, "the Service becomes ready", isReady)
	for _, step := range []struct {
		annotations map[string]string
		pods        int
	}{
		{map[string]string{"autoscaling.knative.dev/min-scale": "0", "autoscaling.knative.dev/initial-scale": "0"}, 0},
		{map[string]string{"autoscaling.knative.dev/min-scale": "2"}, 2},
	} {
		before := svc.Status.LatestReadyRevisionName
		update(t, c, svc, func(svc *servingv1.Service) { svc.Spec.Template.Annotations = step.annotations })
		eventually(t, c, svc, "the next Revision becomes ready", newerThan(before))
		replicas(t, c, svc, step.pods)
	}
}

// A setting works from the time that Set returns, with the webhook as with the reconcilers, and what
// Knative refuses of it is an error.
func TestSettings(t *testing.T) {
	c, k := start(t)
	set := func(name, key, value string) {
		t.Helper()
		if err := k.Set(t.Context(), name, key, value); err != nil {
			t.Fatal(err)
		}
	}
	const feature = "kubernetes.podspec-nodeselector"
	svc := newService("settings", "dev.local/settings:1")
	svc.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "fast"}
	try := func() error { return c.Client.Create(t.Context(), svc.DeepCopy(), client.DryRunAll) }
	for range 5 {
		set("config-features", feature, "disabled")
		if err := try(); err == nil || !strings.Contains(err.Error(), "must not set the field(s): spec.template.spec.nodeSelector") {
			t.Errorf("with the feature disabled: %v", err)
		}
		set("config-features", feature, "enabled")
		if err := try(); err != nil {
			t.Errorf("with the feature enabled: %v", err)
		}
	}
	set("config-defaults", "revision-timeout-seconds", "17")
	completed := svc.DeepCopy()
	if err := c.Client.Create(t.Context(), completed, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if got := completed.Spec.Template.Spec.TimeoutSeconds; got == nil || *got != 17 {
		t.Errorf("the webhook fills in a timeout of %v, want 17", got)
	}
	set("config-defaults", "revision-timeout-seconds", "")
	err := k.Set(t.Context(), "config-defaults", "revision-timeout-seconds", "soon")
	if err == nil || !strings.Contains(err.Error(), "denied the request") {
		t.Errorf("a timeout that is no number: %v", err)
	}
	if err := k.Set(t.Context(), "config-nothing", "a", "b"); err == nil {
		t.Error("a config map that is not there can be set")
	}
}

// While Knative is down nothing of it can be written; when it is back, it goes on.
func TestRestart(t *testing.T) {
	c, k := start(t)
	svc := newService("restart", "dev.local/restart:1")
	create(t, c, svc)
	if err := k.Program().Kill(); err != nil {
		t.Fatal(err)
	}
	err := c.Client.Create(t.Context(), newService("meanwhile", "dev.local/meanwhile:1"))
	if err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
		t.Errorf("a Service while Knative is down: %v", err)
	}
	if err := k.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, c, svc, "the Service becomes ready", isReady)
	if !strings.Contains(k.Logs(), "knative.log") {
		t.Errorf("the logs are %q", k.Logs())
	}
	other := newService("after", "dev.local/after:1")
	create(t, c, other)
	eventually(t, c, other, "a new Service becomes ready", isReady)
}

// The load of a Revision scales it, within its limits, down to no pod when there is none.
func TestLoad(t *testing.T) {
	c, k := start(t)
	svc := newService("load", "dev.local/load:1")
	svc.Spec.Template.Annotations = map[string]string{"autoscaling.knative.dev/max-scale": "4"}
	create(t, c, svc)
	eventually(t, c, svc, "the Service becomes ready", isReady)
	for _, step := range []struct{ load, pods int }{{3, 3}, {9, 4}, {0, 0}, {2, 2}} {
		if err := k.Load(t.Context(), svc.Namespace, svc.Status.LatestReadyRevisionName, step.load); err != nil {
			t.Fatal(err)
		}
		replicas(t, c, svc, step.pods)
	}
	if err := k.Load(t.Context(), svc.Namespace, svc.Status.LatestReadyRevisionName, -1); err == nil {
		t.Error("a load of less than nothing is taken")
	}
}
