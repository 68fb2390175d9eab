package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// publishWindow is how many events may be unacknowledged at once, each of another app.
	publishWindow = 256
	// encodeAhead is how many events may be encoded before they can be sent.
	encodeAhead    = 64
	publishTimeout = 5 * time.Second
	// concludeTimeout bounds how long an ending session waits for answers.
	concludeTimeout = 2 * time.Second
)

// errOverflow reports that pending changes were dropped at the hard limit.
var errOverflow = errors.New("too many changes wait for the stream; they are dropped and found again by a resync")

// publisher appends the changes of a queue to the stream: one pipeline, in the order of the queue,
// with one event of an app under way. Every append has two fences. It expects the sequence of its
// app's previous event, and it expects the stream to end at the append before it. So the stream is
// one chain: a second writer, a late retry or a bug cannot duplicate or reorder, and a stream that
// ends before what was acknowledged refuses the first append after it.
//
// On a refusal or a missing answer sending stops. The publisher then reads from the stream's leader which
// of its events landed (settle), and goes on behind the last message.
type publisher struct {
	nc      *nats.Conn
	js      jetstream.JetStream // gives up on an acknowledgement after publishTimeout
	queue   *queue
	encoder *encoder
	log     *zap.Logger
	metrics *metrics
	known   *acknowledged
	lag     *lag                 // is notified of every acknowledgement
	lost    []subjects.LostRange // the ranges that the stream has lost
	// leads confirms that this bridge is the one that publishes.
	leads func(context.Context) error
	// published reads what was published of an app that the queue does not know.
	published func(context.Context, subjects.AppID) (*record, error)
	// keyMissing is called for an app that exists and that the bucket seems to have no key of.
	keyMissing func(subjects.AppID)

	highest    atomic.Uint64          // stream sequence of the newest acknowledged event
	maxMsgSize atomic.Int64           // of the stream, as of the newest look; 0 or less: no limit
	trouble    atomic.Pointer[string] // why the newest append failed, nil if it did not

	// The rest belongs to the goroutine that sends.
	chain   uint64 // sequence at which the next append expects the stream to end
	settled uint64 // up to this sequence of the stream every message is accounted for
	first   uint64 // first sequence of the stream, as of the newest look
	// confirmed is the first sequence of the stream for which leads was asked last.
	confirmed uint64
	flights   []*flight // sent and not answered, oldest first
	window    int       // how many of them there may be, publishWindow at most
	again     []*flight // to be sent again, before anything new
}

// flight is an event on its way into the stream.
type flight struct {
	id     subjects.AppID
	change *change
	prev   *record
	read   chan struct{} // closed once prev is read, if it has to be; nil if not
	ev     *event
	// tries are the sequences that the stream had to end at for a try to land, of those tries whose
	// fate is open. A try that expected sequence c has landed at c+1 or nowhere.
	tries []uint64
	// Of the newest try:
	expected uint64
	ok       <-chan *jetstream.PubAck
	failed   <-chan error
	landed   uint64 // stream sequence, 0 if it is not known to have landed
	original uint64 // the stream remembers the message id, of a message at this sequence
	err      error  // why it failed
}

// run publishes until ctx is done or the session has to end.
func (p *publisher) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, p.queue.close)
	defer stop()
	taken := make(chan *flight, readWindow)
	encoded := make(chan *flight, encodeAhead)
	g.Go(func() error { return p.take(ctx, taken) })
	g.Go(func() error { return p.encode(ctx, taken, encoded) })
	g.Go(func() error { return p.send(ctx, encoded) })
	return g.Wait()
}

// take takes the changes off the queue, in its order. It starts to read what was published of the
// apps that the queue does not know.
func (p *publisher) take(ctx context.Context, taken chan<- *flight) error {
	var reads sync.WaitGroup
	defer reads.Wait()
	for {
		id, c, prev, ok := p.queue.next()
		if !ok || ctx.Err() != nil {
			return nil
		}
		f := &flight{id: id, change: c, prev: prev}
		if p.queue.isUnread(id) {
			f.read = make(chan struct{})
			reads.Go(func() {
				defer close(f.read)
				f.prev = p.readPublished(ctx, id)
			})
		}
		select {
		case taken <- f:
		case <-ctx.Done():
			return nil
		}
	}
}

// readPublished reads what was published of an app. It tries until it can be read or ctx is done.
func (p *publisher) readPublished(ctx context.Context, id subjects.AppID) (r *record) {
	_ = retry.Do(ctx, func() (err error) {
		if p.nc.IsClosed() {
			return retry.Permanent(errClosed) // which ends the session
		}
		r, err = p.published(ctx, id)
		return err
	}, func(err error, _ time.Duration) {
		text := fmt.Sprintf("read the last event of app %s: %v", id, err)
		p.trouble.Store(&text)
	})
	return r
}

// encode makes the events for the changes that were taken, in their order.
func (p *publisher) encode(ctx context.Context, taken <-chan *flight, encoded chan<- *flight) error {
	for {
		var f *flight
		select {
		case f = <-taken:
		case <-ctx.Done():
			return nil
		}
		if f.read != nil {
			<-f.read
			if ctx.Err() != nil {
				return nil
			}
			if p.nc.IsClosed() {
				return errClosed
			}
			var ours bool
			// Behind another bridge's event the stream refuses the append, and settle finds out.
			if f.prev, ours = p.queue.learn(f.id, f.prev); ours && p.isStored(f) {
				p.keyMissing(f.id)
				p.finish(f, f.prev)
				continue
			}
		}
		publish, err := p.prepare(f)
		if err != nil {
			return fmt.Errorf("app %s: %w", f.id, err)
		}
		if !publish {
			p.finish(f, nil)
			continue
		}
		select {
		case encoded <- f:
		case <-ctx.Done():
			return nil
		}
	}
}

// isStored reports whether the app's last event, which was just read, shows the very state of f: an
// app that the bucket should have shown.
func (p *publisher) isStored(f *flight) bool {
	return !f.change.remove && f.prev.exists() && f.prev.uid == string(f.change.state.service.UID) && isPublished(f.change.state, f.prev, p.encoder.app)
}

// prepare makes the event of f. It returns false if there is nothing to publish.
func (p *publisher) prepare(f *flight) (bool, error) {
	if f.change.remove && !f.prev.exists() {
		return false, nil
	}
	if !f.change.remove && f.prev.exists() && f.prev.uid != string(f.change.state.service.UID) {
		return false, fmt.Errorf("state of %s follows one of %s without a delete", f.change.state.service.UID, f.prev.uid)
	}
	ev, err := p.encoder.encode(f.id, f.change, f.prev)
	if err != nil {
		p.leaveOut(f.id, err)
		return false, nil
	}
	f.ev = ev
	return true, nil
}

func (p *publisher) leaveOut(id subjects.AppID, err error) {
	p.metrics.rejected.WithLabelValues(reasonOf(err)).Inc()
	p.log.Error("change is left out", zap.Stringer("app", id), zap.Error(err))
}

// finish takes the change of f off the queue. r is the app's new record, nil if nothing was published.
func (p *publisher) finish(f *flight, r *record) {
	p.queue.done(f.id, r)
	if f.change.resynced != nil {
		f.change.resynced()
	}
}

// send appends what is encoded. Whatever stops the pipeline, it finds out what landed and goes on;
// it returns an error only when another session has to follow.
func (p *publisher) send(ctx context.Context, encoded <-chan *flight) error {
	pause := retry.NewPause()
	for {
		reached := p.settled
		err := p.pipeline(ctx, encoded)
		if ctx.Err() != nil {
			p.conclude(ctx)
			return nil
		}
		if endsSession(err) {
			p.conclude(ctx)
			return err
		}
		p.report(err)
		p.drain(ctx)
		if err := p.settle(ctx); err != nil {
			p.storeLanded()
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if p.settled > reached {
			pause.Reset() // something was appended, by this bridge or by somebody else
			continue
		}
		select {
		case <-time.After(pause.NextBackOff()):
		case <-ctx.Done():
			return nil
		}
	}
}

// conclude gives what was sent the time to be answered when the session ends. What has landed is
// then known to the next session, also if the stream does not keep it.
func (p *publisher) conclude(ctx context.Context) {
	if len(p.flights) == 0 || !p.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), concludeTimeout)
	defer cancel()
	p.drain(ctx)
	p.again = append(p.flights, p.again...)
	p.flights = nil
	if err := p.look(ctx); err != nil {
		p.log.Debug("what was sent last is not known to have landed", zap.Error(err))
		p.storeLanded()
	}
}

// storeLanded takes what is known to have landed off the queue when the session ends.
func (p *publisher) storeLanded() {
	for _, f := range p.again {
		if f.landed > 0 {
			p.stored(f)
		}
	}
	p.again = nil
}

// report shows why the pipeline stopped.
func (p *publisher) report(err error) {
	p.metrics.publishRetries.Inc()
	text := err.Error()
	p.trouble.Store(&text)
	level := zap.WarnLevel
	if !p.nc.IsConnected() {
		level = zap.DebugLevel // which is logged once, as a lost connection
	}
	p.log.Log(level, "appending stopped; reading from the stream's leader what has landed",
		zap.Int("unacknowledged", len(p.flights)), zap.Error(err))
}

// pipeline sends until something goes wrong and returns what that is, nil if ctx is done.
func (p *publisher) pipeline(ctx context.Context, encoded <-chan *flight) error {
	for {
		var next <-chan *flight
		if len(p.flights) < p.window {
			if len(p.again) > 0 {
				f := p.again[0]
				p.again = p.again[1:]
				if err := p.launch(ctx, f); err != nil {
					return err
				}
				continue
			}
			next = encoded
		}
		var ok <-chan *jetstream.PubAck
		var failed <-chan error
		if len(p.flights) > 0 {
			ok, failed = p.flights[0].ok, p.flights[0].failed
		}
		select {
		case f := <-next:
			if err := p.launch(ctx, f); err != nil {
				return err
			}
		case ack := <-ok:
			f := p.flights[0]
			f.acknowledged(ack)
			if f.landed == 0 || f.landed != p.settled+1 {
				return fmt.Errorf("the stream acknowledged app %s unexpectedly, at sequence %d (duplicate: %t)", f.id, ack.Sequence, ack.Duplicate)
			}
			p.flights = p.flights[1:]
			p.settled = f.landed
			p.window = min(p.window+1, publishWindow)
			p.stored(f)
		case err := <-failed:
			p.flights[0].refused(err)
			switch errorCode(err) {
			case codeWrongLastSequence, codeFilterInProcess, codeDuplicateInProcess:
				p.metrics.fenceConflicts.Inc() // those behind it are refused for its sake
				p.window = max(p.window/4, 1)  // beside another writer less of it is in vain
			}
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// launch sends the event of f behind the one that was sent last. An error stops the pipeline; f is
// then in flights or in again.
func (p *publisher) launch(ctx context.Context, f *flight) error {
	if p.isGone(f.ev.fence) {
		if err := p.refresh(ctx, f); err != nil {
			p.again = slices.Insert(p.again, 0, f)
			return err
		}
		if f.landed > 0 {
			p.stored(f)
			return nil
		}
	}
	f.expected, f.landed, f.original, f.err = p.chain, 0, 0, nil
	f.ev.msg.Header.Set(subjects.HeaderExpectedLastSequence, strconv.FormatUint(p.chain, 10))
	future, err := p.js.PublishMsgAsync(f.ev.msg, jetstream.WithRetryAttempts(0))
	if errors.Is(err, nats.ErrMaxPayload) {
		p.remake(f, err)
		return nil
	}
	if !slices.Contains(f.tries, p.chain) {
		f.tries = append(f.tries, p.chain)
	}
	if err != nil {
		p.again = slices.Insert(p.again, 0, f)
		return fmt.Errorf("append an event of app %s: %w", f.id, err)
	}
	p.chain++
	p.known.noteSent(p.chain)
	f.ok, f.failed = future.Ok(), future.Err()
	p.flights = append(p.flights, f)
	return nil
}

// isGone reports whether the event at sequence is one that the stream has no more.
func (p *publisher) isGone(sequence uint64) bool {
	return sequence > 0 && sequence < p.first || contains(p.lost, sequence)
}

// acknowledged takes the answer to the newest try.
func (f *flight) acknowledged(ack *jetstream.PubAck) {
	if ack.Duplicate || ack.Sequence != f.expected+1 {
		f.original = ack.Sequence
		f.drop(f.expected)
		return
	}
	f.landed = ack.Sequence
}

// refused takes the error of the newest try. One that the server answered with has not landed.
func (f *flight) refused(err error) {
	f.err = err
	if errorCode(err) != 0 {
		f.drop(f.expected)
	}
}

// drop forgets a try that has not landed and cannot land any more.
func (f *flight) drop(expected uint64) {
	f.tries = slices.DeleteFunc(f.tries, func(c uint64) bool { return c == expected })
}

// stored makes an event that is in the stream the app's newest.
func (p *publisher) stored(f *flight) {
	r := f.ev.record
	r.sequence = f.landed
	p.known.noteStream(r.sequence)
	p.lag.note(r.sequence, time.Now())
	p.highest.Store(max(p.highest.Load(), r.sequence))
	p.trouble.Store(nil)
	p.metrics.published.WithLabelValues(string(r.kind)).Inc()
	p.metrics.latency.Observe(time.Since(f.change.observed).Seconds())
	p.log.Debug("published", zap.Stringer("app", f.id), zap.String("kind", string(r.kind)), zap.Uint64("sequence", r.sequence))
	if r.kind == subjects.Deleted {
		r.app = nil // kept for the next delete, which needs a create first
	}
	p.finish(f, r)
}

// remake encodes an event again that was refused for its size, under the limits of now. It is never
// called while an earlier try may still land.
func (p *publisher) remake(f *flight, refusal error) {
	size := f.ev.msg.Size()
	publish, err := p.prepare(f)
	switch {
	case err != nil || !publish: // prepare has reported it
		p.finish(f, nil)
	case f.ev.msg.Size() >= size:
		p.leaveOut(f.id, fmt.Errorf("%w: %d bytes: %w", errTooLarge, size, refusal))
		p.finish(f, nil)
	default:
		f.tries = nil
		p.again = slices.Insert(p.again, 0, f)
	}
}
