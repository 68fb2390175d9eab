package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/subjects"
)

// farBehind is how many messages of others a publisher looks at one by one. Behind more of them a
// new session is quicker.
const farBehind = 4 * publishWindow

// otherWriterError ends a session that found events it does not know. The next session starts from
// them.
type otherWriterError struct {
	found map[subjects.AppID]*storedMessage // nil: known from the stream itself
}

func (e *otherWriterError) Error() string {
	return fmt.Sprintf("another writer appended to the stream (apps: %d)", max(1, len(e.found)))
}

// endsSession reports whether an error is one that only another session can go on from.
func endsSession(err error) bool {
	return errors.As(err, new(*otherWriterError)) || errors.Is(err, errLostTail) || errors.Is(err, errStorageGone) || errors.Is(err, errClosed)
}

// drain waits for the answers to everything that was sent.
func (p *publisher) drain(ctx context.Context) {
	for _, f := range p.flights {
		if f.err != nil || f.landed > 0 || f.original > 0 {
			continue // the answer that stopped the pipeline
		}
		select {
		case ack := <-f.ok:
			f.acknowledged(ack)
		case err := <-f.failed:
			f.refused(err)
		case <-ctx.Done():
			return
		}
	}
}

// settle reads from the stream's leader what landed, tries until that is known, and leaves what has to be
// sent again in p.again. An error ends the session.
func (p *publisher) settle(ctx context.Context) error {
	p.again = append(p.flights, p.again...)
	p.flights = nil
	return retry.Do(ctx, func() error {
		if p.nc.IsClosed() {
			return retry.Permanent(errClosed)
		}
		look, cancel := context.WithTimeout(ctx, jetStreamTimeout)
		defer cancel()
		err := p.look(look)
		if endsSession(err) {
			return retry.Permanent(err)
		}
		return err
	}, func(err error, _ time.Duration) {
		text := err.Error()
		p.trouble.Store(&text)
		p.log.Debug("the stream's leader does not answer", zap.Error(err))
	})
}

// look is one try to settle.
func (p *publisher) look(ctx context.Context) error {
	known := p.known.get().Stream // first: others may append meanwhile
	stream, err := p.js.Stream(ctx, p.encoder.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w: %w", errStorageGone, err)
	}
	if err != nil {
		return fmt.Errorf("look up stream %s: %w", p.encoder.stream, err)
	}
	info := stream.CachedInfo()
	last := info.State.LastSeq
	if last < max(known, p.settled) {
		return fmt.Errorf("%w: stream %s ends at sequence %d, it had acknowledged %d", errLostTail, p.encoder.stream, last, max(known, p.settled))
	}
	if last-p.settled > farBehind {
		return &otherWriterError{}
	}
	p.first = info.State.FirstSeq
	p.maxMsgSize.Store(int64(info.Config.MaxMsgSize))
	if err := p.account(ctx, last); err != nil {
		return err
	}
	p.settled, p.chain = last, last
	return p.sortOut(ctx)
}

// account finds out whose the messages are behind the ones that are accounted for, up to last.
func (p *publisher) account(ctx context.Context, last uint64) error {
	acknowledged := map[uint64]bool{}
	sent := map[string]*flight{}
	for _, f := range p.again {
		acknowledged[f.landed] = f.landed > 0
		sent[f.ev.msg.Header.Get(subjects.HeaderMsgID)] = f
	}
	messages, err := p.read(ctx, last, acknowledged)
	if err != nil {
		return err
	}
	others := map[subjects.AppID]*storedMessage{}
	for _, m := range messages {
		if m == nil {
			continue // acknowledged, or removed since
		}
		if f := sent[m.header.Get(subjects.HeaderMsgID)]; f != nil && f.foundAs(m, p.encoder.subjects) {
			continue
		}
		id, _, err := p.encoder.subjects.ParseEvent(m.subject)
		if err != nil {
			continue // of no app
		}
		if _, err := m.record(p.encoder.subjects); err != nil {
			p.queue.behind(id, m.sequence) // no event; refresh puts the fence behind it
			continue
		}
		others[id] = m
	}
	if len(others) > 0 {
		return &otherWriterError{others}
	}
	for _, f := range p.again {
		// What has not landed by now can land at the stream's present end alone.
		f.tries = slices.DeleteFunc(f.tries, func(c uint64) bool { return c < last })
	}
	return nil
}

// read reads the messages that are not accounted for, up to last and without those that are
// acknowledged, in the order of the stream.
func (p *publisher) read(ctx context.Context, last uint64, acknowledged map[uint64]bool) ([]*storedMessage, error) {
	messages := make([]*storedMessage, last-p.settled)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readWindow)
	for i := range messages {
		sequence := p.settled + 1 + uint64(i)
		if acknowledged[sequence] {
			continue
		}
		g.Go(func() error {
			m, err := messageAt(ctx, p.nc, p.encoder.stream, sequence)
			if errors.Is(err, errNoMessage) {
				return nil
			}
			messages[i] = m
			return err
		})
	}
	return messages, g.Wait()
}

// foundAs takes a stored message for the landed event of f, if it is that. The id alone does not say
// so: it leaves open the kind, and how many replicas there were. The record is that of the message,
// which another bridge may have written.
func (f *flight) foundAs(m *storedMessage, s subjects.Subjects) bool {
	stored, err := m.record(s)
	if err != nil || m.subject != f.ev.msg.Subject || m.header.Get(subjects.HeaderMsgID) != f.ev.msg.Header.Get(subjects.HeaderMsgID) {
		return false
	}
	if stored.kind != subjects.Deleted && !sameApp(stored.app, f.ev.record.app, stored.contentType) {
		return false
	}
	f.ev.record, f.landed = stored, m.sequence
	return true
}

// sortOut decides what becomes of every event whose fate is known now: it is done, made again, or
// sent again.
func (p *publisher) sortOut(ctx context.Context) error {
	left := p.again
	p.again = nil
	for i, f := range left {
		err := p.decide(ctx, f, len(p.again) == 0)
		if err != nil {
			p.again = append(p.again, left[i:]...)
			return err
		}
	}
	return nil
}

// decide puts f into p.again unless it is done. first is true for the first one: those behind it
// may have been refused for its sake alone.
func (p *publisher) decide(ctx context.Context, f *flight, first bool) error {
	code := errorCode(f.err)
	switch {
	case f.landed > 0:
	case f.original > 0:
		if err := p.duplicate(ctx, f); err != nil {
			return err
		}
		if f.ev == nil {
			p.finish(f, nil)
			return nil
		}
	case code == codeMessageTooLarge && len(f.tries) == 0:
		rest := p.again
		p.again = nil
		p.remake(f, f.err)
		p.again = append(rest, p.again...)
		return nil
	case code == codeWrongLastSequence && first, p.isGone(f.ev.fence):
		if err := p.refresh(ctx, f); err != nil {
			return err
		}
	}
	if f.landed > 0 {
		p.stored(f)
		return nil
	}
	p.again = append(p.again, f)
	return nil
}

// refresh reads the app's newest message from the stream's leader and puts the fence there: a
// message that is no event moves it, and so does an event that is gone (retention, a purge), as long
// as this bridge is confirmed to lead. That no other bridge appended, the expected sequence of the
// stream guarantees: every message up to it is accounted for.
func (p *publisher) refresh(ctx context.Context, f *flight) error {
	filter := f.ev.msg.Header.Get(subjects.HeaderExpectedLastSubjectSequenceSubject)
	m, err := lastMessage(ctx, p.nc, p.encoder.stream, filter)
	var last uint64
	switch {
	case errors.Is(err, errNoMessage):
	case err != nil:
		return err
	case m.sequence > f.ev.fence && f.foundAs(m, p.encoder.subjects):
		return nil
	case m.sequence > f.ev.fence:
		if _, err := m.record(p.encoder.subjects); err == nil {
			return &otherWriterError{map[subjects.AppID]*storedMessage{f.id: m}}
		}
		last = m.sequence
	default:
		last = m.sequence
	}
	if last < f.ev.fence && (p.confirmed != p.first || f.ev.fence >= p.first) {
		if err := p.leads(ctx); err != nil {
			return fmt.Errorf("confirm that this bridge leads: %w", err)
		}
		p.confirmed = p.first
	}
	f.ev.fence = last
	f.ev.msg.Header.Set(subjects.HeaderExpectedLastSubjectSequence, strconv.FormatUint(last, 10))
	return nil
}

// duplicate handles an append that the stream took for a message it has had at sequence f.original.
func (p *publisher) duplicate(ctx context.Context, f *flight) error {
	at := f.original
	m, err := messageAt(ctx, p.nc, p.encoder.stream, at)
	switch {
	case errors.Is(err, errNoMessage):
		// It was removed since, perhaps before anybody read it. The same state at this place in the
		// app's history is another event, with another id.
		p.log.Info("the stream remembers the id of an event that was removed; it is published under another id",
			zap.Stringer("app", f.id), zap.Uint64("sequence", at))
		f.prev = f.prev.movedTo(at)
		f.tries, f.original = nil, 0
		if publish, err := p.prepare(f); err != nil || !publish {
			f.ev = nil // reported by prepare
			return nil
		}
		return p.refresh(ctx, f)
	case err != nil:
		return err
	case at > f.prev.fence() && f.foundAs(m, p.encoder.subjects):
		return nil // by an earlier try, or by another bridge
	default:
		return &otherWriterError{map[subjects.AppID]*storedMessage{f.id: m}}
	}
}
