package e2e_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// keepsEvents is how long the stream of these tests keeps an event. A bridge that the machine holds
// up for that long misses some.
const keepsEvents = 10 * time.Second

// An app that was quiet for longer than the stream keeps its events: the stream
// has none of it, the next one is appended without a previous event and says
// which it was all the same; while the bridge runs, after a restart, and with
// leader election.
func TestQuietApp(t *testing.T) {
	t.Parallel()
	for _, elected := range []bool{false, true} {
		t.Run(fmt.Sprintf("elected is %v", elected), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := w.config()
			if elected {
				cfg = w.elected("first")
			}
			cfg.StreamMaxAge = keepsEvents
			r := w.start(cfg)
			tap := w.tapStream()
			one, two := w.create(w.app("one")), w.create(w.app("two"))
			w.converged(tap.waitFor("created one", "created two"))

			w.expired()
			must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
			must[any](t)(nil, w.Client.Delete(t.Context(), two))
			w.converged(tap.waitFor("created one", "created two", "updated one", "deleted two"))
			w.expired()
			again := w.create(w.app("two"))
			events := tap.waitFor("created one", "created two", "updated one", "deleted two", "created two")
			w.converged(events)
			allSynthesized(t, events, false)

			w.expired()
			must[any](t)(nil, r.stop())
			must[*servingv1.Service](t)(w.Failed(t.Context(), one, "Broken", "while nobody looked"))
			r = w.start(cfg)
			want := []string{"created one", "created two", "updated one", "deleted two", "created two", "updated one"}
			allSynthesized(t, tap.waitFor(want...)[5:], true)
			must[*servingv1.Service](t)(w.Progressing(t.Context(), again))
			events = tap.waitFor(append(want, "updated two")...)
			allSynthesized(t, events[6:], false)
			w.checkHeaders(events)
			w.converged(events)
			for _, e := range events {
				if got := e.header(subjects.HeaderExpectedLastSubjectSequence); got != "0" {
					t.Errorf("sequence %d (%s %s) expected sequence %s, when the stream held none", e.sequence, e.kind, e.id, got)
				}
			}
			if got := r.metric("appbridge_resyncs_total"); got != 1 {
				t.Errorf("%v resyncs for expired events, want none beside the start", got)
			}
		})
	}
}

// Whether the stream's silence about an app means anything is known only while
// the Lease is held: a leader that lost it does not append without a previous
// event, whatever it believes.
func TestQuietAppWithoutLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.elected("first")
	cfg.StreamMaxAge = keepsEvents
	r := w.start(cfg)
	tap := w.tapStream()
	svc := w.create(w.app("one"))
	w.converged(tap.waitFor("created one"))
	w.expired()

	// Every append that is tried, refused or not.
	var tries, unfenced atomic.Int64
	sub := must[*nats.Subscription](t)(w.nc.Subscribe("flyte.apps.events.>", func(msg *nats.Msg) {
		tries.Add(1)
		if msg.Header.Get(subjects.HeaderExpectedLastSubjectSequence) == "0" {
			unfenced.Add(1)
		}
	}))
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	must[any](t)(nil, w.nc.Flush())

	w.handLease("somebody")
	must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	eventually(t, "it tries three times, or stops leading", func() error {
		if tries.Load() < 3 && r.metric("appbridge_leader") == 1 {
			w.handLease("somebody") // who renews it
			return fmt.Errorf("%d tries", tries.Load())
		}
		return nil
	})
	must[any](t)(nil, w.nc.Flush())
	if tries.Load() == 0 {
		t.Log("it stopped leading before it tried")
	}
	if n := unfenced.Load(); n != 0 {
		t.Fatalf("%d appends expected no previous event while somebody else held the Lease", n)
	}
	if events := tap.events(); len(events) != 1 {
		t.Fatalf("it published %v without the Lease", events[1:])
	}
	w.handLease("")
	events := tap.waitFor("created one", "updated one")
	w.checkHeaders(events)
	w.converged(events)
	if got, want := events[1].header(subjects.HeaderPreviousSequence), strconv.FormatUint(events[0].sequence, 10); got != want {
		t.Errorf("the update's previous event is %q, want %s", got, want)
	}
	eventually(t, "it is ready again", func() error { return errors.Join(r.bridge.Ready()) })
}
