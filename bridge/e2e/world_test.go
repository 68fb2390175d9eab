// Package e2e_test runs the bridge against a real API server with etcd and a
// real JetStream server on disk.
package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// patience bounds every wait. Nothing is expected to come near it.
const patience = suite.Patience

// cluster is shared by all tests: each has a namespace of its own.
var cluster kubesuite.Cluster

func TestMain(m *testing.M) { suite.Main(m, cluster.Stop) }

// world is a namespace of the cluster and a JetStream server.
type world struct {
	*testenv.Cluster
	t          *testing.T
	namespace  string
	dir        string                // the server's storage
	serverOpts func(*server.Options) // what its server has of its own; may be nil
	server     *server.Server
	nc         *nats.Conn
	js         jetstream.JetStream
}

var namespaces atomic.Int64

func newWorld(t *testing.T) *world { return newWorldWith(t, nil) }

func newWorldWith(t *testing.T, options func(*server.Options)) *world {
	t.Helper()
	w := newNamespace(t)
	w.serverOpts = options
	w.startNATS(suite.FreePort(t))
	w.connect()
	return w
}

// newNamespace is a world without a JetStream server.
func newNamespace(t *testing.T) *world {
	t.Helper()
	w := &world{Cluster: cluster.Get(t), t: t, dir: t.TempDir(), namespace: "ns-" + strconv.FormatInt(namespaces.Add(1), 10)}
	if err := w.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) startNATS(port int) {
	w.t.Helper()
	s, err := server.NewServer(w.serverOptions(port))
	if err != nil {
		w.t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		w.t.Fatal("nats-server does not come up")
	}
	w.server = s
	w.t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
}

func (w *world) serverOptions(port int) *server.Options {
	opts := &server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: w.dir, NoSigs: true, NoLog: true}
	if w.serverOpts != nil {
		w.serverOpts(opts)
	}
	return opts
}

// port is where the server listens, for the next one to take its place.
func (w *world) port() int { return w.server.Addr().(*net.TCPAddr).Port }

func (w *world) connect() {
	w.t.Helper()
	nc, err := nats.Connect(w.server.ClientURL(), nats.Timeout(patience), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		w.t.Fatal(err)
	}
	w.nc = nc
	w.t.Cleanup(nc.Close)
	if w.js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(store.JetStreamTimeout)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) config() bridge.Config {
	return bridge.Config{
		ClusterName:     "test",
		Namespaces:      []string{w.namespace},
		Prefix:          subjects.DefaultPrefix,
		Stream:          subjects.DefaultStream,
		Bucket:          subjects.DefaultBucket,
		StreamReplicas:  1,
		Encoding:        bridge.EncodingJSON,
		App:             kservice.Config{BaseDomain: "apps.example.com"},
		WatchBufferSize: 100,
		PendingBytes:    64 << 20,
		FlushTimeout:    20 * time.Second,
		MaxDelay:        30 * time.Second,
	}
}

// running is a bridge at work.
type running struct {
	t       *testing.T
	bridge  *bridge.Bridge
	metrics *prometheus.Registry
	logs    *observer.ObservedLogs
	cancel  context.CancelFunc
	done    chan error
	nc      *nats.Conn
}

// launch starts a bridge and does not wait for it to be ready.
func (w *world) launch(cfg bridge.Config, kube *rest.Config) *running {
	w.t.Helper()
	return w.launchAt(w.server.ClientURL(), cfg, kube)
}

// launchAt is launch with the servers' addresses given.
func (w *world) launchAt(url string, cfg bridge.Config, kube *rest.Config) *running {
	w.t.Helper()
	return w.launchOn(func(log *zap.Logger) *nats.Conn {
		opts := append(natsconn.Options("appbridge test", log), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0),
			nats.IgnoreDiscoveredServers()) // a gate is not to be gone around
		return must[*nats.Conn](w.t)(nats.Connect(url, opts...))
	}, cfg, kube)
}

// launchOn is launch on a connection of its own, which the bridge's end closes.
func (w *world) launchOn(connect func(*zap.Logger) *nats.Conn, cfg bridge.Config, kube *rest.Config) *running {
	w.t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	var b *bridge.Bridge
	log := zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
		if e.Message == "leading" && b.Ready() == nil {
			w.t.Error("a bridge is ready that has the Lease and has compared nothing")
		}
		return nil
	}))
	nc := connect(log)
	registry := prometheus.NewRegistry()
	if kube == nil {
		kube = rest.CopyConfig(w.Config)
		kube.QPS = -1
	}
	b = must[*bridge.Bridge](w.t)(bridge.New(cfg, kube, nc, log, registry))
	ctx, cancel := context.WithCancel(w.t.Context())
	r := &running{t: w.t, bridge: b, metrics: registry, logs: logs, cancel: cancel, done: make(chan error, 1), nc: nc}
	go func() { r.done <- b.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.done:
			w.t.Log("the bridge returned", err)
		case <-time.After(patience):
			w.t.Error("the bridge does not stop")
		}
		nc.Close()
		if w.t.Failed() {
			for _, e := range logs.All() {
				w.t.Logf("bridge: %s %s %v", e.Level, e.Message, e.ContextMap())
			}
		}
	})
	return r
}

// start starts a bridge and waits until it is ready.
func (w *world) start(cfg bridge.Config) *running {
	w.t.Helper()
	r := w.launch(cfg, nil)
	r.waitReady()
	return r
}

func (r *running) waitReady() {
	r.t.Helper()
	eventually(r.t, "the bridge is ready", func() error {
		select {
		case err := <-r.done:
			r.done <- err
			return fmt.Errorf("it ended: %w", errors.Join(errFatal, err))
		default:
			return r.bridge.Ready()
		}
	})
}

// stop asks the bridge to stop and returns what Run returned.
func (r *running) stop() error {
	r.t.Helper()
	r.cancel()
	return r.ended()
}

// ended waits for Run to return.
func (r *running) ended() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(patience):
		r.t.Fatal("the bridge does not end")
		return nil
	}
}

// metric is the sum of a metric over its labels.
func (r *running) metric(name string) float64 {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += value(m)
		}
	}
	return sum
}

func value(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

// errFatal ends eventually at once.
var errFatal = suite.ErrFatal

// eventually polls until check returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	suite.Eventually(t, patience, what, check)
}

// must returns v or fails the test.
func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
