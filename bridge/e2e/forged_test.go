package e2e_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// While no bridge runs, somebody takes keys from the bucket and writes entries with the right
// headers. The next start publishes nothing of it, and the bucket is right again.
func TestForgedWhileNoBridgeRan(t *testing.T) {
	t.Parallel()
	entry := func(w *world, name string) *jetstream.RawStreamMsg {
		w.t.Helper()
		for id, m := range w.entries() {
			if id.Name == name {
				return m
			}
		}
		w.t.Fatalf("the bucket has no %s", name)
		return nil
	}
	put := func(w *world, like *jetstream.RawStreamMsg, subject string, data []byte) {
		w.t.Helper()
		h := maps.Clone(like.Header)
		h.Del(subjects.HeaderExpectedLastSequence)
		must[*jetstream.PubAck](w.t)(w.js.PublishMsg(w.t.Context(), &nats.Msg{Subject: subject, Header: h, Data: data}))
	}
	for name, forge := range map[string]func(*world){
		"a key is purged": func(w *world) {
			subject := subjects.BucketSubject(subjects.DefaultBucket, "vision.development.one")
			must[any](w.t)(nil, w.stream(subjects.BucketStream(subjects.DefaultBucket)).Purge(w.t.Context(), jetstream.WithPurgeSubject(subject)))
		},
		"another App under the right headers": func(w *world) {
			one := entry(w, "one")
			put(w, one, one.Subject, []byte(strings.Replace(string(one.Data), "one", "eno", 1)))
		},
		"a marker in the place of an entry": func(w *world) {
			put(w, entry(w, "gone"), entry(w, "one").Subject, nil)
		},
		"an entry of another app": func(w *world) {
			one, two := entry(w, "one"), entry(w, "two")
			put(w, two, one.Subject, two.Data)
		},
		"an app that was deleted": func(w *world) {
			gone := entry(w, "gone")
			two := entry(w, "two")
			two.Header.Set(subjects.HeaderEventSequence, gone.Header.Get(subjects.HeaderEventSequence))
			put(w, two, gone.Subject, two.Data)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := w.config()
			r := w.start(cfg)
			one := w.create(w.app("one"))
			gone := w.create(w.app("gone"))
			must[any](t)(nil, w.Client.Delete(t.Context(), gone))
			w.waitFor(0, "created one", "created gone", "deleted gone")
			w.create(w.app("two"))
			w.waitFor(0, "created one", "created gone", "deleted gone", "created two")
			must[any](t)(nil, r.stop())
			forge(w)
			w.start(cfg)
			eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
			eventually(t, "verify finds nothing", func() error {
				report := must[*audit.Report](t)(w.verify(cfg, audit.Options{}))
				if len(report.Differences) > 0 {
					return fmt.Errorf("got %v", report.Differences)
				}
				return nil
			})
			if n := w.lastSequence(); n != 4 {
				t.Errorf("it published %v", w.events(4))
			}
			must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
			w.create(w.app("gone"))
			events := w.waitFor(0, "created one", "created gone", "deleted gone", "created two", "updated one", "created gone")
			w.checkHeaders(events)
			w.converged(events)
		})
	}
}

// A label that is taken off and put back, while no bridge knows of the app any more: it goes on where
// it ended.
func TestLabelComesAndGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	svc := w.create(w.app("one"))
	want := []string{"created one"}
	w.waitFor(0, want...)
	for range 3 {
		svc = must[*servingv1.Service](t)(w.SetLabel(t.Context(), svc, kservice.LabelManaged, ""))
		want = append(want, "deleted one")
		w.waitFor(0, want...)
		must[any](t)(nil, r.stop()) // the next one knows nothing of it
		r = w.start(cfg)
		svc = must[*servingv1.Service](t)(w.SetLabel(t.Context(), svc, kservice.LabelManaged, "true"))
		want = append(want, "created one")
		events := w.waitFor(0, want...)
		w.checkHeaders(events)
		w.converged(events)
	}
	if got := r.metric("appbridge_resyncs_total"); got != 1 {
		t.Errorf("%v resyncs, want one", got)
	}
}
