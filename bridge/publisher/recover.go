package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// drain waits for the answers to everything that was sent, and leaves it in p.again.
func (p *Publisher) drain(ctx context.Context) {
	defer func() { p.again, p.flights = append(p.flights, p.again...), nil }()
	for _, f := range p.flights {
		if f.answer.outcome != outcomeUnknown {
			continue // the answer that stopped the pipeline
		}
		select {
		case ack := <-f.ok:
			f.answered(ack, nil)
		case err := <-f.failed:
			f.answered(nil, err)
		case <-ctx.Done():
			return
		}
	}
}

// readOutcomes reads from the stream's leader which events were stored, until it answers, and
// leaves those to send again in p.again. An error ends the session.
func (p *Publisher) readOutcomes(ctx context.Context) error {
	return retry.Do(ctx, func() error {
		if p.nc.IsClosed() {
			return retry.Permanent(store.ErrClosed)
		}
		look, cancel := context.WithTimeout(ctx, store.JetStreamTimeout)
		defer cancel()
		err := p.look(look)
		if endsSession(err) {
			return retry.Permanent(err)
		}
		return err
	}, func(err error, _ time.Duration) {
		p.noteTrouble(err)
		p.log.Debug("cannot read from the stream's leader", zap.Error(err))
	})
}

func (p *Publisher) look(ctx context.Context) error {
	acknowledged := p.known.Checkpoint().Stream // first: others may append meanwhile
	_, info, err := store.LookUp(ctx, p.js, p.cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w: %w", store.ErrGone, err)
	}
	if err != nil {
		return err
	}
	last := info.State.LastSeq
	if err := checkEnd(p.cfg.Stream, last, acknowledged, p.accounted); err != nil {
		return err
	}
	if err := p.checkSeen(ctx); err != nil {
		return err
	}
	p.first = info.State.FirstSeq
	p.maxMsgSize.Store(int64(info.Config.MaxMsgSize))
	if err := p.account(ctx, last); err != nil {
		return err
	}
	if last > p.accounted {
		p.end = seenMessage{} // readEnd reads it
	}
	p.accounted, p.chain = last, last
	if err := p.sortOut(ctx); err != nil {
		return err
	}
	p.readEnd(ctx)
	return nil
}

// seenMessage is a message of the stream, as it was stored or read.
type seenMessage struct {
	sequence    uint64
	subject, id string
}

func seen(m *store.Message) seenMessage {
	return seenMessage{m.Sequence, m.Subject, m.Header.Get(subjects.HeaderMsgID)}
}

// readEnd reads the last message that is accounted for, unless it is known. It stays unknown where that fails.
func (p *Publisher) readEnd(ctx context.Context) {
	if p.end.sequence == p.accounted || p.accounted == 0 {
		return
	}
	if m, err := store.MessageAt(ctx, p.js, p.cfg.Stream, p.accounted); err == nil {
		p.end = seen(m)
	}
}

// errReconnected stops sending: another server, or another store, may be behind the connection.
var errReconnected = errors.New("NATS was connected again")

// checkSeen returns an error if the stream has another message in the place of the last one that is accounted
// for. It may have come back from an older state and have grown since, to the same end. One that is
// removed shows nothing.
func (p *Publisher) checkSeen(ctx context.Context) error {
	reconnects := p.nc.Stats().Reconnects
	if reconnects == p.connected {
		return nil
	}
	if had := p.end; had.sequence > 0 {
		m, err := store.OrNone(store.MessageAt(ctx, p.js, p.cfg.Stream, had.sequence))
		if err != nil {
			return err
		}
		if m != nil && seen(m) != had {
			p.log.Error("the stream has another message than before the connection was lost: it came back from an older state, and others appended; events are lost",
				zap.Uint64("sequence", had.sequence), zap.String("subject", m.Subject), zap.String("had", had.subject))
			p.queue.otherHistory()
			return &OtherWriterError{}
		}
	}
	p.connected = reconnects
	return nil
}

// account identifies the messages up to last that are not accounted for yet.
func (p *Publisher) account(ctx context.Context, last uint64) error {
	acknowledged := map[uint64]bool{}
	sent := map[string]*flight{}
	for _, f := range p.again {
		acknowledged[f.stored] = f.stored > 0
		sent[f.ev.Msg.Header.Get(subjects.HeaderMsgID)] = f
	}
	messages, err := p.read(ctx, last, acknowledged)
	if err != nil {
		return err
	}
	others := map[subjects.AppID]*store.Message{}
	for _, m := range messages {
		if m == nil {
			continue // acknowledged, or removed since
		}
		var ev *app.Event
		f := sent[m.Header.Get(subjects.HeaderMsgID)]
		if f != nil {
			ev = f.ev
		}
		id, of, r := identify(m, ev, p.cfg.Subjects)
		switch of {
		case originThis:
			f.found(r)
		case originForeign:
			p.queue.noteForeign(id, m.Sequence) // a refused event's fence is moved behind it later
		case originOther:
			others[id] = m
		case originNoApp:
			switch {
			case p.cfg.Subjects.IsNotice(m.Subject):
				p.known.NoteNotice(m.Sequence)
			case p.cfg.Subjects.IsLost(m.Subject) && m.Header.Get(subjects.HeaderLostFrom) != "":
				// What is lost, and up to where, is found when the next session begins.
				return fmt.Errorf("%w: another bridge fills a lost range of stream %s", store.ErrLostTail, p.cfg.Stream)
			}
		}
	}
	if len(others) > 0 {
		return &OtherWriterError{others}
	}
	for _, f := range p.again {
		// A try that was not stored by now can only be stored at the present end of the stream.
		f.tries = slices.DeleteFunc(f.tries, func(c uint64) bool { return c < last })
	}
	return nil
}

// read reads the messages up to last that are not accounted for, without those acknowledged, in the
// order of the stream.
func (p *Publisher) read(ctx context.Context, last uint64, acknowledged map[uint64]bool) ([]*store.Message, error) {
	messages := make([]*store.Message, last-p.accounted)
	unknown := func(yield func(int) bool) {
		for i := range messages {
			if !acknowledged[p.accounted+1+uint64(i)] && !yield(i) {
				return
			}
		}
	}
	return messages, store.ReadEach(ctx, unknown, func(ctx context.Context, i int) (*store.Message, error) {
		return store.MessageAt(ctx, p.js, p.cfg.Stream, p.accounted+1+uint64(i))
	}, func(i int, m *store.Message) { messages[i] = m })
}

// found notes that the event was stored. The record is that of the message: another bridge may have
// written it.
func (f *flight) found(r *app.Record) { f.ev.Record, f.stored = r, r.Sequence }

// sortOut does the next step of every event whose outcome is known now.
func (p *Publisher) sortOut(ctx context.Context) error {
	left := p.again
	p.again = nil
	for i, f := range left {
		if err := p.decide(ctx, f); err != nil {
			p.again = append(p.again, left[i:]...)
			return err
		}
	}
	return nil
}

// decide puts f into p.again unless it is done.
func (p *Publisher) decide(ctx context.Context, f *flight) error {
	next := resolution{
		stored: f.stored > 0, answer: f.answer, open: len(f.tries) > 0,
		first: len(p.again) == 0, fenceGone: p.isGone(f.ev.Fence),
	}.next()
	var err error
	switch next {
	case stepReadOriginal:
		err = p.readOriginal(ctx, f)
	case stepEncodeAgain:
		if !p.remake(f, f.answer.err) {
			return nil
		}
	case stepReadLast:
		err = p.readLast(ctx, f)
	}
	switch {
	case err != nil:
		return err
	case f.ev == nil: // there is nothing to send
	case f.stored > 0:
		p.stored(f)
	default:
		p.again = append(p.again, f)
	}
	return nil
}

// readLast reads the app's last message from the stream's leader and moves the fence there. The
// fence moves back only while this bridge is confirmed to lead. No other bridge has appended: the
// append expects the end of the stream too, and every message up to there is accounted for.
func (p *Publisher) readLast(ctx context.Context, f *flight) error {
	filter := f.ev.Msg.Header.Get(subjects.HeaderExpectedLastSubjectSequenceSubject)
	m, err := store.LastMessage(ctx, p.js, p.cfg.Stream, filter)
	if err != nil && !errors.Is(err, store.ErrNoMessage) {
		return err
	}
	fence, at := f.ev.Fence, uint64(0)
	if m != nil {
		at = m.Sequence
	}
	_, of, r := identify(m, f.ev, p.cfg.Subjects)
	switch afterLast(fence, of, at) {
	case stepDone:
		f.found(r)
		return nil
	case stepEndSession:
		return &OtherWriterError{map[subjects.AppID]*store.Message{f.id: m}}
	}
	if at < fence && fence == f.prev.Previous() {
		other, err := store.NewReader(p.js, p.cfg.Stream, p.cfg.Subjects).BelongsToAnother(ctx, f.id, fence)
		if other || err != nil {
			return cmp.Or(err, p.correct(ctx, f))
		}
	}
	if at < fence && (p.confirmed != p.first || fence >= p.first) {
		if err := p.cfg.Leads(ctx); err != nil {
			return fmt.Errorf("confirm that this bridge leads: %w", err)
		}
		p.confirmed = p.first
	}
	f.ev.Fence = at
	f.ev.Msg.Header.Set(subjects.HeaderExpectedLastSubjectSequence, strconv.FormatUint(at, 10))
	return nil
}

// correct makes f's event again, behind the app's last event: its record was read from an entry that names
// another app's event. It sets f.ev to nil if there is nothing to publish.
func (p *Publisher) correct(ctx context.Context, f *flight) error {
	r, err := p.cfg.Published(ctx, f.id)
	if err != nil {
		return err
	}
	p.log.Warn("an app's entry in the bucket names another app's event; the app's last event counts",
		zap.Stringer("app", f.id), zap.Uint64("named", f.prev.Previous()), zap.Uint64("sequence", r.Previous()))
	p.cfg.KeyMissing(f.id)
	if plan.Follows(r, f.change, true) == plan.FitShown {
		p.finish(f, r)
		f.ev = nil
		return nil
	}
	p.prepareBehind(f, r)
	return nil
}

// prepareBehind makes f's event again, behind another record. It returns false and sets f.ev to nil if there is
// nothing to publish.
func (p *Publisher) prepareBehind(f *flight, r *app.Record) bool {
	f.prev, f.tries, f.answer = r, nil, answer{}
	if p.prepare(f) {
		return true
	}
	f.ev = nil
	return false
}

// readOriginal reads the earlier message that has the id of f's event. It sets f.ev to nil if there
// is nothing to publish.
func (p *Publisher) readOriginal(ctx context.Context, f *flight) error {
	at := f.answer.sequence
	m, err := store.MessageAt(ctx, p.js, p.cfg.Stream, at)
	if err != nil && !errors.Is(err, store.ErrNoMessage) {
		return err
	}
	id, of, r := identify(m, f.ev, p.cfg.Subjects)
	if of == originOther && id != f.id {
		of = originForeign // it shows nothing of this app
	}
	switch afterOriginal(f.prev.Fence(), of, at) {
	case stepDone:
		f.found(r)
	case stepNewID:
		p.log.Info("the stream still rejects the id of an event that it does not hold; publishing with another id",
			zap.Stringer("app", f.id), zap.Uint64("sequence", at))
		if !p.prepareBehind(f, f.prev.MovedTo(at)) {
			return nil
		}
		return p.readLast(ctx, f)
	case stepEndSession:
		return &OtherWriterError{map[subjects.AppID]*store.Message{f.id: m}}
	}
	return nil
}
