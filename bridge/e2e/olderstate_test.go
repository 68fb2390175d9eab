package e2e_test

import (
	"slices"
	"testing"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
)

// One of two bridges is held up with an append of a state, while the other one publishes that state and
// newer ones. The older state is not published again behind them, and neither is anything else.
func TestOlderState(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*world, *servingv1.Service)
		want   []string
	}{
		"a newer state": {func(w *world, svc *servingv1.Service) {
			must[*servingv1.Service](w.t)(w.Failed(w.t.Context(), svc, "Broken", "it is"))
		}, []string{"updated one"}},
		"deleted": {func(w *world, svc *servingv1.Service) {
			must[any](w.t)(nil, w.Client.Delete(w.t.Context(), svc))
		}, []string{"deleted one"}},
		"another object": {func(w *world, svc *servingv1.Service) {
			must[any](w.t)(nil, w.Client.Delete(w.t.Context(), svc))
			w.create(w.app("one"))
		}, []string{"deleted one", "created one"}},
		"unlabelled and labelled": {func(w *world, svc *servingv1.Service) {
			svc = must[*servingv1.Service](w.t)(w.SetLabel(w.t.Context(), svc, "flyte.org/app-managed", ""))
			must[*servingv1.Service](w.t)(w.SetLabel(w.t.Context(), svc, "flyte.org/app-managed", "true"))
		}, []string{"deleted one", "created one"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := w.config()
			first, second := w.natsGate(), w.natsGate()
			w.startAt(first, cfg)
			late := w.startAt(second, cfg)
			idle := func() {
				t.Helper()
				eventually(t, "the late bridge has nothing to do", func() error {
					if late.metric("appbridge_changes_pending") > 0 {
						return errNotYet
					}
					return late.bridge.Ready()
				})
			}
			svc := w.create(w.app("one"))
			want := []string{"created one"}
			w.converged(w.waitFor(0, want...))
			idle()
			const append = "PUB flyte.apps.events.vision."
			early, held := first.holdAt(append), second.holdAt(append)
			svc = must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
			reached(t, "the first bridge appends", early)
			reached(t, "the late bridge appends", held)
			first.release()
			want = slices.Concat(want, []string{"updated one"})
			w.waitFor(0, want...)
			test.change(w, svc)
			want = slices.Concat(want, test.want)
			w.waitFor(0, want...)
			second.release()
			w.create(w.app("two"))
			want = slices.Concat(want, []string{"created two"})
			w.waitFor(0, want...)
			idle()
			must[any](t)(nil, late.stop())
			events := w.waitFor(0, want...)
			w.checkHeaders(events)
			w.converged(events)
		})
	}
}
