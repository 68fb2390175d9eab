package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// publishWindow is how many apps may have an event under way at once.
	publishWindow  = 128
	publishTimeout = 5 * time.Second
	// conflictTime is how long a session that ran into another writer looks
	// for more of the kind.
	conflictTime = 200 * time.Millisecond
)

var (
	// errStorageGone says that the stream or the bucket has been deleted.
	errStorageGone = errors.New("the stream or the bucket is gone")
	// errOverflow says that waiting changes were dropped at the hard limit.
	errOverflow = errors.New("too many changes wait for the stream; they are dropped and found again by a resync")
)

// publisher appends the changes of a queue to the stream. Each append is
// fenced by the sequence of the app's previous event, so a second writer, a
// late retry or a bug cannot duplicate or reorder.
type publisher struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	queue   *queue
	encoder *encoder
	bucket  *bucket
	log     *zap.Logger
	metrics *metrics

	// leads confirms that this bridge is the one that publishes.
	leads func(context.Context) error
	lag   *lag // is told of every acknowledgement

	highest atomic.Uint64          // stream sequence of the newest acknowledged event
	trouble atomic.Pointer[string] // what the newest try ran into, nil if it did not

	mu        sync.Mutex
	conflicts map[subjects.AppID]*storedMessage // what appends ran into
	conflict  chan struct{}                     // closed at the first
}

// run publishes until the queue is closed, ctx is done or an append can not go on.
func (p *publisher) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, p.queue.close)
	defer stop()
	for range publishWindow {
		g.Go(func() error { return p.work(ctx) })
	}
	g.Go(func() error {
		select {
		case <-p.conflict:
		case <-ctx.Done():
			return nil
		}
		// What happened to one app probably happened to more: one new session
		// for all of them.
		select {
		case <-time.After(conflictTime):
		case <-ctx.Done():
		}
		return p.otherWriter()
	})
	return g.Wait()
}

// ranInto notes that an app's newest message is not the one this bridge knows.
func (p *publisher) ranInto(id subjects.AppID, m *storedMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conflicts) == 0 {
		close(p.conflict)
	}
	p.conflicts[id] = m
}

func (p *publisher) otherWriter() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &otherWriterError{maps.Clone(p.conflicts)}
}

func (p *publisher) work(ctx context.Context) error {
	for {
		id, c, prev, ok := p.queue.next()
		if !ok || ctx.Err() != nil {
			return nil
		}
		r, err := p.publish(ctx, id, c, prev)
		var conflict *conflictError
		switch {
		case errors.As(err, &conflict):
			p.ranInto(id, conflict.stored)
			continue // without done: this app's changes wait for the next session
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("app %s: %w", id, err)
		}
		p.queue.done(id, r)
		if c.resynced != nil {
			c.resynced()
		}
	}
}

// publish makes and appends the event for a change and returns the app's new
// record, nil when there is nothing to tell.
func (p *publisher) publish(ctx context.Context, id subjects.AppID, c *change, prev *record) (*record, error) {
	if c.remove && !prev.exists() {
		return nil, nil
	}
	if !c.remove && prev.exists() && prev.uid != string(c.state.service.UID) {
		return nil, fmt.Errorf("state of %s follows one of %s without a delete", c.state.service.UID, prev.uid)
	}
	ev, err := p.encoder.encode(id, c, prev)
	if err != nil {
		p.leaveOut(id, err)
		return nil, nil
	}
	r, err := p.append(ctx, ev)
	if errorCode(err) == codeMessageTooLarge || errors.Is(err, nats.ErrMaxPayload) {
		p.leaveOut(id, fmt.Errorf("%w: %w", errTooLarge, err))
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p.acknowledged(r.sequence)
	p.trouble.Store(nil)
	p.metrics.published.WithLabelValues(string(r.kind)).Inc()
	p.metrics.latency.Observe(time.Since(c.observed).Seconds())
	p.log.Debug("published", zap.Stringer("app", id), zap.String("kind", string(r.kind)), zap.Uint64("sequence", r.sequence))
	if r.kind == subjects.Deleted {
		r.app = nil // kept for the next delete, which needs a create first
	}
	return r, nil
}

// same tells whether what is stored is what was sent. The id alone does not:
// it leaves open the kind, and how many replicas there were.
func same(stored, sent *record) bool {
	return stored.kind == sent.kind && (stored.kind == subjects.Deleted || sameApp(stored.app, sent.app, stored.contentType))
}

func (p *publisher) leaveOut(id subjects.AppID, err error) {
	p.metrics.rejected.WithLabelValues(reasonOf(err)).Inc()
	p.log.Error("change is left out", zap.Stringer("app", id), zap.Error(err))
}

// acknowledged notes the newest sequence that an append brought back.
func (p *publisher) acknowledged(sequence uint64) {
	p.lag.note(sequence, time.Now())
	for {
		seen := p.highest.Load()
		if sequence <= seen || p.highest.CompareAndSwap(seen, sequence) {
			return
		}
	}
}

// append stores an event and returns the app's record as the stream has it
// then. It tries until the fate of the event is known; the bytes stay the same.
func (p *publisher) append(ctx context.Context, ev *event) (stored *record, err error) {
	err = retry(ctx, func() error {
		try, cancel := context.WithTimeout(ctx, publishTimeout)
		defer cancel()
		ack, err := p.js.PublishMsg(try, ev.msg, jetstream.WithRetryAttempts(0))
		switch code := errorCode(err); {
		case err == nil && !ack.Duplicate:
			ev.record.sequence = ack.Sequence
			stored = ev.record
			return nil
		case err == nil, // a duplicate of what may have been purged since
			code == codeWrongLastSequence, code == codeFilterInProcess, code == codeDuplicateInProcess:
			if err != nil {
				p.metrics.fenceConflicts.Inc()
			}
			stored, err = p.resolve(ctx, ev)
			return err
		case code == codeMessageTooLarge || errors.Is(err, nats.ErrMaxPayload):
			return permanent(err)
		default:
			return err
		}
	}, func(err error, next time.Duration) {
		p.metrics.publishRetries.Inc()
		text := err.Error()
		p.trouble.Store(&text)
		level := zap.WarnLevel
		if !p.nc.IsConnected() {
			level = zap.DebugLevel // that is one trouble, told once, not one an app
		}
		p.log.Log(level, "publish will be tried again", zap.Stringer("app", ev.id), zap.Duration("in", next), zap.Error(err))
	})
	return stored, err
}

// conflictError says that an app's newest message in the stream is not the one
// this bridge knows.
type conflictError struct{ stored *storedMessage }

func (e *conflictError) Error() string {
	return fmt.Sprintf("the newest message of the app is another one, at sequence %d", e.stored.sequence)
}

// otherWriterError ends a session that ran into messages it does not know. The
// next session starts from them.
type otherWriterError struct {
	found map[subjects.AppID]*storedMessage // nil: known from the stream itself
}

func (e *otherWriterError) Error() string {
	return fmt.Sprintf("another writer appended to the stream (apps: %d)", max(1, len(e.found)))
}

// resolve finds out, from the stream's leader, what a refused or repeated
// append means.
func (p *publisher) resolve(ctx context.Context, ev *event) (*record, error) {
	filter := ev.msg.Header.Get(subjects.HeaderExpectedLastSubjectSequenceSubject)
	last, err := lastMessage(ctx, p.nc, p.encoder.stream, filter)
	switch {
	case errors.Is(err, errNoMessage):
		return nil, p.resolveRemoved(ctx, ev, 0)
	case err != nil:
		return nil, err
	case last.header.Get(subjects.HeaderMsgID) == ev.msg.Header.Get(subjects.HeaderMsgID) && last.sequence > ev.fence:
		// An earlier try had landed, or another bridge was first with the same;
		// what is stored is the new state.
		r, err := last.record(p.encoder.subjects)
		if err != nil || !same(r, ev.record) {
			return nil, permanent(&conflictError{last})
		}
		return r, nil
	case last.sequence == ev.fence:
		return nil, errors.New("an earlier try is still in process")
	case last.sequence < ev.fence:
		return nil, p.resolveRemoved(ctx, ev, last.sequence)
	default:
		return nil, permanent(&conflictError{last})
	}
}

// resolveRemoved handles an app whose last event is no longer in the stream:
// retention, a purge or a hand took it, and its last sequence with it. What is
// left, zero if nothing is, may be expected instead as long as the bucket shows
// that nobody went on from there, and this bridge is known to lead: a purge
// could have taken the event of another that does.
func (p *publisher) resolveRemoved(ctx context.Context, ev *event, left uint64) error {
	if ev.fence == 0 {
		return errors.New("the stream remembers the message id of an event that was purged, or an earlier try is still in process")
	}
	look, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	stream, err := p.js.Stream(look, p.encoder.stream)
	if err != nil {
		return fmt.Errorf("look up stream %s: %w", p.encoder.stream, err)
	}
	if last := stream.CachedInfo().State.LastSeq; last < ev.fence {
		return permanent(fmt.Errorf("%w: stream %s ends at %d, the app's last event was %d", errStorageGone, p.encoder.stream, last, ev.fence))
	}
	subject, err := p.bucket.subject(ev.id)
	if err != nil {
		return permanent(err)
	}
	entry, err := lastMessage(ctx, p.nc, subjects.BucketStream(p.bucket.name), subject)
	if errors.Is(err, errNoMessage) {
		return permanent(fmt.Errorf("%w: neither the stream nor the bucket knows app %s any more", errStorageGone, ev.id))
	}
	if err != nil {
		return fmt.Errorf("look up the bucket's position: %w", err)
	}
	position, err := strconv.ParseUint(entry.header.Get(subjects.HeaderEventSequence), 10, 64)
	switch {
	case err != nil:
		return permanent(fmt.Errorf("%w: the bucket entry of app %s has no position", errStorageGone, ev.id))
	case position < ev.previous:
		return errors.New("the bucket is still behind")
	case position > ev.fence:
		return permanent(fmt.Errorf("%w: the bucket entry of app %s is at sequence %d, expected %d", errStorageGone, ev.id, position, ev.fence))
	}
	if err := p.leads(look); err != nil {
		return fmt.Errorf("confirm that this bridge leads: %w", err)
	}
	p.log.Info("the stream no longer holds the app's last event; the next one follows what is left",
		zap.Stringer("app", ev.id), zap.Uint64("was", ev.fence), zap.Uint64("left", left))
	ev.msg.Header.Set(subjects.HeaderExpectedLastSubjectSequence, strconv.FormatUint(left, 10))
	return errors.New("try again without the previous event")
}
