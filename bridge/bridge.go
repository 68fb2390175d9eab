package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/subjects"
)

// Bridge watches the Knative Services of Flyte apps and publishes every
// change of an app. Make one with New; its methods are safe for concurrent use.
type Bridge struct {
	cfg      Config
	subjects subjects.Subjects
	rest     *rest.Config
	nc       *nats.Conn
	js       jetstream.JetStream
	writes   jetstream.JetStream // the projector's: pending writes of its own
	log      *zap.Logger
	metrics  *metrics

	source     *source
	clusterUID string
	highest    uint64 // sequence of the newest acknowledged event of past sessions
	// found are the last messages that appends of past sessions ran into.
	found map[subjects.AppID]*storedMessage
	lived atomic.Bool // a session has been live

	status atomic.Pointer[string]  // why not ready; nil while live
	newest atomic.Pointer[session] // the session that is live, for metrics and readiness
}

// New makes a Bridge. The connection must have been made with ConnectOptions
// and stays the caller's; it need not be connected yet, nor Kubernetes
// reachable. Metrics are registered with reg.
func New(cfg Config, kube *rest.Config, nc *nats.Conn, log *zap.Logger, reg prometheus.Registerer) (*Bridge, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s, err := subjects.New(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(jetStreamTimeout))
	if err != nil {
		return nil, fmt.Errorf("use JetStream: %w", err)
	}
	writes, err := jetstream.New(nc, jetstream.WithDefaultTimeout(jetStreamTimeout), jetstream.WithPublishAsyncTimeout(jetStreamTimeout))
	if err != nil {
		return nil, fmt.Errorf("use JetStream: %w", err)
	}
	m := newMetrics(reg)
	b := &Bridge{
		cfg: cfg, subjects: s, rest: kube, nc: nc, js: js, writes: writes, log: log, metrics: m,
		source: newSource(log, m),
		found:  map[subjects.AppID]*storedMessage{},
	}
	b.setStatus("starting")
	m.watch(reg, b)
	return b, nil
}

// Ready returns nil once the informers are in sync and the differences found
// at the start are published, while NATS is connected and the bucket can be
// written. Otherwise the error says in one line what is missing.
func (b *Bridge) Ready() error {
	if err := b.disconnected(); err != nil {
		return err
	}
	if status := b.status.Load(); status != nil {
		return errors.New(*status)
	}
	if s := b.newest.Load(); s != nil && s.projector.failures.Load() > 3 {
		return fmt.Errorf("the bucket cannot be written, it stands at sequence %d", s.projector.written.Load())
	}
	return nil
}

// errClosed says that the NATS client has given up, as it does when the server
// refuses its credentials.
var errClosed = errors.New("the NATS connection is closed")

// disconnected says why there is no NATS connection, nil if there is one.
func (b *Bridge) disconnected() error {
	if b.nc.IsConnected() {
		return nil
	}
	var servers []string
	for _, server := range b.nc.Servers() {
		if u, err := url.Parse(server); err == nil {
			servers = append(servers, u.Redacted())
		}
	}
	// Not the error itself: it names a local port that is another each time.
	return fmt.Errorf("NATS is not connected to %s (%s)", strings.Join(servers, ", "), strings.ToLower(b.nc.Status().String()))
}

func (b *Bridge) setStatus(why string) {
	if why == "" {
		b.status.Store(nil)
		return
	}
	b.status.Store(&why)
}

// snapshotLag is how many acknowledged events the bucket does not reflect yet.
func (b *Bridge) snapshotLag() uint64 {
	s := b.newest.Load()
	if s == nil {
		return 0
	}
	if highest, written := s.publisher.highest.Load(), s.projector.written.Load(); highest > written {
		return highest - written
	}
	return 0
}

// Run publishes until ctx is done. It waits for a Kubernetes or NATS that is
// not up yet. When ctx is done it flushes what is queued, for FlushTimeout at
// most, and returns nil if nothing was left. Any other return is an error that
// does not go away by itself. Run may be called once.
func (b *Bridge) Run(ctx context.Context) error {
	// The informers outlive ctx by the time of the flush.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()

	k, err := newKube(b.rest, b.cfg.Namespaces, b.log, b.metrics)
	if err != nil {
		return err
	}
	if b.cfg.LeaderElect {
		k.lease = types.NamespacedName{Namespace: b.cfg.LeaseNamespace, Name: b.cfg.LeaseName}
	}
	b.setStatus("waiting for Kubernetes")
	uid, err := k.identify(ctx, func(why string) { b.setStatus("waiting for Kubernetes: " + why) })
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	b.clusterUID = string(uid)
	b.log.Info("watching Kubernetes", zap.String("cluster", b.cfg.ClusterName), zap.String("clusterUID", b.clusterUID))

	informers := make(chan error, 1)
	go func() { informers <- k.cache.Start(work) }()
	err = b.observe(ctx, k)
	cancel()
	return errors.Join(err, <-informers)
}

// observe connects the source to the informers and publishes what they show.
func (b *Bridge) observe(ctx context.Context, k *kube) error {
	b.setStatus("waiting for the informers to sync")
	if err := k.watch(ctx, b.source); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	return b.lead(ctx, k)
}

// sessions runs one session after the other: while lead lasts, and until stop
// is done or something is wrong that does not go away.
func (b *Bridge) sessions(lead, stop context.Context, k *kube) error {
	cause := "start"
	pause := newPause()
	for {
		b.metrics.resyncs.WithLabelValues(cause).Inc()
		started := time.Now()
		err := b.session(lead, stop, k)
		b.setStatus("not publishing")
		var config *ConfigError
		var other *otherWriterError
		switch {
		case errors.Is(err, errStopped):
			return nil
		case errors.As(err, &config) && (config.Fatal || !b.lived.Load()):
			return err
		case lead.Err() != nil:
			return nil // whoever leads now compares for itself
		case b.nc.IsClosed():
			if last := b.nc.LastError(); last != nil {
				return fmt.Errorf("%w: %w", errClosed, last)
			}
			return errClosed
		case errors.As(err, &other) && stop.Err() != nil:
			b.log.Warn("stopped before comparing again; whoever else publishes does that", zap.Error(err))
			return nil
		case stop.Err() != nil:
			return err
		case errors.Is(err, errStorageGone):
			cause = "storage_gone"
		case other != nil:
			cause = "other_writer"
			maps.Copy(b.found, other.found)
		case errors.Is(err, errOverflow):
			cause = "overflow"
		default:
			cause = "failure"
		}
		if time.Since(started) > time.Minute {
			pause.Reset()
		}
		wait := pause.NextBackOff()
		b.setStatus(err.Error())
		b.log.Warn("compares the cluster with the stream again", zap.String("cause", cause), zap.Duration("in", wait), zap.Error(err))
		select {
		case <-time.After(wait):
		case <-stop.Done():
			return nil
		case <-lead.Done():
			return nil
		}
	}
}
