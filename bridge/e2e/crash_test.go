package e2e_test

import (
	"fmt"
	"testing"
	"time"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// crash is an instant at which a bridge can be killed, on the way of an event
// from the bridge to the stream to the bucket.
type crash struct {
	name string
	// until has the change happen and returns at that instant.
	until  func(w *world, g *gate, r *running, change func())
	stored bool // the first event of the change is in the stream then; of a recreate perhaps both
	bucket bool // and in the bucket
}

func crashes() []crash {
	const append, write = "PUB flyte.apps.events.", "PUB $KV.flyte-apps."
	stored := func(w *world, after uint64) {
		eventually(w.t, "the event is stored", func() error {
			if w.lastSequence() == after {
				return fmt.Errorf("the stream ends at %d", after)
			}
			return nil
		})
	}
	const published = "appbridge_events_published_total"
	return []crash{
		{"before the event is stored", func(w *world, g *gate, _ *running, change func()) {
			hit := g.holdAt(append)
			change()
			reached(w.t, "the event is sent", hit)
		}, false, false},
		{"before the event is acknowledged", func(w *world, g *gate, r *running, change func()) {
			before, acknowledged := w.lastSequence(), r.metric(published)
			g.deafen()
			change()
			stored(w, before)
			if r.metric(published) != acknowledged {
				w.t.Error("the acknowledgement came through: this test tests nothing")
			}
		}, true, false},
		{"before the bucket is written", func(w *world, g *gate, r *running, change func()) {
			acknowledged := r.metric(published)
			hit := g.holdAt(write)
			change()
			reached(w.t, "the bucket's entry is sent", hit)
			eventually(w.t, "the event is acknowledged", func() error {
				if now := r.metric(published); now <= acknowledged {
					return fmt.Errorf("%v are", now)
				}
				return nil
			})
		}, true, false},
		{"before the bucket's write is acknowledged", func(w *world, g *gate, r *running, change func()) {
			bucket := func() uint64 {
				return w.stream(subjects.BucketStream(subjects.DefaultBucket)).CachedInfo().State.LastSeq
			}
			before, acknowledged := bucket(), r.metric("appbridge_snapshot_writes_total")
			hit := g.holdAt(write)
			change()
			reached(w.t, "the bucket's entry is sent", hit)
			g.deafen()
			g.release()
			eventually(w.t, "the bucket is written", func() error {
				if bucket() == before {
					return fmt.Errorf("it ends at %d", before)
				}
				return nil
			})
			if r.metric("appbridge_snapshot_writes_total") != acknowledged {
				w.t.Error("the acknowledgement came through: this test tests nothing")
			}
		}, true, true},
	}
}

// A bridge killed at any instant, in the middle of any kind of change: the next
// one publishes exactly what is missing and the bucket is right.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*world, *servingv1.Service)
		want   []string
	}{
		{"create", func(w *world, _ *servingv1.Service) { w.create(w.app("new")) }, []string{"created new"}},
		{"update", func(w *world, svc *servingv1.Service) {
			must[*servingv1.Service](w.t)(w.Progressing(w.t.Context(), svc))
		}, []string{"updated one"}},
		{"delete", func(w *world, svc *servingv1.Service) {
			must[any](w.t)(nil, w.Client.Delete(w.t.Context(), svc))
		}, []string{"deleted one"}},
		{"recreate", func(w *world, svc *servingv1.Service) {
			must[any](w.t)(nil, w.Client.Delete(w.t.Context(), svc))
			w.create(w.app("one"))
		}, []string{"deleted one", "created one"}},
	} {
		for _, at := range crashes() {
			t.Run(test.name+" "+at.name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				cfg := w.config()
				g := w.natsGate()
				killed := cfg
				killed.FlushTimeout = time.Millisecond
				r := w.startAt(g, killed)
				one, other := w.create(w.app("one")), w.create(w.app("other"))
				w.converged(w.waitFor(0, "created one", "created other"))
				before := w.stream(subjects.BucketStream(cfg.Bucket)).CachedInfo().State.LastSeq

				at.until(w, g, r, func() { test.change(w, one) })
				r.kill(g)
				live := w.events(2)
				if got, want := len(live) > 0, at.stored; got != want {
					t.Fatalf("stored is %v, want %v: this test tests nothing", got, want)
				}
				now := w.stream(subjects.BucketStream(cfg.Bucket)).CachedInfo().State.LastSeq
				if got, want := now > before, at.bucket; got != want {
					t.Fatalf("in the bucket is %v, want %v: this test tests nothing", got, want)
				}

				must[*servingv1.Service](t)(w.Progressing(t.Context(), other)) // while no bridge runs
				r = w.start(cfg)
				want := append([]string{"created one", "created other", "updated other"}, test.want...)
				events := w.waitRead(nil, want...)
				allSynthesized(t, events[2:2+len(live)], false)
				allSynthesized(t, events[2+len(live):], true)
				w.checkHeaders(events)
				w.converged(events)

				// It goes on, and the next start finds nothing.
				must[*servingv1.Service](t)(w.Failed(t.Context(), other, "Broken", "it is"))
				events = w.waitRead(nil, append(want, "updated other")...)
				w.checkHeaders(events)
				w.converged(events)
				must[any](t)(nil, r.stop())
				must[any](t)(nil, w.start(cfg).stop())
				if got := w.lastSequence(); got != uint64(len(events)) {
					t.Errorf("a restart published %v", w.events(uint64(len(events))))
				}
			})
		}
	}
}
