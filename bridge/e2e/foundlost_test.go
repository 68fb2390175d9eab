package e2e_test

import (
	"errors"
	"fmt"
	"testing"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// A session ends as another bridge's event is in the stream, and before the next one looks, the stream
// and the bucket lose that event. It counts as published only as long as the stream has it.
func TestFoundEventLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gate, port := w.natsGate(), w.port()
	r := w.startAt(gate, w.config())
	svc := w.create(w.app("one"))
	w.converged(w.waitFor(0, "created one"))
	w.downNATS()
	before := w.copyStorage()
	w.upNATS(port)
	r.waitReady()

	sent := gate.holdAt("PUB flyte.apps.events.")
	svc = must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	reached(t, "it appends", sent)
	other := w.start(w.config())
	w.waitFor(0, "created one", "updated one")
	must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
	w.waitFor(0, "created one", "updated one", "updated one")
	must[any](t)(nil, other.stop())
	next := gate.holdAt("flyte.apps.events.lost") // a session starts
	gate.release()
	reached(t, "the next session starts", next)
	w.downNATS()
	w.restore(before, subjects.DefaultStream, subjects.BucketStream(subjects.DefaultBucket))
	w.upNATS(port)
	gate.release()
	r.waitReady()
	eventually(t, "the last state is published", func() error {
		last, err := w.stream(subjects.DefaultStream).GetLastMsgForSubject(t.Context(), "flyte.apps.events.vision.development.one.*")
		if err == nil && last.Header.Get(subjects.HeaderAppStatus) != "FAILED" {
			err = errors.Join(fmt.Errorf("the last event is at %d", last.Sequence), r.bridge.Ready())
		}
		return err
	})
}
