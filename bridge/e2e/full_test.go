package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// A stream at its limit that refuses what is new: nothing is lost, the bridge
// says after a while that it is stuck and why, and goes on in order when there
// is room.
func TestStreamFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must[jetstream.Stream](t)(w.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: subjects.DefaultStream, Subjects: []string{"flyte.apps.events.>"}, Storage: jetstream.FileStorage,
		MaxMsgs: 3, Discard: jetstream.DiscardNew,
	}))
	cfg := w.config()
	cfg.MaxDelay = 300 * time.Millisecond
	r := w.start(cfg)
	recorder := must[*testenv.Recorder](t)(w.Record(t.Context(), w.namespace))
	one, two := w.create(w.app("one")), w.create(w.app("two"))
	must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
	w.converged(w.waitFor(0, "created one", "created two", "updated one"))
	r.waitReady()

	for i := range 3 {
		must[*servingv1.Service](t)(w.Failed(t.Context(), one, "Broken", fmt.Sprint("try ", i)))
	}
	must[any](t)(nil, w.Client.Delete(t.Context(), two))
	w.create(w.app("two"))
	w.create(w.app("three"))
	r.notReady("maximum messages exceeded")
	eventually(t, "six changes wait", func() error {
		if got := r.metric("appbridge_changes_pending"); got != 6 {
			return fmt.Errorf("%v do", got)
		}
		return nil
	})
	w.waitFor(0, "created one", "created two", "updated one")

	w.changeStream(cfg.Stream, func(c *jetstream.StreamConfig) { c.MaxMsgs = 100 })
	observations := w.finish(recorder)
	w.holdsAll(observations)
	r.waitReady()
	events := w.events(0)
	w.checkOrder(w.truth(observations), events)
	w.checkHeaders(events)
	allSynthesized(t, events, false)
	w.converged(events)
	for _, e := range events {
		if e.header(subjects.HeaderMergedUpdates) != "" {
			t.Errorf("sequence %d has merged updates", e.sequence)
		}
	}
	if got := r.metric("appbridge_resyncs_total"); got != 1 {
		t.Errorf("%v resyncs for a full stream, want none beside the start", got)
	}
}
