package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// flight is an event on its way into the stream.
type flight struct {
	id     subjects.AppID
	change *app.Change
	prev   *app.Record
	read   chan struct{} // closed once prev is read; nil if it is known
	ev     *app.Event
	// tries are the sequences at which tries of unknown outcome expected the stream to end.
	tries  []uint64
	stored uint64 // stream sequence, 0 if it is not known to be stored
	// Of the newest try:
	expected uint64
	ok       <-chan *jetstream.PubAck
	failed   <-chan error
	answer   answer
}

func (f *flight) answered(ack *jetstream.PubAck, err error) {
	f.answer = answerOf(f.expected, ack, err)
	switch f.answer.outcome {
	case outcomeStored:
		f.stored = f.answer.sequence
	case outcomeDuplicate, outcomeRefused:
		f.tries = slices.DeleteFunc(f.tries, func(c uint64) bool { return c == f.expected })
	}
}

// pipeline sends until an answer is not the expected one, and returns why it stopped. It returns
// nil if ctx is done.
func (p *Publisher) pipeline(ctx context.Context, encoded <-chan *flight) error {
	for {
		var next <-chan *flight
		window := p.window
		if !p.verified {
			window = 1
		}
		if len(p.flights) < window {
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
		var oldest flight
		if len(p.flights) > 0 {
			oldest = *p.flights[0]
		}
		select {
		case f := <-next:
			if err := p.launch(ctx, f); err != nil {
				return err
			}
		case ack := <-oldest.ok:
			f := p.flights[0]
			f.answered(ack, nil)
			if f.stored == 0 || f.stored != p.accounted+1 {
				return fmt.Errorf("unexpected acknowledgement for app %s: sequence %d (duplicate: %t), want %d",
					f.id, ack.Sequence, ack.Duplicate, p.accounted+1)
			}
			if err := p.verify(ctx, f); err != nil {
				return err
			}
			p.flights = p.flights[1:]
			p.accounted = f.stored
			p.window = min(p.window+1, publishWindow)
			p.stored(f)
		case err := <-oldest.failed:
			f := p.flights[0]
			f.answered(nil, err)
			if f.answer.isConflict() {
				p.metrics.fenceConflicts.Inc()
				p.window = max(p.window/4, 1) // beside another writer fewer appends are refused in vain
			}
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// launch sends the event of f behind the one sent last. An error stops the pipeline; f is then in
// p.again.
func (p *Publisher) launch(ctx context.Context, f *flight) error {
	if p.nc.Stats().Reconnects != p.connected {
		p.again = slices.Insert(p.again, 0, f)
		return errReconnected
	}
	if p.isGone(f.ev.Fence) {
		if err := p.readLast(ctx, f); err != nil {
			p.again = slices.Insert(p.again, 0, f)
			return err
		}
		if f.stored > 0 {
			p.stored(f)
			return nil
		}
	}
	f.expected, f.stored, f.answer = p.chain, 0, answer{}
	f.ev.Msg.Header.Set(subjects.HeaderExpectedLastSequence, strconv.FormatUint(p.chain, 10))
	p.cfg.Sent(p.chain + 1)
	future, err := p.js.PublishMsgAsync(f.ev.Msg, jetstream.WithRetryAttempts(0))
	if errors.Is(err, nats.ErrMaxPayload) {
		if p.remake(f, err) {
			p.again = slices.Insert(p.again, 0, f)
		}
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
	p.known.NoteSent(p.chain)
	f.ok, f.failed = future.Ok(), future.Err()
	p.flights = append(p.flights, f)
	return nil
}

// verify reads the first event of a session, and those of an app in doubt, back from the stream's
// leader: the acknowledgement does not say what the stream has. The rest is compared as the projector reads it.
func (p *Publisher) verify(ctx context.Context, f *flight) error {
	if p.verified && !p.cfg.Doubts(f.id) {
		return nil
	}
	m, err := store.OrNone(store.MessageAt(ctx, p.js, p.cfg.Stream, f.stored))
	if err != nil {
		return fmt.Errorf("read an event of app %s back: %w", f.id, err)
	}
	switch _, of, _ := identify(m, f.ev, p.cfg.Subjects); of {
	case originThis:
		p.verified = true
		p.cfg.Verified(f.id)
		return nil
	case originNone: // it is removed by now, or a former leader does not have it yet: the next event tells
		return nil
	default:
		altered := &store.AlteredError{Sequence: f.stored, Subject: f.ev.Msg.Subject, ID: f.ev.Msg.Header.Get(subjects.CEID), Found: m}
		// The change stays in the queue, for the next session.
		p.known.NoteStream(f.stored)
		p.flights, p.accounted = p.flights[1:], f.stored
		return altered
	}
}

func (p *Publisher) isGone(sequence uint64) bool {
	return sequence > 0 && sequence < p.first || store.InRanges(p.cfg.Lost, sequence)
}

// stored makes an event that is in the stream the app's last event.
func (p *Publisher) stored(f *flight) {
	r := f.ev.Record
	r.Sequence = f.stored
	p.known.NoteStream(r.Sequence)
	p.highestStored.Store(max(p.Highest(), r.Sequence))
	p.failure.Store(nil)
	p.end = seenMessage{r.Sequence, f.ev.Msg.Subject, f.ev.Msg.Header.Get(subjects.HeaderMsgID)}
	p.metrics.published.WithLabelValues(string(r.Kind)).Inc()
	p.metrics.latency.Observe(time.Since(f.change.Observed).Seconds())
	p.log.Debug("published", zap.Stringer("app", f.id), zap.String("kind", string(r.Kind)), zap.Uint64("sequence", r.Sequence))
	if r.Kind == subjects.Deleted {
		r.App = app.Encoded{} // the next event of the app is a create, which does not need it
	}
	var acknowledged *app.Event
	if f.answer.outcome == outcomeStored && f.answer.sequence == r.Sequence {
		acknowledged = f.ev
	}
	p.cfg.Stored(r.Sequence, acknowledged)
	p.finish(f, r)
}
