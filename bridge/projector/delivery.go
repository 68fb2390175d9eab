package projector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// delivery is a message of the stream, delivered without its body, on its way to the bucket.
type delivery struct {
	sequence uint64
	subject  string
	header   nats.Header
	size     string // of the body
	end      bool   // the stream held nothing behind it

	ready chan struct{} // closed once the rest is known
	// app is whose event it should be, zero for a message that is not on the subject of an app.
	app     subjects.AppID
	record  *app.Record // nil if it is no event
	foreign error       // why it is none
	removed bool        // the stream no longer has it
	err     error       // why the body cannot be read
}

// newDelivery reads what headers and subject say, and returns whether that is all that is needed.
func (p *Projector) newDelivery(msg jetstream.Msg, meta *jetstream.MsgMetadata) (d *delivery, complete bool) {
	d = &delivery{
		sequence: meta.Sequence.Stream, subject: msg.Subject(), header: msg.Headers(), end: meta.NumPending == 0,
		size:  msg.Headers().Get(subjects.HeaderMessageSize),
		ready: make(chan struct{}),
	}
	if p.subjects.IsLost(d.subject) || p.subjects.IsNotice(d.subject) {
		return d, true
	}
	id, kind, err := p.subjects.ParseEvent(d.subject)
	if err == nil {
		d.app = id
		_, err = app.ReadEventHeader(kind, d.sequence, d.header)
		err = cmp.Or(err, app.CheckSubject(id, d.header))
	}
	d.foreign = err
	return d, err != nil
}

// complete finds the body of a message: in memory if that has the very event, else in the stream.
func (p *Projector) complete(ctx context.Context, d *delivery) {
	// An event in another encoding than the bucket's is read as the stream has it.
	if r := p.memory.record(ctx, d, p.connection); r != nil && r.ContentType == p.bucket.ContentType {
		d.record = r
		return
	}
	p.metrics.fetched.Inc()
	m, err := p.fetch(ctx, d.sequence)
	switch {
	case errors.Is(err, store.ErrNoMessage):
		d.removed = true
	case err != nil:
		d.err = err
	default:
		// What the leader has counts, also where it is not what was delivered.
		d.subject, d.header, d.size = m.Subject, m.Header, strconv.Itoa(len(m.Data))
		d.app, _, _ = p.subjects.ParseEvent(m.Subject)
		d.record, d.foreign = m.Record(p.subjects)
	}
}

// fetch reads the message at sequence from the stream's leader. A leader that does not reach that
// far yet, or any more, does not show that the message was removed.
func (p *Projector) fetch(ctx context.Context, sequence uint64) (*store.Message, error) {
	m, err := store.MessageAt(ctx, p.bucket.JS, p.stream, sequence)
	if !errors.Is(err, store.ErrNoMessage) {
		return m, err
	}
	info, err := p.lookUp(ctx)
	if err != nil {
		return nil, err
	}
	if last := info.State.LastSeq; last < sequence {
		return nil, fmt.Errorf("sequence %d of stream %s was delivered, and its leader ends at %d", sequence, p.stream, last)
	}
	return store.MessageAt(ctx, p.bucket.JS, p.stream, sequence)
}

// connection numbers the connections to NATS.
func (p *Projector) connection() uint64 { return p.bucket.JS.Conn().Stats().Reconnects }
