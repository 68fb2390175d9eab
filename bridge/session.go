package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/subjects"
)

// storageCheck is how often a session looks whether its stream and bucket are
// still there.
const storageCheck = 3 * time.Second

// errStopped ends a session that was asked to stop and has flushed.
var errStopped = errors.New("stopped")

// session is one stretch of publishing: look at what was published, compare
// it with the cluster, publish the difference, then everything that happens.
// It ends when lead does, when stop is done and what is queued is flushed, or
// with an error after which the next session has to compare anew.
func (b *Bridge) session(lead, stop context.Context, k *kube) error {
	ctx, cancel := context.WithCancelCause(lead)
	defer cancel(nil)
	// Until it is live there is nothing to flush.
	live := context.AfterFunc(stop, func() { cancel(errStopped) })
	g, ctx := errgroup.WithContext(ctx)

	err := b.start(ctx, cancel, stop, k, g, live)
	if err != nil {
		cancel(err)
	}
	waited := g.Wait()
	b.source.disconnect()
	if pub := b.publisher.Load(); pub != nil {
		b.highest = max(b.highest, pub.highest.Load())
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errStopped):
		return nil
	case lead.Err() != nil:
		return nil
	case err != nil:
		return err
	case waited != nil:
		return waited
	default:
		return cause
	}
}

// start brings a session to life; what it leaves running belongs to g.
func (b *Bridge) start(ctx context.Context, cancel context.CancelCauseFunc, stop context.Context, k *kube, g *errgroup.Group, live func() bool) error {
	store := &storage{js: b.js, log: b.log, cfg: b.cfg, subjects: b.subjects, clusterUID: b.clusterUID}
	snapshots := &bucket{js: b.writes, name: b.cfg.Bucket, form: b.cfg.Encoding.contentType(), log: b.log}

	b.setStatus("waiting for JetStream")
	var snap *snapshot
	var info *jetstream.StreamInfo
	if err := b.until(ctx, "JetStream", func(ctx context.Context) (err error) {
		snap, info, err = b.open(ctx, store, snapshots)
		return err
	}); err != nil {
		return err
	}

	proj := newProjector(b.nc, b.writes, snapshots, b.cfg.Stream, b.subjects, snap, b.log, b.metrics)
	b.projector.Store(proj)
	g.Go(func() error { return proj.run(ctx, snap) })
	b.setStatus("reading the stream past the bucket")
	select {
	case <-proj.caughtUp:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	// What was published is taken before the cluster is listed, and the caches
	// reach the list: so no record is newer than what it is compared with. What
	// others append after this, the fence finds.
	records := proj.take()
	for id, m := range b.found {
		correct(records, id, m, b.subjects)
	}
	b.setStatus("comparing the cluster with what was published")
	b.source.noteDeletes()
	var listings []listing
	if err := b.until(ctx, "Kubernetes", func(ctx context.Context) (err error) {
		listings, err = k.list(ctx)
		return err
	}); err != nil {
		return err
	}
	if err := b.source.reach(ctx, listings); err != nil {
		return err
	}
	if err := checkHistory(records, serviceVersion(listings), resetSequence(info)); err != nil {
		if !b.cfg.AcceptReset {
			return &historyError{err}
		}
		if err := b.until(ctx, "JetStream", store.acceptReset); err != nil {
			return err
		}
	}

	q := newQueue(b.cfg.WatchBufferSize, b.cfg.PendingBytes, b.metrics)
	b.queue.Store(q)
	pub := &publisher{
		nc: b.nc, js: b.js, queue: q, bucket: snapshots, stream: b.cfg.Stream, log: b.log, metrics: b.metrics,
		encoder: &encoder{
			subjects: b.subjects, source: subjects.Source(b.cfg.ClusterName), stream: b.cfg.Stream,
			form: b.cfg.Encoding.contentType(), app: b.cfg.App, maxSize: maxMessage(b.nc.MaxPayload(), info),
		},
	}
	pub.highest.Store(proj.followed.Load())
	b.publisher.Store(pub)

	var left atomic.Int64
	left.Store(1)
	finish := func() {
		if left.Add(-1) == 0 {
			b.setStatus("")
			b.lived = true
		}
	}
	b.setStatus("publishing the differences that the comparison found")
	differences, unwatched := b.source.connect(q, records, b.cfg.App, watching(k.namespaces), func() func() {
		left.Add(1)
		return finish
	}, cancel)
	if len(unwatched) > 0 {
		b.log.Warn("apps of namespaces that are not watched are left as they are", zap.Int("apps", len(unwatched)),
			zap.Stringer("first", unwatched[0]))
	}
	b.log.Info("live", zap.Int("apps", len(records)), zap.Int("differences", differences),
		zap.Uint64("sequence", proj.followed.Load()))

	g.Go(func() error { return pub.run(ctx) })
	g.Go(func() error { return b.guard(ctx, store, info.Created, q, proj) })
	finish()
	if !live() { // stop came first
		return errStopped
	}
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-stop.Done():
		}
		b.source.disconnect() // no more intake
		if err := b.flush(ctx, q, pub, proj); err != nil {
			cancel(err)
			return err
		}
		cancel(errStopped)
		return nil
	})
	return nil
}

// maxMessage is the largest message that the server and the stream take.
func maxMessage(payload int64, info *jetstream.StreamInfo) int {
	if limit := int64(info.Config.MaxMsgSize); limit > 0 && limit < payload {
		payload = limit
	}
	return int(payload)
}

// open makes sure that stream and bucket exist, belong here and fit together,
// and reads the bucket.
func (b *Bridge) open(ctx context.Context, store *storage, snapshots *bucket) (*snapshot, *jetstream.StreamInfo, error) {
	// The stream is looked at first: another cluster's must not cost us an
	// empty bucket beside it.
	stream, err := store.checkStream(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := store.ensureBucket(ctx); err != nil {
		return nil, nil, err
	}
	snap, err := snapshots.load(ctx)
	if err != nil {
		return nil, nil, err
	}
	info, err := store.ensureStream(ctx, stream, b.highest, snap.position)
	return snap, info, err
}

// until tries op until it works, the context ends, or waiting will not help.
func (b *Bridge) until(ctx context.Context, what string, op func(context.Context) error) error {
	report := waitLog{log: b.log}
	return retry(ctx, func() error {
		if b.nc.IsClosed() {
			return permanent(errors.New("the NATS connection is closed"))
		}
		err := op(ctx)
		var config *ConfigError
		if errors.As(err, &config) {
			return permanent(err)
		}
		return err
	}, func(err error, _ time.Duration) {
		b.setStatus(fmt.Sprintf("waiting for %s: %v", what, err))
		report.warn("waiting for "+what, err)
	})
}

// guard ends the session when the ground it stands on goes away.
func (b *Bridge) guard(ctx context.Context, store *storage, created time.Time, q *queue, proj *projector) error {
	tick := time.NewTicker(storageCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-q.overflow:
			return errOverflow
		case <-tick.C:
		}
		if b.nc.IsClosed() {
			return errors.New("the NATS connection is closed")
		}
		if !b.nc.IsConnected() {
			continue
		}
		look, cancel := context.WithTimeout(ctx, jetStreamTimeout)
		err := store.present(look, created, proj.followed.Load())
		cancel()
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// flush waits until everything queued is in the stream and in the bucket.
func (b *Bridge) flush(ctx context.Context, q *queue, pub *publisher, proj *projector) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.FlushTimeout)
	defer cancel()
	select {
	case <-q.empty():
	case <-ctx.Done():
		length, _ := q.oldest()
		return fmt.Errorf("stopped with %d changes unpublished; the next start finds them by comparing", length)
	}
	highest := pub.highest.Load()
	if err := proj.waitWritten(ctx, highest); err != nil {
		return fmt.Errorf("stopped with the bucket at sequence %d of %d; the next start goes on from there", proj.written.Load(), highest)
	}
	b.log.Info("flushed", zap.Uint64("sequence", highest))
	return nil
}

// correct brings the record of an app up to the last message that an append
// ran into: an event that the bucket no longer showed, or a foreign message,
// which counts for the fence alone.
func correct(records map[subjects.AppID]*record, id subjects.AppID, m *storedMessage, s subjects.Subjects) {
	had := records[id]
	if had.fence() >= m.sequence {
		return
	}
	if r, err := m.record(s); err == nil {
		records[id] = r
		return
	}
	next := &record{kind: subjects.Deleted} // nothing of ours before it
	if had != nil {
		copied := *had
		next = &copied
	}
	next.foreign = m.sequence
	records[id] = next
}

// historyError is a ConfigError that ends the process at any time: nothing
// may be published from a history that is not the one published before.
type historyError struct{ error }

func (e *historyError) Unwrap() error { return e.error }
