package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// newWorldAt is a namespace of the cluster and servers that run elsewhere.
func newWorldAt(t *testing.T, url string) *world {
	t.Helper()
	w := &world{Cluster: cluster.Get(t), t: t, namespace: fmt.Sprintf("ns-%d", namespaces.Add(1))}
	must[any](t)(nil, w.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
	w.nc = must[*nats.Conn](t)(nats.Connect(url, nats.Timeout(patience), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond)))
	t.Cleanup(w.nc.Close)
	w.js = must[jetstream.JetStream](t)(jetstream.New(w.nc, jetstream.WithDefaultTimeout(store.JetStreamTimeout)))
	return w
}

// lives has apps live one after the other, some at a time, until done is
// closed.
func (w *world) lives(done <-chan struct{}, atATime int) *errgroup.Group {
	g := &errgroup.Group{}
	ends := []string{"", "delete", "recreate", "relabel"}
	for i := range atATime {
		g.Go(func() error {
			for n := 0; ; n++ {
				select {
				case <-done:
					return nil
				default:
				}
				l := life{app: w.app(fmt.Sprintf("app-%d-%d", i, n)), end: ends[(i+n)%len(ends)]}
				if err := w.live(l, 8); err != nil {
					return err
				}
				select {
				case <-time.After(100 * time.Millisecond): // not to starve the servers of the test's machine
				case <-done:
				}
			}
		})
	}
	return g
}

// Three servers with three replicas of everything: the stream's leader dies,
// the servers are restarted one by one, the leader is parted from the others
// and comes back, and changes flow all the time. Each state is in the stream
// once and in order.
func TestThreeServers(t *testing.T) {
	t.Parallel()
	servers := must[*testenv.NATS](t)(testenv.StartNATS(t.Context(), testenv.NATSOptions{Servers: 3, Logf: t.Logf}))
	t.Cleanup(func() {
		if err := servers.Close(); err != nil {
			t.Error(err)
		}
	})
	w := newWorldAt(t, servers.URL())
	cfg := w.config()
	cfg.StreamReplicas = 3
	cfg.WatchBufferSize = 10000 // no merging: every state is counted
	r := w.launchAt(servers.URL(), cfg, nil)
	r.waitReady()
	recorder := must[*testenv.Recorder](t)(w.Record(t.Context(), w.namespace))
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	healthy := func() {
		t.Helper()
		must[any](t)(nil, servers.WaitHealthy(ctx))
	}
	leader := func() int {
		t.Helper()
		return must[int](t)(servers.Leader(ctx, cfg.Stream))
	}
	// flows waits until the stream goes on.
	flows := func() {
		t.Helper()
		published := r.metric("appbridge_events_published_total")
		eventually(t, "events flow", func() error {
			if now := r.metric("appbridge_events_published_total"); now < published+10 {
				return fmt.Errorf("%v since", now-published)
			}
			return nil
		})
	}
	healthy()
	began := time.Now()
	phase := func(name string) { t.Logf("%s: %s", name, time.Since(began).Round(time.Millisecond)) }
	done := make(chan struct{})
	load := w.lives(done, 3)
	flows()

	phase("flows")
	killed := leader()
	must[any](t)(nil, servers.Kill(killed))
	flows()
	must[any](t)(nil, servers.Start(ctx, killed))
	healthy()
	phase("leader killed and back")
	for i := range servers.Size() {
		must[any](t)(nil, servers.Stop(i))
		must[any](t)(nil, servers.Start(ctx, i))
		healthy()
	}
	flows()
	phase("all restarted")
	isolated := leader()
	must[any](t)(nil, servers.Isolate(isolated))
	eventually(t, "another server leads the stream", func() error {
		if now, err := servers.Leader(ctx, cfg.Stream); err != nil || now == isolated {
			return fmt.Errorf("server %d does: %w", now, err)
		}
		return nil
	})
	must[any](t)(nil, servers.Heal())
	healthy()
	flows()
	phase("leader isolated and back")
	close(done)
	must[any](t)(nil, load.Wait())
	observations := w.finish(recorder)
	w.holdsAll(observations)
	r.waitReady()
	must[any](t)(nil, r.stop())
	healthy()
	phase("all there")
	events := w.events(0)
	w.checkOrder(w.truth(observations), events)
	w.checkHeaders(events)
	w.converged(events)
	t.Logf("%d events, %v retries, %v refused appends, %v comparisons", len(events), r.metric("appbridge_publish_retries_total"),
		r.metric("appbridge_fence_conflicts_total"), r.metric("appbridge_resyncs_total"))
}
