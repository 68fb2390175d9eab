package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// The life of an app, as somebody leads it who has the stock client alone: what
// each request comes to is in its answer, in the stream and in the bucket.
func TestFlow(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	f := &flow{world: w, t: t, id: subjects.AppID{Project: "shop", Domain: "production", Name: "flow"}}
	filter, err := names(t).EventFilter(f.id)
	if err != nil {
		t.Fatal(err)
	}
	f.events = w.follow(t, filter)

	created := f.deploys(subjects.OutcomeCreated)
	f.happens(subjects.Created, created)
	f.reads(created)
	stopped := f.stops()
	deploys := f.deploys(subjects.OutcomeUpdated)
	if f.happens(subjects.Updated, deploys); f.isStopped(f.last.app) {
		t.Error("it is stopped, still")
	}
	before := f.last
	f.deploys(subjects.OutcomeUnchanged)
	f.hasReplicas()
	if got, want := f.after(before).header.Get(subjects.HeaderPreviousSequence), fmt.Sprint(before.sequence); got != want {
		t.Errorf("the event before is %s, want %s: one has come of a deploy that changed nothing", got, want)
	}
	f.losesReplica()
	f.ends(stopped)
}

// flow is an app on its way.
type flow struct {
	*world
	t      *testing.T
	id     subjects.AppID
	events *follower
	seen   []event
	last   event
}

func (f *flow) asks(op subjects.APIOp, body string) answer {
	f.t.Helper()
	return f.types(f.t, subjectOf(f.t, op, f.id), body)
}

func (f *flow) came(a answer, want subjects.Outcome) answer {
	f.t.Helper()
	if text := a.refused(); text != "" || a.outcome() != want {
		f.t.Fatalf("got outcome %q and error %q, want %s", a.outcome(), text, want)
	}
	return a
}

// deploys asks for always the same app.
func (f *flow) deploys(want subjects.Outcome) answer {
	f.t.Helper()
	a := f.came(f.asks(subjects.APIDeploy, `{"app": {"spec": {"container": {"image": "registry.example.com/flow:1", "ports": [{"containerPort": 8080}]}}}}`), want)
	var now appv1.CreateResponse
	if a.message(f.t, &now); now.GetApp().GetSpec().GetContainer().GetImage() != "registry.example.com/flow:1" {
		f.t.Errorf("the answer is %s", a.body)
	}
	return a
}

// happens waits for the event of a write, by the version that its answer names.
func (f *flow) happens(kind subjects.EventKind, of answer) {
	f.t.Helper()
	f.last = f.events.next()
	f.seen = append(f.seen, f.last)
	for _, name := range []string{subjects.HeaderUID, subjects.HeaderResourceVersion, subjects.HeaderNamespace} {
		if got, want := f.last.header.Get(name), of.header.Get(name); got != want || want == "" {
			f.t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if f.last.kind != kind || f.last.id != f.id {
		f.t.Errorf("got %s of %s, want %s of %s", f.last.kind, f.last.id, kind, f.id)
	}
}

// after is the event that follows on another.
func (f *flow) after(before event) event {
	f.t.Helper()
	i := slices.IndexFunc(f.seen, func(e event) bool { return e.sequence == before.sequence })
	return f.seen[i+1]
}

// reads is get, ingress and list of an app that was deployed.
func (f *flow) reads(deployed answer) {
	f.t.Helper()
	var got appv1.GetResponse
	a := f.asks(subjects.APIGet, "")
	if a.message(f.t, &got); got.GetApp().GetMetadata().GetId().GetName() != f.id.Name {
		f.t.Errorf("get: got %s", a.body)
	}
	if got, want := a.header.Get(subjects.HeaderResourceVersion), deployed.header.Get(subjects.HeaderResourceVersion); got != want {
		f.t.Errorf("get: got version %s, want %s", got, want)
	}
	var ingress appv1.Ingress
	f.asks(subjects.APIIngress, "").message(f.t, &ingress)
	if got, want := ingress.GetPublicUrl(), "https://flow-shop-production.apps.example.com"; got != want {
		f.t.Errorf("ingress: got %q, want %q", got, want)
	}
	var list appv1.ListResponse
	f.types(f.t, "flyte.apps.api.list.shop.production", "").message(f.t, &list)
	if !slices.ContainsFunc(list.GetApps(), func(app *appv1.App) bool { return app.GetMetadata().GetId().GetName() == f.id.Name }) {
		f.t.Errorf("list: got %s", &list)
	}
}

func (f *flow) isStopped(app *appv1.App) bool {
	conditions := app.GetStatus().GetConditions()
	return len(conditions) > 0 && conditions[len(conditions)-1].GetDeploymentStatus() == appv1.Status_DEPLOYMENT_STATUS_STOPPED
}

// stops stops the app; the stream and the bucket say so.
func (f *flow) stops() answer {
	f.t.Helper()
	a := f.came(f.asks(subjects.APIStop, `{"reason": "out of season"}`), subjects.OutcomeStopped)
	if f.happens(subjects.Updated, a); !f.isStopped(f.last.app) {
		f.t.Errorf("the event is %s", f.last.app)
	}
	eventually(f.t, "the bucket says that it is stopped", func() error {
		key, err := f.id.Key()
		if err != nil {
			return err
		}
		text := f.Start(f.t, "nats kv get "+bucket+" "+key+" --raw || true").Wait() // it may not be there yet
		app := &appv1.App{}
		if err := appv1.Decode([]byte(strings.TrimSpace(text)), subjects.ContentTypeJSON, app); err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
		if !f.isStopped(app) {
			return fmt.Errorf("it says %s", text)
		}
		return nil
	})
	return a
}

// pod runs a pod of a Revision.
func (f *flow) pod(service, revision, name string) {
	f.t.Helper()
	_, err := f.Kubelet.RunPod(f.t.Context(), testenv.PodOptions{Name: name, Service: service, Revision: revision})
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *flow) replicasBecome(want ...string) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("the replicas are %s", want), func() error {
		var list appv1.ReplicaList
		f.asks(subjects.APIReplicas, "").message(f.t, &list)
		var got []string
		for _, replica := range list.GetItems() {
			got = append(got, replica.GetMetadata().GetId().GetName())
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("they are %s", got)
		}
		return nil
	})
}

// hasReplicas shows the replicas of an app: as long as no Revision is ready all
// pods, after that those of the one that is.
func (f *flow) hasReplicas() {
	f.t.Helper()
	service := "flow-shop-production"
	first, second := service+"-00001", service+"-00002"
	f.pod(service, first, "flow-first")
	f.pod(service, second, "flow-second")
	f.pod("other-shop-production", "other-shop-production-00001", "other-pod")
	f.replicasBecome("flow-first", "flow-second")
	svc := testenv.App{Project: f.id.Project, Domain: f.id.Domain, Name: f.id.Name}.Service()
	if _, err := f.Ready(f.t.Context(), svc, first, 1); err != nil {
		f.t.Fatal(err)
	}
	f.replicasBecome("flow-first")
	for f.last.app.GetStatus().GetCurrentReplicas() != 1 { // Service and Revision may change in two steps
		f.last = f.events.next()
		f.seen = append(f.seen, f.last)
	}
}

// losesReplica deletes a replica. A pod of another app is none.
func (f *flow) losesReplica() {
	f.t.Helper()
	if got := f.asks(subjects.APIDeleteReplica, `{"name": "other-pod"}`).refused(); !strings.HasPrefix(got, subjects.CodeNotFound.HeaderValue()+" ") || !strings.Contains(got, `"other-pod"`) {
		f.t.Errorf("a pod of another app: got %q", got)
	}
	f.came(f.asks(subjects.APIDeleteReplica, `{"name": "flow-first"}`), subjects.OutcomeDeleted)
	goes := func(name string) (bool, error) {
		pod := &corev1.Pod{}
		err := f.Client.Get(f.t.Context(), client.ObjectKey{Namespace: testenv.DefaultNamespace, Name: name}, pod)
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return pod.DeletionTimestamp != nil, err // what is left is the kubelet's part
	}
	for name, want := range map[string]bool{"flow-first": true, "flow-second": false, "other-pod": false} {
		if got, err := goes(name); err != nil || got != want {
			f.t.Errorf("pod %s: deleted: %v, %v, want %v", name, got, err, want)
		}
	}
	f.came(f.asks(subjects.APIDeleteReplica, `{"name": "nothing"}`), subjects.OutcomeMissing)
}

// ends deletes the app, whose end has the uid that it was stopped with.
func (f *flow) ends(stopped answer) {
	f.t.Helper()
	deleted := f.came(f.asks(subjects.APIDelete, ""), subjects.OutcomeDeleted)
	for f.last.kind != subjects.Deleted {
		f.last = f.events.next()
	}
	for what, got := range map[string]string{"the answer": deleted.header.Get(subjects.HeaderUID), "the event": f.last.header.Get(subjects.HeaderUID)} {
		if want := stopped.header.Get(subjects.HeaderUID); got != want {
			f.t.Errorf("the uid of %s: got %s, want %s", what, got, want)
		}
	}
	if got, want := f.asks(subjects.APIGet, "").refused(), "404 app: no app "+f.id.String(); got != want {
		f.t.Errorf("get: got %q, want %q", got, want)
	}
	f.came(f.asks(subjects.APIDelete, ""), subjects.OutcomeMissing)
	f.came(f.asks(subjects.APIStop, ""), subjects.OutcomeMissing)
}
