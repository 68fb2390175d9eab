package e2e_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// lastBehind waits until the last event of an app is behind a sequence, and returns it.
func (w *world) lastBehind(name string, after uint64) *jetstream.RawStreamMsg {
	w.t.Helper()
	var last *jetstream.RawStreamMsg
	eventually(w.t, fmt.Sprintf("%s has an event behind %d", name, after), func() (err error) {
		last, err = w.stream(subjects.DefaultStream).GetLastMsgForSubject(w.t.Context(), "flyte.apps.events.vision.development."+name+".*")
		if err == nil && last.Sequence <= after {
			err = fmt.Errorf("it is at %d", last.Sequence)
		}
		return err
	})
	return last
}

// The stream loses the only event of an app, and the bucket does not lose its entry. The app is created
// again if it exists. If it is gone, its delete is published.
func TestOnlyEventLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	port := w.port()
	w.create(w.app("early"))
	w.converged(w.waitFor(0, "created early"))
	w.downNATS()
	copied := w.copyStorage()
	w.upNATS(port)
	r.waitReady()
	stays := w.create(w.app("stays"))
	goes := w.create(w.app("goes"))
	w.converged(w.waitFor(0, "created early", "created stays", "created goes"))
	w.downNATS()
	w.restore(copied, subjects.DefaultStream)
	must[any](t)(nil, w.Client.Delete(t.Context(), goes))
	w.upNATS(port)

	created, deleted := w.lastBehind("stays", 3), w.lastBehind("goes", 3)
	if got := created.Header.Get(subjects.CEType); got != subjects.Created.Type() {
		t.Errorf("the app that exists has a %s", got)
	}
	if got := deleted.Header.Get(subjects.CEType); got != subjects.Deleted.Type() {
		t.Errorf("the app that is gone has a %s", got)
	}
	r.waitReady()
	must[*servingv1.Service](t)(w.Progressing(t.Context(), stays))
	updated := w.lastBehind("stays", created.Sequence)
	if got, want := updated.Header.Get(subjects.HeaderPreviousSequence), fmt.Sprint(created.Sequence); got != want {
		t.Errorf("the next event follows %q, want %s", got, want)
	}
	w.create(w.app("goes"))
	if got, want := w.lastBehind("goes", deleted.Sequence).Header.Get(subjects.HeaderPreviousSequence), fmt.Sprint(deleted.Sequence); got != want {
		t.Errorf("the next create follows %q, want %s", got, want)
	}
	w.findsNothing(cfg, quick)
}

// An event is removed from the stream before the bucket can reflect it, and the server has forgotten its
// id. The state is published again, behind the place of the removed event and under another id.
func TestRemovedEventIsFollowed(t *testing.T) {
	t.Parallel()
	w, block := blockable(t)
	r := w.start(w.config())
	tap := w.tapStream()
	port := w.port()
	svc := w.create(w.app("one"))
	w.converged(tap.waitFor("created one"))
	block(true)
	must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	removed := tap.waitFor("created one", "updated one")[1]
	eventually(t, "it is acknowledged", func() error {
		if got := r.metric("appbridge_events_published_total"); got != 2 {
			return fmt.Errorf("%v are", got)
		}
		return nil
	})
	must[any](t)(nil, w.stream(subjects.DefaultStream).Purge(t.Context()))
	w.downNATS()
	w.upNATS(port)
	r.removedFrom(2, 2)
	block(false)
	again := w.lastBehind("one", 2)
	if got := again.Header.Get(subjects.HeaderPreviousSequence); got != "2" {
		t.Errorf("the next event follows %q, want 2", got)
	}
	if got := again.Header.Get(subjects.HeaderMsgID); got == removed.header(subjects.HeaderMsgID) {
		t.Errorf("both events have the id %s", got)
	}
	r.waitReady()
	r.removedOnce(1)
}
