package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// A change whose append was sent and is not acknowledged does not merge with those that follow: they
// merge among themselves, and each of the two events shows its own state.
func TestSentChangeDoesNotMerge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.WatchBufferSize = 1
	gate := w.natsGate()
	r := w.startAt(gate, cfg)
	svc := w.create(w.app("one"))
	w.converged(w.waitFor(0, "created one"))

	gate.deafen()
	svc = must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "first"))
	w.waitFor(0, "created one", "updated one")
	for i := range 4 {
		svc = must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", fmt.Sprint("then ", i)))
	}
	eventually(t, "updates are merged", func() error {
		if got := r.metric("appbridge_updates_merged_total"); got != 3 {
			return fmt.Errorf("%v are", got)
		}
		return nil
	})
	gate.hear()
	events := w.waitFor(0, "created one", "updated one", "updated one")
	for i, want := range []string{"", "", "3"} {
		if got := events[i].header(subjects.HeaderMergedUpdates); got != want {
			t.Errorf("event %d merged %q updates, want %q", i+1, got, want)
		}
	}
	w.checkHeaders(events)
	w.converged(events)
}

// The acknowledgement of an event is lost with the connection, and the event is removed from the stream
// before the bridge looks. The server rejects its id. The state is published under another id, behind
// the place of the removed event.
func TestRetryOfARemovedEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	gate := w.natsGate()
	r := w.startAt(gate, cfg)
	tap := w.tapStream()
	svc := w.create(w.app("one"))
	w.converged(tap.waitFor("created one"))

	gate.deafen()
	svc = must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	tap.waitFor("created one", "updated one")
	must[any](t)(nil, w.stream(cfg.Stream).Purge(t.Context()))
	gate.cut()
	gate.hear()
	events := tap.waitFor("created one", "updated one", "updated one")
	second, third := events[1], events[2]
	if a, b := second.header(subjects.HeaderResourceVersion), third.header(subjects.HeaderResourceVersion); a != b || a != svc.ResourceVersion {
		t.Errorf("the events show version %s and %s, want %s", a, b, svc.ResourceVersion)
	}
	if second.header(subjects.HeaderMsgID) == third.header(subjects.HeaderMsgID) || third.header(subjects.HeaderPreviousSequence) != "2" {
		t.Errorf("the events have the ids %s and %s; the second follows %s", second.header(subjects.HeaderMsgID), third.header(subjects.HeaderMsgID), third.header(subjects.HeaderPreviousSequence))
	}
	w.converged(events)
	must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
	events = tap.waitFor("created one", "updated one", "updated one", "updated one")
	w.converged(events)
	if got := events[3].header(subjects.HeaderPreviousSequence); got != "3" {
		t.Errorf("the next event follows %s, want 3", got)
	}
	r.waitReady()
}

// A client takes the place of one of the bridge's writes in the bucket: that write is refused, and the
// one behind it, which expects a message there, is not. The entry of the refused write is made good.
func TestDisplacedWriteOfABridge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	gate := w.natsGate()
	r := w.startAt(gate, cfg)
	w.create(w.app("other"))
	want := []string{"created other"}
	w.converged(w.waitFor(0, want...))
	other := w.entries()[w.app("other").ID()]
	bucket := w.stream(subjects.BucketStream(cfg.Bucket))
	displaced := false
	for try := 0; try < 10 && !displaced; try++ { // until both writes are on their way in time
		names := []string{fmt.Sprint("a", try), fmt.Sprint("b", try)}
		gate.deafen()
		for _, name := range names {
			w.create(w.app(name))
			want = append(want, "created "+name)
			w.waitFor(0, want...)
		}
		end := must[*jetstream.StreamInfo](t)(bucket.Info(t.Context())).State.LastSeq
		writes := gate.holdAt("PUB $KV.flyte-apps.")
		gate.hear()
		reached(t, "it writes the bucket", writes)
		w.plant(other.Subject, told(other.Header), string(other.Data))
		gate.release()
		events := w.waitFor(0, want...)
		w.converged(events)
		entries := w.entries()
		displaced = entries[w.app(names[1]).ID()].Sequence == end+2 && entries[w.app(names[0]).ID()].Sequence > end+2
	}
	t.Logf("the second write came behind a refused one: %v", displaced)
	r.waitReady()
}

// An append that was sent has no answer when the hard limit of what may wait is passed and everything
// that waits is dropped. Its event is in the stream once, and what was dropped is found.
func TestSentAtTheHardLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.PendingBytes = 4 << 10
	gate := w.natsGate()
	r := w.startAt(gate, cfg)
	svc := w.create(w.app("one"))
	w.converged(w.waitFor(0, "created one"))
	gate.deafen()
	svc = must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	want := []string{"created one", "updated one"}
	w.waitFor(0, want...)
	for i := range 20 {
		name := fmt.Sprint("app-", i)
		w.create(w.app(name))
		want = append(want, "created "+name)
	}
	eventually(t, "the limit is passed", func() error {
		if r.metric("appbridge_changes_dropped_total") == 0 {
			return errNotYet
		}
		return nil
	})
	gate.hear()
	w.waitFor(0, want...)
	r.waitReady()
	must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
	events := w.waitFor(0, append(want, "updated one")...)
	w.checkHeaders(events)
	w.converged(events)
	noStateTwice(t, events)
}

// The connection is lost with an append on it, and before the bridge is connected again the stream's
// limit of a message is lowered below that event, and another message is stored. The event is made
// smaller, although the outcome of its first try was open.
func TestUnansweredAndTooLarge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	gate := w.natsGate()
	r := w.startAt(gate, cfg)
	text := func(i int) string { return fmt.Sprint(i, strings.Repeat(" long", 600)) }
	svc := w.create(w.app("one"))
	svc = must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", text(1)))
	w.converged(w.waitFor(0, "created one", "updated one"))
	sent := gate.holdAt("PUB flyte.apps.events.vision.")
	svc = must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", text(2)))
	reached(t, "it appends", sent)
	w.changeStream(cfg.Stream, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 7000 })
	foreign := []uint64{w.plant("flyte.apps.events.foreign", nil, "")}
	gate.cut()
	gate.release()
	events := w.waitRead(foreign, "created one", "updated one", "updated one")
	if got := events[2].header(subjects.HeaderTruncated); got != subjects.TruncatedOldApp {
		t.Errorf("the event is truncated by %q, want %s", got, subjects.TruncatedOldApp)
	}
	must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "briefly"))
	events = w.waitRead(foreign, "created one", "updated one", "updated one", "updated one")
	if got, want := events[3].header(subjects.HeaderPreviousSequence), fmt.Sprint(events[2].sequence); got != want {
		t.Errorf("the next event follows %q, want %s", got, want)
	}
	w.converged(events)
	r.waitReady()
}

// However few changes of an app may wait, a create and a delete are events of their own, and updates of
// one object merge with no other object's.
func TestMergeKeepsCreatesAndDeletes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.WatchBufferSize = 1
	r := w.start(cfg)
	port := w.port()
	w.downNATS()
	for range 2 {
		svc := w.create(w.app("one"))
		for i := range 3 {
			svc = must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", fmt.Sprint("try ", i)))
		}
		must[any](t)(nil, w.Client.Delete(t.Context(), svc))
	}
	must[*servingv1.Service](t)(w.Progressing(t.Context(), w.create(w.app("one"))))
	eventually(t, "updates are merged", func() error {
		if got := r.metric("appbridge_updates_merged_total"); got != 4 {
			return fmt.Errorf("%v are", got)
		}
		return nil
	})
	w.upNATS(port)
	w.waitFor(0, "created one", "updated one", "deleted one", "created one", "updated one", "deleted one", "created one", "updated one")
	events := w.events(0)
	for i, want := range []struct {
		kind   subjects.EventKind
		merged string
	}{
		{subjects.Created, ""},
		{subjects.Updated, "2"},
		{subjects.Deleted, ""},
		{subjects.Created, ""},
		{subjects.Updated, "2"},
		{subjects.Deleted, ""},
		{subjects.Created, ""},
		{subjects.Updated, ""},
	} {
		if e := events[i]; e.kind != want.kind || e.header(subjects.HeaderMergedUpdates) != want.merged {
			t.Errorf("event %d is a %s that merged %q, want a %s and %q", i+1, e.kind, e.header(subjects.HeaderMergedUpdates), want.kind, want.merged)
		}
	}
	w.checkHeaders(events)
	w.converged(events)
}
