package projector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// projection is one stretch of a projector: from a read of the bucket until something fails.
type projection struct {
	*Projector
	snap   *store.Snapshot
	window chan write // the writes whose outcome is open, oldest first
}

// write is a bucket write under way; future is nil for an event that leaves the bucket as it is.
type write struct {
	future   jetstream.PubAckFuture
	sequence uint64
	app      subjects.AppID
	exists   bool
	first    bool   // the app has no event before this one
	event    uint64 // the sequence that the message reflects
	size     int    // of the message
	end      bool   // the stream held nothing behind it
}

// entry is what a message of the stream makes of the bucket.
type entry struct {
	msg    *nats.Msg // nil for a message that leaves the bucket as it is
	app    subjects.AppID
	exists bool
	// foreign is true if the message is no event, although it is on app's subject.
	foreign bool
	end     bool // the stream holds nothing behind that message
}

// project follows the stream from snap on until something fails.
func (p *Projector) project(ctx context.Context, snap *store.Snapshot) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	run := &projection{p, snap, make(chan write, store.WriteWindow)}
	helpers.Go(func() {
		for w := range run.window {
			if err := p.await(ctx, w); err != nil {
				cancel(err)
			}
		}
	})
	defer close(run.window)
	open, end := context.WithCancel(ctx)
	defer end()
	helpers.Go(func() {
		select {
		case err := <-p.restart:
			cancel(err)
		case <-open.Done():
		}
	})

	p.memory.clear()
	suspects := p.admit(snap) // first: what snap lacks is known from here on
	p.adopt(snap)
	p.sent.Store(snap.Last)
	if err := p.checkStream(ctx, snap); err != nil {
		return err
	}
	helpers.Go(func() { p.sweepMarkers(open) })
	for _, r := range snap.Rewrites {
		e := entry{msg: r.Msg, app: r.App, exists: true}
		if _, suspect := suspects[r.App]; suspect || p.wasRefused(e) {
			continue // repair writes it, or it keeps its encoding
		}
		if err := run.send(ctx, e, 0); err != nil {
			return err
		}
	}
	if err := run.repair(ctx, suspects); err != nil {
		return err
	}
	// The bucket reflects this much, whichever bridge wrote it.
	p.followed.Store(max(p.followed.Load(), snap.Position))
	if err := run.send(ctx, entry{}, snap.Position); err != nil {
		return err
	}
	snap.Release()
	return run.follow(ctx)
}

// checkStream compares the ends of the stream and of the bucket's stream with what they
// acknowledged.
func (p *Projector) checkStream(ctx context.Context, snap *store.Snapshot) error {
	stream, err := p.lookUp(ctx)
	if err != nil {
		return err
	}
	if !p.started {
		p.started, p.end = true, stream.State.LastSeq
	}
	p.supersedes = stream.Config.MaxMsgsPerSubject > 0
	return cmp.Or(
		store.CheckTail(subjects.BucketStream(p.bucket.Name), snap.Last, p.known.Checkpoint().Bucket),
		store.CheckTail(p.stream, stream.State.LastSeq, snap.Position),
	)
}

// send writes what a message of the stream makes of the bucket, and notes that the bucket then
// reflects sequence.
func (p *projection) send(ctx context.Context, e entry, sequence uint64) error {
	w := write{sequence: sequence, app: e.app, exists: e.exists, end: e.end}
	if e.msg != nil {
		w.size = app.SizeOfEntry(e.msg)
		w.first = e.exists && e.msg.Header.Get(subjects.HeaderPreviousSequence) == ""
		w.event, _ = strconv.ParseUint(e.msg.Header.Get(subjects.HeaderEventSequence), 10, 64)
		e.msg.Header.Set(subjects.HeaderExpectedLastSequence, strconv.FormatUint(p.sent.Load(), 10))
		p.fly(p.sent.Add(1), flying{e.app, w.event}) // first: the guard must never see more than this
		future, err := p.bucket.JS.PublishMsgAsync(store.Addressed(p.bucket.JS, e.msg), jetstream.WithRetryAttempts(0))
		if isTooLarge(err) {
			p.tooLarge(w.app, w.size)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", e.msg.Subject, err)
		}
		w.future = future
	}
	select {
	case p.window <- w:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *Projector) await(ctx context.Context, w write) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // an earlier write failed: none after it counts
	}
	if w.future != nil {
		select {
		case ack := <-w.future.Ok():
			p.known.NoteBucket(ack.Sequence)
			p.metrics.writes.Inc()
			p.failures.Store(0)
			p.stored(w.app, key{exists: w.exists, event: w.event, at: store.StoredAt{Sequence: ack.Sequence, Time: time.Now()}}, w.first)
		case err := <-w.future.Err():
			if isTooLarge(err) {
				p.tooLarge(w.app, w.size)
			}
			return fmt.Errorf("write the bucket for sequence %d: %w", w.sequence, err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if w.end {
		p.failures.Store(0) // everything is written, so nothing fails
	}
	if w.sequence > p.written.Load() {
		p.written.Store(w.sequence)
		p.reflected.Store(max(p.reflected.Load(), w.sequence))
		p.lag.since(w.sequence) // forgets what is reflected
	}
	return nil
}

// follow projects the messages of the stream behind the bucket's position.
func (p *projection) follow(ctx context.Context) (err error) {
	// The end of the stream is that of its leader: the consumer may be on a replica that is behind.
	target, err := store.LastSequence(ctx, p.bucket.JS, p.stream, store.AllMessages)
	if err != nil {
		return err
	}
	position := p.snap.Position
	t := &tail{Projector: p.Projector, target: target, at: position, checked: max(position, p.reflected.Load())}
	from := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: position + 1}
	if position == 0 {
		// The bucket reflects nothing: what was superseded long ago need not be written. An app has
		// three subjects, so at most three messages come of it. No subject is left out: the newest
		// message may be on one that the stream had before.
		from = jetstream.OrderedConsumerConfig{
			DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubjects: []string{store.AllMessages},
		}
		t.skips = true
	}
	from.HeadersOnly = true

	ctx, cancel := context.WithCancelCause(ctx)
	var helpers sync.WaitGroup
	var gone error // of ErrRemoved, which comes once: no other error may hide it
	defer func() {
		helpers.Wait()
		err = cmp.Or(gone, err)
	}()
	defer cancel(nil)
	// Bodies are read side by side, and taken in the order of the stream. When the queue is full,
	// nothing more is read from the consumer.
	queue := make(chan *delivery, store.ReadWindow)
	defer close(queue)
	var open atomic.Int64 // messages that are not taken yet; the tail belongs to take until there are none
	helpers.Go(func() {
		for d := range queue {
			if err := p.process(ctx, d, t); err != nil {
				if errors.Is(err, ErrRemoved) {
					gone = err
				}
				cancel(err)
			}
			open.Add(-1)
		}
	})
	delivered := position
	return store.Follow(ctx, p.bucket.JS, p.stream, from, func() error {
		if open.Load() > 0 {
			return nil
		}
		return t.idle(ctx)
	}, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
		if meta.Sequence.Stream <= delivered {
			return nil // the bucket reflects it
		}
		delivered = meta.Sequence.Stream
		d, complete := p.newDelivery(msg, meta)
		if complete {
			close(d.ready)
		} else {
			helpers.Go(func() {
				defer close(d.ready)
				p.complete(ctx, d)
			})
		}
		open.Add(1)
		select {
		case queue <- d:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

func (p *projection) process(ctx context.Context, d *delivery, t *tail) error {
	<-d.ready
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if d.err != nil {
		return d.err
	}
	if err := p.compareLate(ctx); err != nil {
		return err
	}
	if err := p.compareDelivered(ctx, d); err != nil {
		return err
	}
	if err := t.reach(ctx, d.sequence); err != nil {
		return err
	}
	var e entry
	switch {
	case !d.removed:
		e = p.apply(d)
	case d.sequence > t.skipped:
		if err := p.removed(d.sequence, d.sequence); err != nil {
			return err
		}
	}
	if e.foreign && d.sequence <= t.skipped {
		if err := p.behindForeign(ctx, &e, d.sequence); err != nil {
			return err
		}
	}
	e.end = d.end
	if err := p.send(ctx, e, d.sequence); err != nil {
		return err
	}
	p.followed.Store(max(p.followed.Load(), d.sequence))
	p.memory.forget(d.sequence)
	p.known.NoteStream(d.sequence)
	if d.sequence >= t.target && d.end {
		t.caughtUp()
	}
	return nil
}

func (p *Projector) lookUp(ctx context.Context) (*jetstream.StreamInfo, error) {
	_, info, err := store.LookUp(ctx, p.bucket.JS, p.stream)
	return info, err
}
