package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// errStopped ends a session that was asked to stop and has flushed.
var errStopped = errors.New("stopped")

// removedRanges is how many reported ranges a bridge remembers over its sessions.
const removedRanges = 1000

// session is one stretch of publishing: look at what was published, compare
// it with the cluster, publish the difference, then everything that happens.
type session struct {
	*Bridge
	kube      *kube
	storage   *storage
	bucket    *bucket
	queue     *queue
	publisher *publisher
	projector *projector
	live      atomic.Bool // what was published is loaded, and changes flow

	// empty is true if neither stream nor bucket had anything when the session started.
	empty bool
	// publishFrom is the sequence up to which the stream has been read.
	publishFrom uint64

	group  *errgroup.Group         // everything the session started
	cancel context.CancelCauseFunc // ends it
}

// session runs one session and returns why it ended: errStopped when stop is
// done and what was queued is flushed, something of lead when that is over, or
// an error after which the next one has to compare anew.
func (b *Bridge) session(lead, stop context.Context, k *kube) error {
	ctx, cancel := context.WithCancelCause(lead)
	defer cancel(nil)
	// Until it is live there is nothing to flush: stopping is giving up.
	unhook := context.AfterFunc(stop, func() { cancel(errStopped) })
	group, ctx := errgroup.WithContext(ctx)
	s := &session{
		Bridge: b, kube: k, group: group, cancel: cancel,
		storage: b.newStorage(), bucket: b.newBucket(b.writes),
	}

	err := s.start(ctx)
	if err == nil && !unhook() {
		err = errStopped // stop came first
	}
	if err != nil {
		cancel(err)
	} else {
		group.Go(func() error { return s.stopWith(ctx, stop) })
	}
	waited := group.Wait()
	b.source.release()
	b.setStatus("not publishing")
	b.newest.Store(nil)
	if s.projector != nil {
		b.removed = s.projector.lost[max(0, len(s.projector.lost)-removedRanges):]
	}
	switch {
	case err != nil:
		return err
	case waited != nil:
		return waited
	default:
		return context.Cause(ctx)
	}
}

// start brings a session to life.
func (s *session) start(ctx context.Context) error {
	s.setStatus("waiting for JetStream")
	s.looked.Store(s.nc.Stats().Reconnects)
	var snap *snapshot
	if err := s.until(ctx, "JetStream", s.connected(func(ctx context.Context) (err error) {
		snap, err = s.open(ctx)
		return err
	})); err != nil {
		return err
	}
	s.publishFrom = s.storage.stream.State.LastSeq
	for id, m := range s.found {
		had := snap.records[id] // of an app without a record, confirm reads the last event
		if _, err := m.record(s.subjects); err == nil && had != nil && had.fence() < m.sequence && m.sequence <= snap.position {
			snap.records[id] = &record{damaged: true} // the bucket should have shown it
		}
	}

	for _, id := range s.takeDoubted() {
		snap.doubtEntry(id)
	}

	s.setStatus("reading the stream past the bucket")
	s.projector = s.newProjector(snap)
	s.empty = s.storage.stream.State.Msgs == 0 && snap.keys == 0
	s.group.Go(func() error { return s.projector.run(ctx, snap) })
	known := *s.storage // what accepting a reset changes later is no news to the guard
	s.group.Go(func() error { return s.guard(ctx, known) })
	select {
	case <-s.projector.caughtUp:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	// What was published is taken before the cluster is listed, and the caches
	// reach the list: so no record is newer than what it is compared with. What
	// others append after this, the fences and watch find.
	s.publishFrom = max(s.publishFrom, s.projector.followed.Load())
	records, deleted := s.projector.take()
	s.setStatus("comparing the cluster with what was published")
	version, err := s.reach(ctx, records, deleted)
	if err != nil {
		return err
	}
	s.group.Go(func() error { return s.watchHistory(ctx, version) })
	var published map[subjects.AppID]state
	if err := s.until(ctx, "JetStream", s.connected(func(ctx context.Context) (err error) {
		published, err = s.confirm(ctx, records)
		return err
	})); err != nil {
		return err
	}
	for id, m := range s.found {
		if !correct(records, id, m, s.subjects) {
			delete(s.found, id) // the bucket knows by now
		}
	}
	s.publish(ctx, records, published)
	return nil
}

// reach waits until the source has seen everything that the API server has,
// checks that it is of the history that was published, and returns its version.
func (s *session) reach(ctx context.Context, records map[subjects.AppID]*record, deleted deletion) (version string, err error) {
	s.source.shown.noteDeletes()
	var listings []listing
	if err := s.until(ctx, "Kubernetes", func(ctx context.Context) (err error) {
		listings, err = s.kube.list(ctx)
		return err
	}); err != nil {
		return "", err
	}
	limit := s.kube.watches.Limits().NoProgress
	if err := s.source.shown.reach(ctx, listings, limit, func(l listing, what string) {
		s.setStatus(fmt.Sprintf("comparing the cluster with what was published: for %s the informer of %ss in %s has not shown %s",
			limit, l.kind, kubeapi.NamespaceText(l.namespace), what))
		s.log.Warn("an informer does not show what the cluster has", zap.String("kind", l.kind), zap.String("namespace", l.namespace), zap.String("missing", what))
		s.kube.relist(l.kind, l.namespace, watch.CauseBehind)
	}); err != nil {
		return "", err
	}
	for _, l := range listings {
		if err := s.source.shown.contradicts(l); err != nil {
			return "", err
		}
	}
	version = serviceVersion(listings)
	if err = checkHistory(records, version, s.storage.accepted()); err == nil {
		err = checkDeletion(deleted, version)
	}
	if err != nil && s.cfg.AcceptReset {
		err = s.until(ctx, "JetStream", s.connected(s.storage.acceptReset))
	}
	return version, err
}

// publish puts what is owed into the queue and goes live.
func (s *session) publish(ctx context.Context, records map[subjects.AppID]*record, published map[subjects.AppID]state) {
	before := s.waiting.Load()
	s.queue = newQueue(s.cfg.WatchBufferSize, s.cfg.PendingBytes, s.metrics)
	s.queue.streamID, s.queue.complete, s.queue.reached = s.storage.id, s.empty, s.publishFrom
	s.publisher = s.newPublisher()
	s.newest.Store(s)

	// Ready once all differences are published; one more keeps it from being
	// so before they are all counted.
	var left atomic.Int64
	left.Store(1)
	finish := func() {
		if left.Add(-1) == 0 {
			s.setStatus("")
			s.lived.Store(true)
		}
	}
	s.setStatus("publishing the differences that the comparison found")
	differences, carried, unwatched := connect(s.source, s.queue, before, records, published, s.bucket.lost, s.cfg.App, watching(s.kube.namespaces), func() func() {
		left.Add(1)
		return finish
	}, s.cancel)
	s.waiting.Store(s.queue)
	s.live.Store(true)
	s.auditSoon()
	if before.overflowed() {
		s.log.Error(errOverflow.Error())
	}
	if len(unwatched) > 0 {
		s.log.Warn("apps of namespaces that are not watched are left as they are",
			zap.Int("apps", len(unwatched)), zap.Stringer("first", unwatched[0]))
	}
	s.log.Info("live", zap.Int("publishedBefore", len(records)), zap.Int("toPublish", differences), zap.Int("stillWaiting", carried),
		zap.Uint64("sequence", s.projector.followed.Load()))
	s.group.Go(func() error { return s.publisher.run(ctx) })
	s.group.Go(func() error { return s.watch(ctx) })
	finish()
}

// newProjector makes the projector of the session, which goes on from snap.
func (s *session) newProjector(snap *snapshot) *projector {
	return newProjector(projectorConfig{
		Bucket: s.bucket, Stream: s.cfg.Stream, Subjects: s.subjects, Acknowledged: &s.acknowledged,
		Lost: appendMissing(slices.Clone(s.bucket.lost), s.removed), Accepted: s.storage.accepted(), Log: s.log, Metrics: s.metrics.projector,
	}, snap)
}

// newPublisher makes the publisher of the session, which goes on behind what has been read.
func (s *session) newPublisher() *publisher {
	p := &publisher{
		nc: s.nc, js: s.appends, queue: s.queue, log: s.log, metrics: s.metrics,
		leads: func(ctx context.Context) error { return s.leads(ctx, s.kube) },
		published: func(ctx context.Context, id subjects.AppID) (*record, error) {
			return s.published().publishedOf(ctx, id)
		},
		keyMissing: func(id subjects.AppID) { s.projector.distrust(true, id) },
		known:      &s.acknowledged, lag: &s.projector.lag,
		chain: s.publishFrom, settled: s.publishFrom, first: s.storage.stream.State.FirstSeq,
		window: publishWindow, lost: s.bucket.lost,
	}
	p.encoder = s.newEncoder(func() int { return maxMessage(s.nc, p.maxMsgSize.Load()) })
	p.maxMsgSize.Store(int64(s.storage.stream.Config.MaxMsgSize))
	p.highest.Store(s.publishFrom)
	return p
}

// stopWith flushes and ends the session once stop is done.
func (s *session) stopWith(ctx, stop context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-stop.Done():
	}
	s.source.disconnect() // no more intake
	if err := s.flush(ctx); err != nil {
		s.cancel(err)
		return err
	}
	s.cancel(errStopped)
	return nil
}

// fenceBytes is room for the headers that are set when a message is sent.
const fenceBytes = 64

// maxMessage is the largest message that the server takes now, and a stream with the given limit.
func maxMessage(nc *nats.Conn, limit int64) int {
	payload := nc.MaxPayload()
	if limit > 0 && limit < payload {
		payload = limit
	}
	return int(payload) - fenceBytes
}

// until tries op until it works, the context ends, or waiting will not help.
func (s *session) until(ctx context.Context, what string, op func(context.Context) error) error {
	report := retry.Log{Logger: s.log}
	return retry.Do(ctx, func() error {
		err := op(ctx)
		var config *ConfigError
		if errors.As(err, &config) {
			return retry.Permanent(err)
		}
		return err
	}, func(err error, _ time.Duration) {
		s.setStatus(fmt.Sprintf("waiting for %s: %v", what, err))
		report.Warn("waiting for "+what, err)
	})
}

// connected is op that does not ask JetStream while there is no connection.
func (s *session) connected(op func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := s.checkConnection(); err != nil {
			return err
		}
		return op(ctx)
	}
}

// watch ends the session when too much waits, or when the stream shows events
// of an app that this session neither published nor started from: a bridge
// that was thought dead, or a try that lands late.
func (s *session) watch(ctx context.Context) error {
	tick := time.NewTicker(storageCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.queue.overflow:
			return errOverflow
		case <-tick.C:
		}
		written := s.projector.written.Load() // first: what is touched up to there is taken below
		for id, sequence := range s.projector.takeTouched() {
			fence, settled := s.queue.settled(id)
			if !settled {
				s.projector.touch(id, sequence) // its own event may be under way
			} else if fence < sequence {
				s.log.Warn("the stream holds an event that this session does not know",
					zap.Stringer("app", id), zap.Uint64("sequence", sequence), zap.Uint64("known", fence))
				return &otherWriterError{}
			}
		}
		s.queue.evict(written)
	}
}

// flush waits until everything queued is in the stream and in the bucket.
func (s *session) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.FlushTimeout)
	defer cancel()
	select {
	case <-s.queue.empty():
	case <-ctx.Done():
		length, _ := s.queue.oldest()
		return unpublished(length)
	}
	highest := s.publisher.highest.Load()
	if err := s.projector.waitWritten(ctx, highest); err != nil {
		return fmt.Errorf("stopped with the bucket at sequence %d of %d; the next start goes on from there", s.projector.written.Load(), highest)
	}
	s.log.Info("flushed", zap.Uint64("sequence", highest))
	return nil
}

// correct brings the record of an app up to the last message that an append
// ran into: an event that the bucket no longer showed, or a foreign message,
// which counts for the fence alone. It tells whether there was anything to do.
func correct(records map[subjects.AppID]*record, id subjects.AppID, m *storedMessage, s subjects.Subjects) bool {
	if records[id].fence() >= m.sequence {
		return false
	}
	if r, err := m.record(s); err == nil {
		records[id] = r
	} else {
		records[id] = records[id].behind(m.sequence)
	}
	return true
}
