package e2e_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
)

// A server that refuses requests for as many messages as the client makes by itself: the bridge asks
// for fewer. So it does when the limit is lowered while it runs.
func TestMaxRequestBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	limit := func(n int) {
		t.Helper()
		w.restartNATS(func(o *server.Options) { o.JetStreamLimits.MaxRequestBatch = n })
	}
	limit(256)
	cfg := w.audited()
	var want []string
	var apps []*servingv1.Service
	for i := range 20 {
		name := fmt.Sprint("a", i)
		apps = append(apps, w.create(w.app(name)))
		want = append(want, "created "+name)
	}
	r := w.start(cfg)
	w.converged(w.waitFor(0, want...))

	for _, n := range []int{2, 1} {
		before := w.lastSequence()
		limit(n)
		var updates []string
		for i, svc := range apps {
			apps[i] = must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", fmt.Sprint("with a limit of ", n)))
			updates = append(updates, fmt.Sprint("updated a", i))
		}
		w.waitFor(before, updates...)
		r.waitReady()
		w.converged(w.events(0))
		r.completes(1)
	}
	r.foundNothing()
	w.findsNothing(cfg, 0)
}
