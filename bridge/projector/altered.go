package projector

import (
	"context"
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// compareDelivered returns an AlteredError for a message at a sequence at which the stream has acknowledged
// another one to this session.
func (p *Projector) compareDelivered(ctx context.Context, d *delivery) error {
	r, ok := p.memory.deliver(d.sequence)
	if !ok || d.removed || p.isAcknowledged(r, d.subject, d.header, d.size) {
		return nil
	}
	return p.compareStored(ctx, r)
}

// compareLate does so for events that were delivered before the session knew that they are its own: the
// acknowledgement came later.
func (p *Projector) compareLate(ctx context.Context) error {
	for {
		r, ok := p.memory.oldestLate()
		if !ok {
			return nil
		}
		if err := p.compareStored(ctx, r); err != nil {
			return err
		}
		p.memory.dropLate()
	}
}

// compareUndelivered does so for the events at the sequences from to to, which the consumer does not
// deliver: it may have a filter that another subject does not match. Most often they are removed.
func (p *Projector) compareUndelivered(ctx context.Context, from, to uint64) error {
	for {
		r, ok := p.memory.receiptIn(from, to)
		if !ok {
			return nil
		}
		m, err := store.NextMessage(ctx, p.bucket.JS, p.stream, store.AllMessages, r.sequence)
		switch {
		case errors.Is(err, store.ErrNoMessage):
			_, err := store.OrNone(p.fetch(ctx, to))
			return err
		case err != nil:
			return err
		case m.Sequence > r.sequence:
			from = m.Sequence
			continue
		}
		if err := p.compare(ctx, r, m); err != nil {
			return err
		}
		from = r.sequence + 1
	}
}

// compareStored compares an acknowledged event with what the stream's leader has at its sequence. One
// that is removed is no other.
func (p *Projector) compareStored(ctx context.Context, r receipt) error {
	m, err := store.OrNone(p.fetch(ctx, r.sequence))
	if err != nil || m == nil {
		return err
	}
	return p.compare(ctx, r, m)
}

// compare returns an AlteredError if m, at the sequence of r, is another message. One in a range that
// another bridge has named as lost is no other.
func (p *Projector) compare(ctx context.Context, r receipt, m *store.Message) error {
	if p.isAcknowledged(r, m.Subject, m.Header, strconv.Itoa(len(m.Data))) || p.subjects.IsLost(m.Subject) || p.subjects.IsNotice(m.Subject) {
		return nil
	}
	// A stream that has lost its tail gives sequences out again, and that has another name.
	info, err := p.lookUp(ctx)
	if err != nil {
		return err
	}
	if err := store.CheckTail(p.stream, info.State.LastSeq, p.known.Checkpoint().Stream); err != nil {
		return err
	}
	return &store.AlteredError{Sequence: r.sequence, Subject: r.subject, ID: r.id, Found: m}
}

// isAcknowledged reports whether a message is the event that was acknowledged, with all of its headers
// and its size as far as they are kept.
func (p *Projector) isAcknowledged(r receipt, subject string, h nats.Header, size string) bool {
	if subject != r.subject || h.Get(subjects.CEID) != r.id {
		return false
	}
	e, kept := p.memory.at(r.sequence, p.connection())
	return !kept || carriesAll(h, e.header) && carriesAll(e.header, h) && size == e.bodySize()
}
