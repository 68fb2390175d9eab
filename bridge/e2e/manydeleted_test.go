package e2e_test

import (
	"fmt"
	"testing"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// More apps are deleted than the bridge remembers. One of the first to go is created again: it follows
// its delete, whether that is in the stream or its marker alone is left, and no bridge starts between.
func TestManyDeletedApps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	const apps = 1200
	all := func(int) bool { return true }
	must[any](t)(nil, w.changeAll(w.manyApps(apps), "", all))
	w.create(w.app("last"))
	w.endsAt(2*apps + 1)
	w.converged(w.events(0))
	deletes := map[string]uint64{}
	for _, e := range w.events(0) {
		deletes[e.id.Name] = e.sequence // the last one
	}
	for i, purged := range []bool{false, true} {
		if purged {
			must[any](t)(nil, w.stream(cfg.Stream).Purge(t.Context()))
		}
		for _, n := range []int{10 * i, apps - 1 - i} { // long gone, and just gone
			name := fmt.Sprintf("app-%03d", n)
			svc := w.create(w.app(name))
			created := w.lastBehind(name, 2*apps+1)
			if got, want := created.Header.Get(subjects.HeaderPreviousSequence), fmt.Sprint(deletes[name]); got != want {
				t.Errorf("%s follows %q, want %s (purged: %v)", name, got, want, purged)
			}
			if got := created.Header.Get(subjects.CEType); got != subjects.Created.Type() {
				t.Errorf("%s has a %s", name, got)
			}
			must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
			updated := w.lastBehind(name, created.Sequence)
			if got, want := updated.Header.Get(subjects.HeaderPreviousSequence), fmt.Sprint(created.Sequence); got != want {
				t.Errorf("the update of %s follows %q, want %s", name, got, want)
			}
		}
	}
	if got := r.metric("appbridge_resyncs_total"); got != 1 {
		t.Errorf("%v resyncs, want none beside the start", got)
	}
	r.waitReady()
	w.findsNothing(cfg, quick)
}
