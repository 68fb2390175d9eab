package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/bridge/app"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/projector"
	"github.com/appbridge/appbridge/bridge/publisher"
	"github.com/appbridge/appbridge/bridge/retention"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

const logAltered = "an acknowledged event did not come back as it was sent; publishing waits"

// errStopped ends a session that was asked to stop and has flushed.
var errStopped = errors.New("stopped")

// session is one stretch of publishing: read what was published, compare it with the cluster,
// publish the difference, then every change.
type session struct {
	cfg      Config
	subjects subjects.Subjects
	nc       *nats.Conn
	appends  jetstream.JetStream // the publisher's
	log      *zap.Logger
	metrics  *metrics
	source   *watch.Source
	kube     *watch.Cluster
	memory   *memory
	status   *reason // why the bridge is not ready

	// What it calls of its bridge.
	checkConnection func() error                // nil while NATS is connected
	leads           func(context.Context) error // nil while this bridge holds the Lease
	auditSoon       func()                      // the session is live: have it audited
	auditNow        func(why string)            // have stream and bucket audited
	publishes       func(*session)              // the session has a queue and a publisher
	newEncoder      func(maxSize func() int) *app.Encoder
	foundRival      func() // another bridge publishes with the same options
	repairs         bool   // that of its bridge

	acknowledged *store.Acknowledged // that of memory
	storage      *store.Storage
	bucket       *store.Bucket
	queue        *publisher.Queue
	publisher    *publisher.Publisher
	projector    *projector.Projector
	live         atomic.Bool // what was published is loaded, and changes flow
	checked      freshness   // stream and bucket, by guard
	history      freshness   // the cluster's version, by watchHistory

	// empty is true if neither stream nor bucket had anything when the session started.
	empty bool
	// publishFrom is the sequence up to which the stream has been read.
	publishFrom uint64

	group  *errgroup.Group         // everything the session started
	cancel context.CancelCauseFunc // ends it
}

func (b *Bridge) newSession(k *watch.Cluster) *session {
	bucket := b.newBucket(b.writes)
	bucket.Known = b.source.State
	if b.memory.claim == nil {
		b.memory.claim = b.newClaim()
	}
	return &session{
		cfg: b.cfg, subjects: b.subjects, nc: b.nc, appends: b.appends, log: b.log, metrics: b.metrics,
		source: b.source, kube: k, memory: &b.memory, acknowledged: &b.memory.acknowledged,
		storage: b.newStorage(), bucket: bucket,
		status: &b.status, checkConnection: b.checkConnection,
		leads:     func(ctx context.Context) error { return b.leads(ctx, k) },
		auditSoon: b.auditSoon, auditNow: b.auditNow, publishes: b.publishing.Store, newEncoder: b.newEncoder,
		foundRival: b.warnRival, repairs: b.repairs,
	}
}

// session runs one session and returns why it ended: errStopped when stop is
// done and the queue is flushed, something of lead when that is over, or
// an error after which the next one has to reconcile.
func (b *Bridge) session(lead, stop context.Context, k *watch.Cluster) error {
	s := b.newSession(k)
	err := s.run(lead, stop)
	b.source.Release()
	b.status.set("not publishing")
	b.publishing.Store(nil)
	return err
}

func (s *session) run(lead, stop context.Context) error {
	ctx, cancel := context.WithCancelCause(lead)
	defer cancel(nil)
	// Until it is live there is nothing to flush.
	unhook := context.AfterFunc(stop, func() { cancel(errStopped) })
	s.cancel = cancel
	s.group, ctx = errgroup.WithContext(ctx)

	err := s.start(ctx)
	if err == nil && !unhook() {
		err = errStopped // stop came first
	}
	if err != nil {
		cancel(err)
	} else {
		s.group.Go(func() error { return s.stopWith(ctx, stop) })
	}
	ended := s.group.Wait()
	if found, ok := errors.AsType[*store.AlteredError](cmp.Or(err, ended, context.Cause(ctx))); ok {
		s.log.Error(logAltered, zap.Error(found))
		s.metrics.altered.Inc()
		id, _, _ := s.subjects.ParseEvent(found.Subject) // this bridge made it
		s.memory.altered.note(found, id, s.storage.Stream.Config)
	}
	if s.projector != nil {
		removed := s.projector.RemovedRanges()
		s.memory.removed = removed[max(0, len(removed)-removedRanges):]
	}
	return cmp.Or(err, ended, context.Cause(ctx))
}

func (s *session) start(ctx context.Context) error {
	s.status.set("waiting for JetStream")
	s.memory.checked.Store(s.nc.Stats().Reconnects)
	snap, err := fromJetStream(ctx, s, s.open)
	if err != nil {
		return err
	}
	s.publishFrom = s.storage.Stream.State.LastSeq
	s.memory.altered.configured(s.storage.Stream.Config)
	if _, err := fromJetStream(ctx, s, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.memory.doubts.confirm(ctx, func(ctx context.Context, sequence uint64) (*store.Message, error) {
			return store.MessageAt(ctx, s.storage.JS, s.cfg.Stream, sequence)
		})
	}); err != nil {
		return err
	}
	s.memory.doubts.mark(snap, s.subjects)

	s.projector = s.newProjector(snap)
	s.status.await("reading the stream past the bucket", s.projector.LastTrouble)
	s.empty = s.storage.Stream.State.Msgs == 0 && snap.Keys == 0
	s.group.Go(func() error { return s.projector.Run(ctx, snap) })
	known := *s.storage // what accepting a reset changes later is no news to the guard
	s.group.Go(func() error { return s.guard(ctx, known) })
	select {
	case <-s.projector.CaughtUp:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	// What was published is taken before the cluster is listed, and the caches
	// reach the list: so no record is newer than what it is compared with. What
	// others append after this, the fences and watch find.
	s.publishFrom = max(s.publishFrom, s.projector.Delivered())
	records, deleted := s.projector.TakeRecords()
	s.status.set("comparing the cluster with what was published")
	version, err := s.reach(ctx, records, deleted)
	if err != nil {
		return err
	}
	s.group.Go(func() error { return s.watchHistory(ctx, version) })
	published, err := fromJetStream(ctx, s, func(ctx context.Context) (map[subjects.AppID]app.State, error) { return s.readPublished(ctx, records) })
	if err != nil {
		return err
	}
	s.memory.doubts.correct(records, s.subjects)
	s.publish(ctx, records, published)
	return nil
}

// reach waits until the source has observed everything that the API server has, checks that this is
// of the history that was published, and returns its version.
func (s *session) reach(ctx context.Context, records map[subjects.AppID]*app.Record, deleted app.Deletions) (version string, err error) {
	s.source.Shown.NoteDeletes()
	listings, err := await(ctx, s, "Kubernetes", s.kube.List)
	if err != nil {
		return "", err
	}
	limit := s.kube.Watches.Limits().NoProgress
	if err := s.source.Shown.Reach(ctx, listings, limit, func(l watch.Listing, what string) {
		s.status.set(fmt.Sprintf("comparing the cluster with what was published: for %s the informer of %ss in %s has not shown %s",
			limit, l.Kind, kubeapi.NamespaceText(l.Namespace), what))
		s.log.Warn("an informer does not show what the cluster has", zap.String("kind", l.Kind), zap.String("namespace", l.Namespace), zap.String("missing", what))
		s.kube.Watches.Relist(l.Kind, l.Namespace, watch.CauseBehind)
	}); err != nil {
		return "", err
	}
	s.source.Settle()
	version = watch.ServiceVersion(listings)
	impossible, err := app.CheckHistory(records, deleted, version, s.storage.Accepted())
	if (err != nil || len(impossible) > 0) && s.cfg.AcceptReset {
		_, err = fromJetStream(ctx, s, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.storage.AcceptReset(ctx) })
	}
	if err != nil && !s.cfg.AcceptReset {
		err = s.otherHistory(ctx, err)
	}
	if err == nil && len(impossible) > 0 && !s.cfg.AcceptReset {
		for _, v := range impossible[:min(len(impossible), maxImpossible)] {
			s.log.Warn("an event names a version that the cluster cannot have had; the app goes on with what Kubernetes shows",
				zap.Stringer("app", v.App), zap.String("version", v.Version), zap.Uint64("sequence", v.Sequence), zap.Bool("deletion", v.Deletion),
				zap.String("clusterVersion", version), zap.Int("events", len(impossible)),
				zap.String("toDo", "find out who else may publish to the stream; a start with --accept-reset ends this warning"))
		}
	}
	return version, err
}

// maxImpossible is how many events a session names.
const maxImpossible = 10

// publish puts what is owed into the queue and goes live.
func (s *session) publish(ctx context.Context, records map[subjects.AppID]*app.Record, published map[subjects.AppID]app.State) {
	before := s.memory.pending.Load()
	s.queue = publisher.NewQueue(publisher.QueueConfig{
		StreamID: s.storage.ID, Empty: s.empty, Reached: s.publishFrom,
		PerApp: s.cfg.WatchBufferSize, MaxBytes: s.cfg.PendingBytes, Metrics: s.metrics.publisher,
	})
	s.publisher = s.newPublisher()
	s.publishes(s)

	// Ready once all differences are published; one more keeps it from being
	// so before they are all counted.
	var left atomic.Int64
	left.Store(1)
	finish := func() {
		if left.Add(-1) == 0 {
			s.status.set("")
			s.memory.altered.clear()
			s.memory.lived.Store(true)
		}
	}
	s.status.await("publishing the differences between the cluster and the stream", s.publisher.Trouble)
	differences, carried, unwatched := connect(s.source, s.queue, before, records, published, s.bucket.Lost, plan.Watching(s.kube.Namespaces), func() func() {
		left.Add(1)
		return finish
	}, s.cancel)
	s.memory.pending.Store(s.queue)
	s.live.Store(true)
	s.auditSoon()
	if before.Overflowed() {
		s.log.Error(publisher.ErrOverflow.Error())
	}
	if len(unwatched) > 0 {
		s.log.Warn("apps of namespaces that are not watched are left as they are",
			zap.Int("apps", len(unwatched)), zap.Stringer("first", unwatched[0]))
	}
	s.log.Info("live", zap.Int("publishedBefore", len(records)), zap.Int("toPublish", differences), zap.Int("stillWaiting", carried),
		zap.Uint64("sequence", s.projector.Delivered()))
	s.group.Go(func() error { return s.publisher.Run(ctx) })
	s.group.Go(func() error { return s.watchQueue(ctx) })
	s.group.Go(func() error {
		s.metrics.retention.Run(ctx, retention.Config{JS: s.storage.JS, Stream: s.cfg.Stream, Log: s.log})
		return nil
	})
	finish()
}

func (s *session) newProjector(snap *store.Snapshot) *projector.Projector {
	return projector.New(projector.Config{
		Bucket: s.bucket, Stream: s.cfg.Stream, Subjects: s.subjects, Acknowledged: s.acknowledged,
		Lost: store.MergeRanges(slices.Clone(s.bucket.Lost), s.memory.removed), Accepted: s.storage.Accepted(), Log: s.log, Metrics: s.metrics.projector,
	}, snap)
}

func (s *session) newPublisher() *publisher.Publisher {
	state := s.storage.Stream.State
	state.LastSeq = s.publishFrom
	return publisher.New(publisher.Config{
		NATS: s.nc, Appends: s.appends, Stream: s.cfg.Stream, Subjects: s.subjects, NewEncoder: s.newEncoder,
		Queue: s.queue, Known: s.acknowledged, Log: s.log, Metrics: s.metrics.publisher,
		State: state, MaxMsgSize: s.storage.Stream.Config.MaxMsgSize, Lost: s.bucket.Lost,
		Hold:       s.memory.altered.wait,
		Doubts:     s.memory.altered.doubts,
		Verified:   s.memory.altered.verified,
		Leads:      s.leads,
		Published:  s.published().PublishedOf,
		Sent:       s.projector.NoteSent,
		Stored:     s.projector.NoteStored,
		KeyMissing: func(id subjects.AppID) { s.projector.Distrust(true, id) },
	})
}

func (s *session) stopWith(ctx, stop context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-stop.Done():
	}
	s.source.Disconnect() // no more intake
	if err := s.flush(ctx); err != nil {
		s.cancel(err)
		return err
	}
	s.cancel(errStopped)
	return nil
}

// await repeats op until it succeeds, the context ends, or the error is terminal.
func await[T any](ctx context.Context, s *session, what string, op func(context.Context) (T, error)) (result T, err error) {
	report := retry.Log{Logger: s.log}
	err = retry.Do(ctx, func() (err error) {
		if result, err = op(ctx); errors.As(err, new(*app.ConfigError)) || isOtherShape(err) {
			return retry.Permanent(err)
		}
		return err
	}, func(err error, _ time.Duration) {
		if errors.As(err, new(*store.OutsideError)) {
			s.status.set(err.Error()) // an operator has to act
		} else {
			s.status.set(fmt.Sprintf("waiting for %s: %v", what, err))
		}
		report.Warn("waiting for "+what, err)
	})
	return result, err
}

// fromJetStream awaits op, which needs a connection to NATS.
func fromJetStream[T any](ctx context.Context, s *session, op func(context.Context) (T, error)) (T, error) {
	return await(ctx, s, "JetStream", func(ctx context.Context) (result T, err error) {
		if err = s.checkConnection(); err != nil {
			return result, err
		}
		return op(ctx)
	})
}

// watchQueue ends the session when too much is pending, or when the stream shows events of an app
// that this session neither published nor started from: of another bridge, or of a late append.
func (s *session) watchQueue(ctx context.Context) error {
	tick := time.Tick(storageCheck)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.queue.Overflow():
			return publisher.ErrOverflow
		case <-tick:
		}
		written := s.projector.Position() // first: what is touched up to there is taken below
		for id, sequence := range s.projector.TakeTouched() {
			fence, pending := s.queue.Fence(id)
			if pending {
				s.projector.Touch(id, sequence) // its own event may be under way
			} else if fence < sequence {
				s.log.Warn("the stream holds an event that this session does not know",
					zap.Stringer("app", id), zap.Uint64("sequence", sequence), zap.Uint64("known", fence))
				return &publisher.OtherWriterError{}
			}
		}
		s.queue.Evict(written)
	}
}

// flush waits until everything queued is in the stream and in the bucket.
func (s *session) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.FlushTimeout)
	defer cancel()
	select {
	case <-s.queue.Empty():
	case <-ctx.Done():
		length, _ := s.queue.Oldest()
		return unpublished(length)
	}
	highest := s.publisher.Highest()
	if err := s.projector.WaitWritten(ctx, highest); err != nil {
		return fmt.Errorf("stopped with the bucket at sequence %d of %d; the next start goes on from there", s.projector.Position(), highest)
	}
	s.log.Info("flushed", zap.Uint64("sequence", highest))
	return nil
}
