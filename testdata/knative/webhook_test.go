package knative_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// refuses checks the code of a refusal and what it says.
func (a *app) refuses(got answer, code subjects.Code, texts ...string) {
	a.t.Helper()
	text := got.refused()
	missing := !strings.HasPrefix(text, code.HeaderValue()+" ")
	for _, want := range texts {
		missing = missing || !strings.Contains(text, want)
	}
	if missing {
		a.t.Errorf("got %q, want code %s with %q", text, code.HeaderValue(), texts)
	}
}

// isUnwritten checks that etcd never held anything of the app, and that nothing was published. An
// event that comes later is for judged to find.
func (a *app) isUnwritten() {
	a.t.Helper()
	in, err := a.input(a.t.Context(), []subjects.AppID{a.id})
	if err != nil {
		a.t.Fatal(err)
	}
	if len(in.Changes)+len(in.Events) > 0 {
		a.t.Errorf("etcd held %d versions, and %d events were published", len(in.Changes), len(in.Events))
	}
}

// Without Knative's webhook nothing is written: 502. With it, the same request is answered.
func TestWebhookDown(t *testing.T) {
	a := sharedWorld(t).app(t, "webhook-down")
	if err := a.knative.Program().Kill(); err != nil {
		t.Fatal(err)
	}
	got := a.asks(subjects.APIDeploy, &appv1.CreateRequest{App: &appv1.App{Spec: spec(image("webhook:1"), 1, 2)}})
	if err := a.knative.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.refuses(got, subjects.CodeUnavailable, "webhook.serving.knative.dev", "connection refused")
	a.isUnwritten()

	a.deploys(spec(image("webhook:1"), 1, 2), subjects.OutcomeCreated)
	a.becomes(state{status: "ACTIVE", revision: 1, replicas: 1})
	a.judged()
}

// A webhook that does not answer: 504 within the patience of a request, and the next one finds out
// what became of it.
func TestWebhookSilent(t *testing.T) {
	a := sharedWorld(t).app(t, "webhook-silent")
	program := a.knative.Program()
	if err := program.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	got := a.asks(subjects.APIDeploy, &appv1.CreateRequest{App: &appv1.App{Spec: spec(image("silent:1"), 1, 2)}})
	if err := program.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	a.refuses(got, subjects.CodeDeadlineExceeded, "it may have been written")

	again := a.asks(subjects.APIDeploy, &appv1.CreateRequest{App: &appv1.App{Spec: spec(image("silent:1"), 1, 2)}})
	if text := again.refused(); text != "" {
		t.Fatalf("the next deploy: got %q", text)
	}
	a.becomes(state{status: "ACTIVE", revision: 1, replicas: 1})
	a.judged()
	t.Logf("refused with %q, then %s", got.refused(), again.outcome())
}

// What only the settings of the cluster decide, Knative's webhook decides: 400 with its words, and
// nothing is written.
func TestWebhookRefusal(t *testing.T) {
	a := sharedWorld(t).app(t, "webhook-refusal")
	pod := &appv1.Spec{}
	const text = `{"pod": {"podSpec": {"nodeSelector": {"disk": "fast"}, "containers": [{"image": "dev.local/shop/pod:1", "ports": [{"containerPort": 8080}]}]}}}`
	if err := protojson.Unmarshal([]byte(text), pod); err != nil {
		t.Fatal(err)
	}
	request := &appv1.CreateRequest{App: &appv1.App{Spec: pod}}
	a.without("config-features", "kubernetes.podspec-nodeselector", "disabled", func() {
		got := a.asks(subjects.APIDeploy, request)
		a.refuses(got, subjects.CodeInvalidArgument, "must not set the field(s): spec.template.spec.nodeSelector")
		a.isUnwritten()
	})
	a.deploys(pod, subjects.OutcomeCreated)
	a.becomes(state{status: "PENDING"})
	a.goes()
	a.isGone()

	a.deploys(spec(image("webhook:2"), 1, 2), subjects.OutcomeCreated)
	a.becomes(state{status: "ACTIVE", replicas: 1})
	a.without("config-autoscaler", "allow-zero-initial-scale", "false", func() {
		got := a.asks(subjects.APIStop, &appv1.UpdateRequest{})
		a.refuses(got, subjects.CodeInvalidArgument, "initial-scale")
	})
	a.without("config-defaults", "max-revision-timeout-seconds", "600", func() {
		long := spec(image("webhook:2"), 1, 2)
		long.Timeouts = &appv1.TimeoutConfig{RequestTimeout: durationpb.New(15 * time.Minute)}
		got := a.asks(subjects.APIDeploy, &appv1.CreateRequest{App: &appv1.App{Spec: long}})
		a.refuses(got, subjects.CodeInvalidArgument, "900", "timeoutSeconds")
	})
	a.stops()
	a.becomes(state{status: "STOPPED"})
	a.judged()
}

// without does something while Knative has another setting than Flyte's apps need.
func (a *app) without(configMap, key, value string, do func()) {
	a.t.Helper()
	settings := &corev1.ConfigMap{}
	if err := a.Client.Get(a.t.Context(), client.ObjectKey{Namespace: "knative-serving", Name: configMap}, settings); err != nil {
		a.t.Fatal(err)
	}
	if err := a.knative.Set(a.t.Context(), configMap, key, value); err != nil {
		a.t.Fatal(err)
	}
	do()
	if err := a.knative.Set(a.t.Context(), configMap, key, settings.Data[key]); err != nil {
		a.t.Fatal(err)
	}
}
