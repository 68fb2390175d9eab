package e2e_test

import (
	"fmt"
	"testing"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// Somebody writes an app's entry again with another event's sequence in its header, and all else as it
// was. The app's next event refers to the event before it in the stream, not to the forged one.
func TestForgedSequence(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		sequence string // an earlier event of the app, or one of another app
		up       bool   // the bridge runs
	}{
		{"1", true},
		{"2", true},
		{"4", true},
		{"1", false},
		{"2", false},
		{"4", false},
	} {
		t.Run(fmt.Sprintf("sequence %s, the bridge runs: %v", test.sequence, test.up), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := w.config()
			r := w.start(cfg)
			want := []string{"created one"}
			one := w.create(w.app("one"))
			w.waitFor(0, want...)
			two := w.create(w.app("two"))
			want = append(want, "created two")
			w.waitFor(0, want...)
			one = must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
			want = append(want, "updated one")
			w.waitFor(0, want...)
			must[*servingv1.Service](t)(w.Progressing(t.Context(), two))
			want = append(want, "updated two")
			w.converged(w.waitFor(0, want...))
			if !test.up {
				must[any](t)(nil, r.stop())
			}
			entry := w.entries()[w.app("one").ID()]
			w.plant(entry.Subject, told(entry.Header, subjects.HeaderEventSequence, test.sequence), string(entry.Data))
			if !test.up {
				w.start(cfg)
			}
			must[*servingv1.Service](t)(w.Failed(t.Context(), one, "Broken", "it is"))
			events := w.waitFor(0, append(want, "updated one")...)
			w.checkHeaders(events)
			w.converged(events)
		})
	}
}
