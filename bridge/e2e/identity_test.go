package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

func object(fields ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(fields); i += 2 {
		m[fields[i].(string)] = fields[i+1]
	}
	return m
}

// An object that Knative's own type cannot decode does not stop the others.
func TestUnparsableStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := []string{"created bad-url"}
	bad := w.create(w.app("bad-url"))
	must[any](t)(nil, w.PatchStatus(t.Context(), bad, object("url", "http://[::1:namedport/%zz", "conditions",
		[]any{object("type", "Ready", "status", "True", "lastTransitionTime", "yesterday")})))
	list := &servingv1.ServiceList{}
	if err := w.Client.List(t.Context(), list, inNamespace(w.namespace)); err == nil {
		t.Fatal("Knative's own type decodes the bad object: this test tests nothing")
	}
	for i := range 50 {
		name := fmt.Sprintf("good-%02d", i)
		w.create(w.app(name))
		want = append(want, "created "+name)
	}
	cfg := w.config()
	w.start(cfg)
	w.waitFor(0, want...)

	// Live as well.
	before := w.lastSequence()
	must[any](t)(nil, w.PatchStatus(t.Context(), bad, object("url", "://", "observedGeneration", 7)))
	must[*servingv1.Service](t)(w.Progressing(t.Context(), w.app("good-07").Service()))
	w.waitFor(before, "updated bad-url", "updated good-07")
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
}

// Whatever stands in an app id stays inside its token.
func TestOddIdentities(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(w.config())
	all := must[*nats.Subscription](t)(w.nc.SubscribeSync(">"))
	wild := must[*nats.Subscription](t)(w.nc.SubscribeSync("flyte.apps.events.*.*.*.*"))
	if err := w.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	ids := []subjects.AppID{
		{Project: "a.b", Domain: "c", Name: "d"},
		{Project: "a", Domain: "b.c", Name: "d"},
		{Project: "a b", Domain: "dev", Name: "x"},
		{Project: "*", Domain: ">", Name: "*.>"},
		{Project: "プロジェクト", Domain: "dév", Name: "naïve ☃"},
		{Project: "p", Domain: "d", Name: "with/slashes/inside"},
		{Project: "=41", Domain: "A", Name: "="},
		{Project: "p", Domain: "d", Name: "tab\tline\nend\r"},
		{Project: "$JS", Domain: "API", Name: "STREAM"},
	}
	var want []string
	for i, id := range ids {
		w.create(testenv.App{Project: id.Project, Domain: id.Domain, Name: id.Name, Namespace: w.namespace, ObjectName: fmt.Sprintf("odd-%d", i)})
		want = append(want, "created "+id.Name)
	}
	events := w.waitFor(0, want...)
	for _, id := range ids {
		if !slices.ContainsFunc(events, func(e stored) bool { return e.id == id }) {
			t.Errorf("no event of %q", id)
		}
	}
	// The payload says the same as the subject.
	for _, e := range events {
		got := e.app().GetMetadata().GetId()
		if (subjects.AppID{Project: got.GetProject(), Domain: got.GetDomain(), Name: got.GetName()}) != e.id {
			t.Errorf("subject %s carries app %v", e.msg.Subject, got)
		}
	}
	if n, _, _ := wild.Pending(); n != len(ids) {
		t.Errorf("%d messages on seven-token event subjects, want %d", n, len(ids))
	}
	for {
		msg, err := all.NextMsg(0)
		if err != nil {
			break
		}
		for _, prefix := range []string{"flyte.apps.events.", "$KV.flyte-apps.", "$JS.", "_INBOX."} {
			if strings.HasPrefix(msg.Subject, prefix) {
				msg = nil
				break
			}
		}
		if msg != nil {
			t.Errorf("a message on %q", msg.Subject)
		}
	}
	for id, entry := range w.entries() {
		if !slices.Contains(ids, id) {
			t.Errorf("the bucket has %q (%s)", id, entry.Subject)
		}
	}
}

// What cannot become an app is reported and left out, and comes in when it can.
func TestUnconvertible(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start(w.config())
	annotation := func(name, id string) *servingv1.Service {
		app := w.app(name)
		app.Annotations = map[string]string{"flyte.org/app-id": id}
		return w.create(app)
	}
	annotation("none", "")
	annotation("short", "vision/development")
	empty := annotation("empty", "vision//x")
	w.create(w.app("good"))
	w.waitFor(0, "created good")
	eventually(t, "three objects are reported", func() error {
		if got := r.metric("appbridge_objects_left_out_total"); got != 3 {
			return fmt.Errorf("%v are", got)
		}
		return nil
	})

	before := w.lastSequence()
	must[*servingv1.Service](t)(w.Patch(t.Context(), empty, object("metadata", object("annotations", object("flyte.org/app-id", "vision/development/mended")))))
	w.waitFor(before, "created mended")
	// Another id: one app goes, another comes.
	must[*servingv1.Service](t)(w.Patch(t.Context(), empty, object("metadata", object("annotations", object("flyte.org/app-id", "vision/development/renamed")))))
	w.waitFor(before, "created mended", "deleted mended", "created renamed")
	// No id any more: the app is gone.
	must[*servingv1.Service](t)(w.Patch(t.Context(), empty, object("metadata", object("annotations", object("flyte.org/app-id", nil)))))
	events := w.waitFor(before, "created mended", "deleted mended", "created renamed", "deleted renamed")
	w.checkHeaders(w.events(0))
	for _, e := range events {
		if e.kind == subjects.Deleted && e.app().GetMetadata().GetId().GetName() != e.id.Name {
			t.Errorf("the delete of %s carries app %v", e.id, e.app().GetMetadata().GetId())
		}
	}
}

// Of two objects that claim one app, the one with the canonical name is it.
func TestConflict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	ctx := t.Context()

	other := w.app("twice")
	other.ObjectName = "another-name"
	first := w.create(other)
	w.waitFor(0, "created twice")
	canonical := w.create(w.app("twice"))
	w.waitFor(0, "created twice", "deleted twice", "created twice")
	must[*servingv1.Service](t)(w.Progressing(ctx, first)) // the loser's changes are nobody's
	must[any](t)(nil, w.Client.Delete(ctx, canonical))
	events := w.waitFor(0, "created twice", "deleted twice", "created twice", "deleted twice", "created twice")

	var got []string
	for _, e := range events {
		got = append(got, string(e.kind)+" "+e.header(subjects.HeaderUID))
	}
	a, b := string(first.UID), string(canonical.UID)
	if want := []string{"created " + a, "deleted " + a, "created " + b, "deleted " + b, "created " + a}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	w.checkHeaders(events)
	if r.metric("appbridge_objects_left_out_total") == 0 {
		t.Error("the conflict is not counted")
	}
	before := w.lastSequence()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	must[any](t)(nil, w.start(cfg).stop())
	if got := w.lastSequence(); got != before {
		t.Errorf("a restart published %v", w.events(before))
	}
}

// Losing the label is losing the app, getting it back is getting it back.
func TestLabels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	w.start(cfg)
	ctx := t.Context()
	svc := w.create(w.app("labelled"))
	unmanaged := w.app("unmanaged")
	unmanaged.Labels = map[string]string{"flyte.org/app-managed": ""}
	w.create(unmanaged)
	for range 2 {
		must[*servingv1.Service](t)(w.SetLabel(ctx, svc, "flyte.org/app-managed", ""))
		must[*servingv1.Service](t)(w.SetLabel(ctx, svc, "flyte.org/app-managed", "true"))
	}
	must[*servingv1.Service](t)(w.SetLabel(ctx, svc, "flyte.org/app-managed", "no"))
	events := w.waitFor(0, "created labelled", "deleted labelled", "created labelled", "deleted labelled", "created labelled", "deleted labelled")
	w.checkHeaders(events)
	for i, e := range events {
		if want := []subjects.EventKind{subjects.Created, subjects.Deleted}[i%2]; e.kind != want {
			t.Errorf("event %d is %s, want %s", i, e.kind, want)
		}
		if e.header(subjects.HeaderUID) != string(svc.UID) {
			t.Errorf("event %d is of %s, want %s", i, e.header(subjects.HeaderUID), svc.UID)
		}
		if e.kind == subjects.Deleted && e.header(subjects.HeaderDeletedResourceVersion) == "" {
			t.Errorf("event %d does not say at which version the app went", i)
		}
	}
}

// Scaling is seen although the Knative Service does not change.
func TestReplicas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	w.start(cfg)
	ctx := t.Context()
	svc := w.create(w.app("scaled"))
	// The Revision and the Service are two watches: only a Revision that counts
	// nothing yet makes it one event, whichever comes first.
	must[*servingv1.Service](t)(w.Ready(ctx, svc, "", 0))
	w.waitFor(0, "created scaled", "updated scaled")
	for _, n := range []int32{1, 3, 3, 0, 2} {
		must[*servingv1.Revision](t)(w.Scale(ctx, svc, n))
	}
	events := w.waitFor(0, "created scaled", "updated scaled", "updated scaled", "updated scaled", "updated scaled", "updated scaled")
	var got []uint32
	for _, e := range events {
		got = append(got, e.app().GetStatus().GetCurrentReplicas())
	}
	if want := []uint32{0, 0, 1, 3, 0, 2}; !slices.Equal(got, want) {
		t.Errorf("replicas %v, want %v", got, want)
	}
	for i, e := range events[2:] {
		if e.header(subjects.HeaderRevision) == "" || e.header(subjects.HeaderRevisionResourceVersion) == "" {
			t.Errorf("event %d does not name its Revision", i+2)
		}
		if e.header(subjects.HeaderResourceVersion) != events[1].header(subjects.HeaderResourceVersion) {
			t.Errorf("event %d is of version %s, the Service did not change", i+2, e.header(subjects.HeaderResourceVersion))
		}
	}
	w.checkHeaders(events)

	// A stopped app shows no replicas: that its Revision goes is nobody's event.
	before := w.lastSequence()
	stopped := must[*servingv1.Service](t)(w.MarkStopped(ctx, svc))
	w.waitFor(before, "updated scaled")
	must[any](t)(nil, w.DeleteRevision(ctx, stopped))
	w.create(w.app("after"))
	w.waitFor(before, "updated scaled", "created after")
}

// A Knative Service names a Revision that does not exist yet: the count of the former one stands. One
// that does not come counts 0 after a while.
func TestRevisionThatDoesNotCome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start(w.config())
	svc := w.create(w.app("one"))
	svc = must[*servingv1.Service](t)(w.Ready(t.Context(), svc, "one-00001", 0))
	must[*servingv1.Revision](t)(w.Scale(t.Context(), svc, 2))
	want := []string{"created one", "updated one", "updated one"}
	w.waitFor(0, want...)
	must[any](t)(nil, w.PatchStatus(t.Context(), svc, map[string]any{"latestReadyRevisionName": "one-00002"}))
	events := w.waitFor(0, append(want, "updated one", "updated one")...)
	if e := events[3]; e.app().GetStatus().GetCurrentReplicas() != 2 || e.header(subjects.HeaderRevision) != "one-00001" {
		t.Errorf("the app has %d replicas of %s, want 2 of one-00001", e.app().GetStatus().GetCurrentReplicas(), e.header(subjects.HeaderRevision))
	}
	if got := events[4].app().GetStatus().GetCurrentReplicas(); got != 0 {
		t.Errorf("the app has %d replicas in the end, want 0", got)
	}
	w.checkHeaders(events)
	w.converged(events)
	r.waitReady()
}
