package bridge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/bridge/projector"
	"github.com/appbridge/appbridge/bridge/publisher"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
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
	appends  jetstream.JetStream // the publisher's, likewise
	log      *zap.Logger
	metrics  *metrics

	source     *watch.Source
	pods       *watch.Pods // there once the cache can be read
	clusterUID string
	conn       *watch.Connection
	lease      lease
	memory     memory // what the sessions hand on
	repairs    bool   // for Verify: it claims no shape

	// auditor compares while the bridge runs; nil if it does not.
	auditor atomic.Pointer[audit.Auditor]

	status     reason                  // why this bridge is not ready, although it may be connected
	unread     reason                  // why the cache cannot be read
	absent     reason                  // that none of the watched namespaces exists
	publishing atomic.Pointer[session] // the session that publishes, for metrics and readiness
}

// New makes a Bridge. The connection must have been made with natsconn.Options
// and stays the caller's; it need not be connected yet, nor Kubernetes
// reachable. Metrics are registered with reg.
func New(cfg Config, kube *rest.Config, nc *nats.Conn, log *zap.Logger, reg prometheus.Registerer) (*Bridge, error) {
	s, err := subjects.New(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	timeouts := []jetstream.JetStreamOpt{jetstream.WithDefaultTimeout(store.JetStreamTimeout), jetstream.WithPublishAsyncTimeout(store.JetStreamTimeout)}
	js, readErr := store.NewJetStream(nc, cfg.JetStreamDomain, timeouts...)
	writes, writeErr := store.NewJetStream(nc, cfg.JetStreamDomain, timeouts...)
	appends, appendErr := publisher.NewJetStream(nc, cfg.JetStreamDomain)
	if err := errors.Join(readErr, writeErr, appendErr); err != nil {
		return nil, fmt.Errorf("use JetStream: %w", err)
	}
	m := newMetrics(reg)
	b := &Bridge{
		cfg: cfg, subjects: s, rest: kube, nc: nc, js: js, writes: writes, appends: appends, log: log, metrics: m,
		source: watch.NewSource(log, app.Keeper{App: cfg.App, Form: cfg.Encoding.contentType(), PodConditions: cfg.PodConditions}, m.reject),
		conn:   watch.NewConnection(watch.NewGroup(cfg.WatchLimits, log), log, watch.NewMetrics(reg)),
	}
	reg.MustRegister(b.conn.Watches)
	b.status.set("starting")
	b.unread.set("starting: the informers are not in sync yet")
	m.watch(reg, b)
	return b, nil
}

// disconnected returns why there is no NATS connection, nil if there is one.
func (b *Bridge) disconnected() error {
	if b.nc.IsConnected() {
		return nil
	}
	// Not the error itself: it names a local port that is another each time.
	return fmt.Errorf("NATS is not connected to %s (%s)", natsconn.ShowURLs(b.nc.Servers()), strings.ToLower(b.nc.Status().String()))
}

// checkConnection returns why JetStream cannot answer, nil if it can; a closed connection is not
// opened again.
func (b *Bridge) checkConnection() error {
	if b.nc.IsClosed() {
		return retry.Permanent(store.ErrClosed)
	}
	return b.disconnected()
}

func (b *Bridge) newStorage() *store.Storage {
	return store.New(b.js, b.subjects, store.Config{
		Stream: b.cfg.Stream, Bucket: b.cfg.Bucket, Prefix: b.cfg.Prefix, ClusterName: b.cfg.ClusterName, ClusterUID: b.clusterUID,
		Replicas: b.cfg.StreamReplicas, MaxAge: b.cfg.StreamMaxAge, MaxBytes: b.cfg.StreamMaxBytes,
		AllowUnsafeStream: b.cfg.AllowUnsafeStream, AcceptReset: b.cfg.AcceptReset,
	}, b.log)
}

// newBucket is the snapshot, read and written through js.
func (b *Bridge) newBucket(js jetstream.JetStream) *store.Bucket {
	return &store.Bucket{
		Entries: app.Entries{
			Name: b.cfg.Bucket, ContentType: b.cfg.Encoding.contentType(),
			MaxSize: func() int { return int(b.nc.MaxPayload()) }, MarkerMaxAge: b.cfg.MarkerMaxAge,
		},
		JS: js, Log: b.log,
	}
}

// newEncoder makes the messages of this bridge, of the size that maxSize allows.
func (b *Bridge) newEncoder(maxSize func() int) *app.Encoder {
	return &app.Encoder{
		Subjects: b.subjects, Source: subjects.Source(b.cfg.ClusterName), Stream: b.cfg.Stream,
		Form: b.cfg.Encoding.contentType(), MaxSize: maxSize,
	}
}

// Run publishes until ctx is done. It waits for a Kubernetes or NATS that is not up yet. When ctx
// is done it flushes what is queued, for FlushTimeout at most, and returns nil if nothing was left.
// Any other return is an error that needs an operator. Run may be called once.
func (b *Bridge) Run(ctx context.Context) error {
	// The informers outlive ctx by the time of the flush.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	end := func() {
		b.unread.set("the bridge has ended: what its informers showed is not kept up any more")
		b.source.Close()
		cancel()
	}
	defer end()

	k, err := watch.NewCluster(b.rest, b.cfg.Namespaces, b.source, b.conn, b.log)
	if err != nil {
		return err
	}
	if b.cfg.LeaderElect {
		k.Lease = types.NamespacedName{Namespace: b.cfg.LeaseNamespace, Name: b.cfg.LeaseName}
	}
	if b.pods, err = watch.NewPods(b.rest, k.Namespaces, b.source, b.conn, b.log); err != nil {
		return err
	}
	b.status.set("waiting for Kubernetes")
	namespaces := watch.NewNamespaces(k)
	uid, err := k.Identify(ctx, namespaces, func(why string) { b.status.set("waiting for Kubernetes: " + why) })
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	b.clusterUID = string(uid)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	k.Hold(uid, stop)
	b.log.Info("watching Kubernetes", zap.String("cluster", b.cfg.ClusterName), zap.String("clusterUID", b.clusterUID))

	informers := make(chan error, 1)
	go func() { informers <- k.Run(work) }()
	var watching sync.WaitGroup
	watching.Go(func() { b.pods.Run(work) })
	b.absent.set(namespaces.Missing())
	watching.Go(func() { namespaces.Watch(work, b.absent.set) })
	err = b.observe(ctx, k)
	end()
	watching.Wait()
	if other, ok := errors.AsType[*app.ConfigError](context.Cause(ctx)); ok {
		err = errors.Join(other, err)
	}
	return errors.Join(err, <-informers)
}

// observe connects the source to the informers and publishes what they show.
func (b *Bridge) observe(ctx context.Context, k *watch.Cluster) error {
	b.status.await("waiting for the informers to sync", b.conn.Cause)
	if err := k.Sync(ctx, b.source); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	b.unread.set("")
	audited, stop := context.WithCancel(ctx)
	var audits sync.WaitGroup
	audits.Go(func() { b.audits(audited, k) })
	defer audits.Wait()
	defer stop()
	return b.lead(ctx, k)
}

// sessions runs one session after the other: while lead lasts, and until stop is done or an error
// is terminal. What one session leaves unpublished the next one finds in waiting.
func (b *Bridge) sessions(lead, stop context.Context, k *watch.Cluster) error {
	defer func() {
		b.source.Disconnect()
		b.memory.pending.Store(nil)
		b.memory.altered.clear() // whether events are still altered shows to the bridge that publishes
		b.memory.claim, b.memory.otherWriters = nil, 0
		b.memory.rival.Store(false)
		b.metrics.publisher.Pending(0, 0)
	}()
	cause := "start"
	pause := retry.NewPause()
	for {
		b.metrics.resyncs.WithLabelValues(cause).Inc()
		started := time.Now()
		err := b.session(lead, stop, k)
		next, over := b.causeOfNext(err, lead, stop)
		if over {
			return b.result(err, cause, lead, stop)
		}
		cause = next
		if cause == causeOtherWriter {
			// A leader that was paused may have lost the Lease, and does not know before its
			// next renewal.
			deposed := b.leads(stop, k)
			if errors.Is(deposed, errDeposed) || errors.Is(deposed, errExpired) {
				b.log.Warn("another replica publishes; this one stands by", zap.Error(deposed))
				return nil
			}
			if deposed == nil {
				b.noteOtherWriter()
			}
		}
		if time.Since(started) > time.Minute {
			pause.Reset()
		}
		wait := pause.NextBackOff()
		b.status.set(b.whyEnded(cause, err))
		b.log.Warn("the session ended; the next one reconciles", zap.String("cause", cause), zap.Duration("in", wait), zap.Error(err))
		select {
		case <-time.After(wait):
		case <-stop.Done():
			return b.result(errStopped, cause, lead, stop)
		case <-lead.Done():
			return nil
		}
	}
}

// causeOtherWriter is the cause of a session after one that ran into events of another writer.
const causeOtherWriter = "other_writer"

// causeOfNext returns why another session follows one that ended with err; over is true if none
// follows.
func (b *Bridge) causeOfNext(err error, lead, stop context.Context) (cause string, over bool) {
	var other *publisher.OtherWriterError
	switch {
	case stop.Err() != nil, lead.Err() != nil, b.nc.IsClosed(), errors.Is(err, errStopped), b.isTerminal(err), isOtherShape(err):
		return "", true
	case errors.As(err, new(*store.AlteredError)):
		return "altered", false
	case errors.Is(err, store.ErrGone):
		b.memory.doubts.forgetFound()
		return "storage_gone", false
	case errors.Is(err, store.ErrLostTail):
		b.memory.doubts.forgetFound()
		return "lost_tail", false
	case errors.Is(err, errAudit):
		return "audit", false
	case errors.Is(err, projector.ErrRemoved):
		return "removed_events", false
	case errors.As(err, &other):
		b.memory.doubts.addFound(other.Found)
		return causeOtherWriter, false
	case errors.Is(err, publisher.ErrOverflow):
		b.source.Disconnect()
		b.memory.pending.Store(nil)
		return "overflow", false
	default:
		return "failure", false
	}
}

// isTerminal reports whether an operator must act on an error before this bridge can go on: any
// ConfigError at the start, a fatal one after a session was live.
func (b *Bridge) isTerminal(err error) bool {
	config, ok := errors.AsType[*app.ConfigError](err)
	return ok && (config.Fatal || !b.memory.lived.Load())
}

// result is what the last session's end means for the process; cause is what that session followed.
func (b *Bridge) result(err error, cause string, lead, stop context.Context) error {
	var other *publisher.OtherWriterError
	switch {
	case b.isTerminal(err):
		return err
	case errors.Is(err, errStopped):
		left := 0
		if q := b.memory.pending.Load(); q != nil {
			left, _ = q.Oldest()
		}
		if left == 0 || cause == causeOtherWriter {
			return nil // the bridge that publishes finds what is left
		}
		return unpublished(left)
	case lead.Err() != nil:
		return nil // the new leader reconciles
	case b.nc.IsClosed():
		if last := b.nc.LastError(); last != nil {
			return fmt.Errorf("%w: %w", store.ErrClosed, last)
		}
		return store.ErrClosed
	case errors.As(err, &other) && stop.Err() != nil:
		b.log.Warn("stopped before the next session; the replica that publishes reconciles", zap.Error(err))
		return nil
	default:
		return err
	}
}

// unpublished is the error of a shutdown that left changes behind.
func unpublished(changes int) error {
	return fmt.Errorf("stopped with %d changes unpublished; the next start publishes them", changes)
}
