package e2e_test

import (
	"fmt"
	"testing"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// The stream and the bucket come back without their last messages, and other messages take those
// sequences before the bridge reaches them. A change that follows does not refer to a lost event as if the
// stream had it: the loss is named first.
func TestChangeAtTheSameEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	one := w.create(w.app("one"))
	w.converged(w.waitFor(0, "created one"))
	port := w.port()
	w.downNATS()
	copied := w.copyStorage()
	w.upNATS(port)
	r.waitReady()
	one = must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
	w.converged(w.waitFor(0, "created one", "updated one"))
	bucket := w.streamState(subjects.BucketStream(cfg.Bucket)).LastSeq

	w.downNATS()
	w.restore(copied, subjects.DefaultStream, subjects.BucketStream(cfg.Bucket))
	w.elsewhere(func() {
		w.plant("flyte.apps.events.foreign", nil, "")
		for w.streamState(subjects.BucketStream(cfg.Bucket)).LastSeq < bucket {
			entry := w.entries()[w.app("one").ID()]
			w.plant(entry.Subject, told(entry.Header), string(entry.Data))
		}
	})
	w.upNATS(port)
	must[*servingv1.Service](t)(w.Failed(t.Context(), one, "Broken", "it is"))
	eventually(t, "it publishes the change, or names the loss", func() error {
		if r.logs.FilterMessage(lostEvents).Len() > 0 {
			return nil
		}
		last, err := w.stream(cfg.Stream).GetLastMsgForSubject(t.Context(), "flyte.apps.events.vision.>")
		if err == nil && last.Sequence > 2 {
			if got := last.Header.Get(subjects.HeaderPreviousSequence); got != "1" {
				err = fmt.Errorf("%w: the event at %d follows %s, where the stream has %s", errFatal, last.Sequence, got, w.messages(cfg.Stream)[2].Subject)
			}
			return err
		}
		return errNotYet
	})
}
