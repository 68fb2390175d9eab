package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// The label taken off and given back twice, well within the server's duplicate
// window: each time is an event with an id of its own.
func TestRelabelled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(w.config())
	svc := w.create(w.app("one"))
	w.waitFor(0, "created one")
	if window := must[jetstream.Stream](t)(w.js.Stream(t.Context(), subjects.DefaultStream)).CachedInfo().Config.Duplicates; window < time.Minute {
		t.Fatalf("the duplicate window is %s: this test tests nothing", window)
	}
	for range 2 {
		must[*servingv1.Service](t)(w.SetLabel(t.Context(), svc, "flyte.org/app-managed", ""))
		must[*servingv1.Service](t)(w.SetLabel(t.Context(), svc, "flyte.org/app-managed", "true"))
	}
	events := w.waitFor(0, "created one", "deleted one", "created one", "deleted one", "created one")
	w.checkHeaders(events)
	allSynthesized(t, events, false)
	ids := map[string]uint64{}
	for i, e := range events {
		if want := []subjects.EventKind{subjects.Created, subjects.Deleted}[i%2]; e.kind != want || e.header(subjects.HeaderUID) != string(svc.UID) {
			t.Errorf("event %d is %s, want %s of %s", i, e, want, svc.UID)
		}
		if before := ids[e.header(subjects.HeaderMsgID)]; before != 0 {
			t.Errorf("sequence %d has the id of sequence %d", e.sequence, before)
		}
		ids[e.header(subjects.HeaderMsgID)] = e.sequence
	}
	w.converged(events)
}

// The apps of a namespace that is no longer watched stay as they are, and are
// told; watched again, they go on from there.
func TestNamespaceReturns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.namespace + "-b"
	must[any](t)(nil, w.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}))
	away := func(name string) testenv.App {
		app := w.app(name)
		app.Namespace = other
		return app
	}
	both, one := w.config(), w.config()
	both.Namespaces = []string{w.namespace, other}
	r := w.start(both)
	here := w.create(w.app("here"))
	quiet, changed, gone := w.create(away("quiet")), w.create(away("changed")), w.create(away("gone"))
	w.waitFor(0, "created here", "created quiet", "created changed", "created gone")
	must[any](t)(nil, r.stop())
	before := w.entries()

	r = w.start(one)
	must[*servingv1.Service](t)(w.Progressing(t.Context(), here))
	must[*servingv1.Service](t)(w.Progressing(t.Context(), changed))
	must[*servingv1.Service](t)(w.Failed(t.Context(), changed, "Broken", "twice changed is once told"))
	must[any](t)(nil, w.Client.Delete(t.Context(), gone))
	w.create(away("born"))
	w.waitFor(4, "updated here")
	told := r.logs.FilterMessage("apps of namespaces that are not watched are left as they are").FilterField(zap.Int("apps", 3))
	if told.Len() != 1 {
		t.Errorf("the three apps are reported %d times, want once", told.Len())
	}
	must[any](t)(nil, r.stop())
	after := w.entries()
	if len(after) != len(before) {
		t.Errorf("the bucket has %d entries, had %d", len(after), len(before))
	}
	for _, name := range []string{"quiet", "changed", "gone"} {
		id := away(name).ID()
		if after[id] == nil || after[id].Sequence != before[id].Sequence {
			t.Errorf("%s was written, or is gone", id)
		}
	}

	r = w.start(both)
	events := w.waitFor(5, "updated changed", "deleted gone", "created born")
	allSynthesized(t, events, true)
	must[*servingv1.Service](t)(w.Progressing(t.Context(), quiet))
	w.waitFor(5, "updated changed", "deleted gone", "created born", "updated quiet")
	must[any](t)(nil, r.stop())
	all := w.events(0)
	for _, e := range all {
		want := other
		if e.id.Name == "here" {
			want = w.namespace
		}
		if got := e.header(subjects.HeaderNamespace); got != want {
			t.Errorf("sequence %d (%s): namespace %s, want %s", e.sequence, e.id, got, want)
		}
	}
	checkChain(t, all)
	for id, entry := range w.entries() {
		last := all[slices.IndexFunc(all, func(e stored) bool { return fmt.Sprint(e.sequence) == entry.Header.Get(subjects.HeaderEventSequence) })]
		if last.id != id || (entry.Header.Get(subjects.HeaderKVOperation) != "") != (id.Name == "gone") {
			t.Errorf("the entry of %s reflects %s of %s", id, last, last.id)
		}
	}
	if n := w.lastSequence(); n != 9 {
		t.Errorf("the stream ends at %d, want 9", n)
	}
}

// checkChain fails unless every event names the one before it of its app.
func checkChain(t *testing.T, events []stored) {
	t.Helper()
	previous := map[subjects.AppID]string{}
	for _, e := range events {
		if got := e.header(subjects.HeaderPreviousSequence); got != previous[e.id] {
			t.Errorf("sequence %d (%s %s): its previous event is %q, want %q", e.sequence, e.kind, e.id, got, previous[e.id])
		}
		previous[e.id] = fmt.Sprint(e.sequence)
	}
}

// Another base domain is another App of every app that has a URL: an update
// each, once.
func TestBaseDomainOfAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	var names []string
	for i := range 12 {
		names = append(names, fmt.Sprintf("app-%02d", i))
		w.create(w.app(names[i]))
	}
	gone := w.create(w.app("gone"))
	must[any](t)(nil, w.Client.Delete(t.Context(), gone))
	eventually(t, "all are there", func() error {
		if n := w.lastSequence(); n != 14 {
			return fmt.Errorf("the stream ends at %d", n)
		}
		return nil
	})
	must[any](t)(nil, r.stop())

	cfg.App.BaseDomain = "apps.example.org"
	var want []string
	for _, name := range names {
		want = append(want, "updated "+name)
	}
	r = w.start(cfg)
	events := w.waitFor(14, want...)
	must[any](t)(nil, r.stop())
	allSynthesized(t, events, true)
	for _, e := range events {
		was, is := e.payload.GetUpdateEvent().GetOldApp().GetStatus().GetIngress().GetPublicUrl(), e.app().GetStatus().GetIngress().GetPublicUrl()
		if !strings.HasSuffix(was, ".apps.example.com") || !strings.HasSuffix(is, ".apps.example.org") {
			t.Errorf("%s went from %q to %q", e.id, was, is)
		}
	}
	all := w.events(0)
	w.checkHeaders(all)
	if err := w.bucketDrift(cfg.App, all); err != nil {
		t.Error(err)
	}
	must[any](t)(nil, w.start(cfg).stop())
	if n := w.lastSequence(); n != 26 {
		t.Errorf("a second restart published %v", w.events(26))
	}
}

// Of two objects with one app id the one that is the app goes: the other is
// the app from then on, whether a bridge saw that or a comparison finds it.
func TestWinnerGoes(t *testing.T) {
	t.Parallel()
	for _, way := range []struct {
		name string
		goes func(*world, *servingv1.Service)
	}{
		{"deleted", func(w *world, svc *servingv1.Service) { must[any](w.t)(nil, w.Client.Delete(w.t.Context(), svc)) }},
		{"unlabelled", func(w *world, svc *servingv1.Service) {
			must[*servingv1.Service](w.t)(w.SetLabel(w.t.Context(), svc, "flyte.org/app-managed", ""))
		}},
		{"another app now", func(w *world, svc *servingv1.Service) {
			patch := object("metadata", object("annotations", object("flyte.org/app-id", "vision/development/renamed")))
			must[*servingv1.Service](w.t)(w.Patch(w.t.Context(), svc, patch))
		}},
	} {
		for _, seen := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, seen is %v", way.name, seen), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				cfg := w.config()
				canonical := w.create(w.app("twice"))
				app := w.app("twice")
				app.ObjectName = "another-name"
				other := w.create(app)
				r := w.start(cfg)
				w.converged(w.waitFor(0, "created twice"))
				must[*servingv1.Service](t)(w.Progressing(t.Context(), other)) // nobody's business yet
				if !seen {
					must[any](t)(nil, r.stop())
				}
				way.goes(w, canonical)
				if !seen {
					w.start(cfg)
				}
				want := []string{"created twice", "deleted twice", "created twice"}
				if way.name == "another app now" {
					want = append(want, "created renamed")
				}
				events := w.waitFor(0, want...)
				w.checkHeaders(events)
				allSynthesized(t, events[1:], !seen)
				var got []string
				for _, e := range events {
					if e.id.Name == "twice" {
						got = append(got, string(e.kind)+" "+e.header(subjects.HeaderUID))
					}
				}
				a, b := string(canonical.UID), string(other.UID)
				if want := []string{"created " + a, "deleted " + a, "created " + b}; !slices.Equal(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
				w.converged(events)
				if got := w.entries()[app.ID()].Header.Get(subjects.HeaderUID); got != b {
					t.Errorf("the bucket shows object %s, want %s", got, b)
				}
				must[*servingv1.Service](t)(w.Failed(t.Context(), other, "Broken", "it is"))
				events = w.waitFor(0, append(want, "updated twice")...)
				w.checkHeaders(events)
				w.converged(events)
			})
		}
	}
}
