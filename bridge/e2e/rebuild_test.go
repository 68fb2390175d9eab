package e2e_test

import (
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// A bucket that was deleted is written from the last events of each app, not from its whole history.
func TestRebuildOfABusyApp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	const changes = 30
	svc := w.create(w.app("busy"))
	w.failsAgain(svc, changes)
	quiet := w.create(w.app("quiet"))
	w.endsAt(changes + 2)
	w.converged(w.events(0))
	must[any](t)(nil, r.stop())
	must[any](t)(nil, w.js.DeleteKeyValue(t.Context(), cfg.Bucket))

	var writes atomic.Int64
	sub := must[*nats.Subscription](t)(w.nc.Subscribe(subjects.BucketFilter(cfg.Bucket), func(*nats.Msg) { writes.Add(1) }))
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	must[any](t)(nil, w.nc.Flush())
	w.start(cfg)
	w.converged(w.events(0))
	must[any](t)(nil, w.nc.Flush())
	if got := writes.Load(); got < 2 || got > 6 {
		t.Errorf("%d writes for two apps, want three for each at most", got)
	}
	must[*servingv1.Service](t)(w.Progressing(t.Context(), quiet))
	w.endsAt(changes + 3)
	events := w.events(0)
	w.checkHeaders(events)
	w.converged(events)
}
