package e2e_test

import (
	"testing"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// While no bridge runs, somebody writes an app's entry again with a sequence in its header that another
// app's later event has, and all else as it was. The app's next event refers to the event before it in
// the stream, not to the forged one.
func TestForgedLaterSequence(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]struct {
		down, elected bool // the app changes while no bridge runs; with leader election
	}{
		"changed while down": {down: true}, "changed later": {}, "changed later, elected": {elected: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := w.config()
			if change.elected {
				cfg = w.elected("me")
			}
			r := w.start(cfg)
			one := w.create(w.app("one"))
			w.waitFor(0, "created one")
			two := w.create(w.app("two"))
			w.waitFor(0, "created one", "created two")
			must[*servingv1.Service](t)(w.Progressing(t.Context(), two))
			w.converged(w.waitFor(0, "created one", "created two", "updated two"))
			must[any](t)(nil, r.stop())
			entry := w.entries()[w.app("one").ID()]
			w.plant(entry.Subject, told(entry.Header, subjects.HeaderEventSequence, "3"), string(entry.Data))
			if !change.down {
				w.start(cfg)
			}
			must[*servingv1.Service](t)(w.Failed(t.Context(), one, "Broken", "it is"))
			if change.down {
				w.start(cfg)
			}
			events := w.waitFor(0, "created one", "created two", "updated two", "updated one")
			w.checkHeaders(events)
			if got := events[3].header(subjects.HeaderPreviousSequence); got != "1" {
				t.Errorf("the update follows sequence %s, which is %s", got, events[2])
			}
			w.converged(events)
			w.findsNothing(cfg, quick)
		})
	}
}
