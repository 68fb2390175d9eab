package logsvc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

// outageTick is how often a connection that is away is looked at.
const outageTick = 100 * time.Millisecond

// send sends what comes into the outbox, as fast as the reader takes it, until
// the outbox is closed and empty.
func (s *stream) send(ctx context.Context, out *outbox) error {
	for {
		p, more, err := out.next(ctx)
		if err != nil || !more {
			return err
		}
		if p.batch == nil {
			err = s.sendNote(ctx, p)
		} else {
			err = s.sendLines(ctx, p.batch)
		}
		if err != nil {
			return err
		}
	}
}

// sendLines sends a batch, in as many messages as it takes.
func (s *stream) sendLines(ctx context.Context, b *batch) error {
	s.encoder.saw(b.replica)
	bodies, counts, err := s.parts(ctx, b)
	if err != nil {
		return fmt.Errorf("encode lines of %s: %w", b.replica, err)
	}
	// A window keeps a body for as long as it may have to be sent again, and with
	// it the batch that it lies in. One that lies in several is not used again.
	var kept *batch
	switch {
	case s.window == nil || !s.encoder.same(bodies[0], b):
		defer s.out.done(b)
	case len(bodies) == 1:
		kept = b
	}
	for i, body := range bodies {
		header := s.header()
		header[subjects.HeaderLogReplica] = []string{b.replica}
		if err := s.publish(ctx, header, body, counts[i], kept); err != nil {
			return err
		}
		if s.lines == 0 {
			s.metrics.firstLine.Observe(time.Since(s.req.arrived).Seconds())
		}
		s.lines += int64(counts[i])
		s.metrics.lines.Add(float64(counts[i]))
		s.metrics.bytes.Add(float64(len(body)))
	}
	return nil
}

// parts encodes a batch. Messages of Flyte take many times the memory of their text
// meanwhile, so no more are encoded at one time than there are processors.
func (s *stream) parts(ctx context.Context, b *batch) (bodies [][]byte, counts []int, err error) {
	if s.encoder.format.structured() {
		done, err := s.encodes(ctx)
		if err != nil {
			return nil, nil, err
		}
		defer done()
	}
	return s.encoder.parts(b, int(s.nc.MaxPayload())-payloadMargin)
}

// encodes waits until one more may be encoded; done is called when it is.
func (s *Service) encodes(ctx context.Context) (done func(), err error) {
	select {
	case s.encoding <- struct{}{}:
		return func() { <-s.encoding }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// sendNote sends what is not lines.
func (s *stream) sendNote(ctx context.Context, p parcel) error {
	var body []byte
	var err error
	header := s.header()
	header[subjects.HeaderLogNote] = []string{string(p.note)}
	switch p.note {
	case subjects.LogNoteReplicas:
		s.encoder.saw(p.replicas...)
		names, more := s.encoder.fitting(p.replicas, int(s.nc.MaxPayload())/4)
		header[subjects.HeaderLogReplicas] = []string{strings.Join(names, ",")}
		body, err = s.encoder.replicas(names, more)
		if s.far && s.lines == 0 && err == nil {
			// The body is a list in some formats; the header says it in all.
			header[subjects.HeaderLogLimit] = []string{s.limit().String()}
			if !s.req.format.structured() {
				body = append(body, noteLine(fmt.Sprintf("the reader is in another account, where it cannot be seen whether somebody listens: this stream ends after %s", s.limit()))...)
			}
		}
	case subjects.LogNoteDropped:
		n := strconv.FormatInt(p.dropped, 10)
		header[subjects.HeaderLogDropped] = []string{n}
		why := "this reader is too slow"
		if s.req.include != nil || s.req.exclude != nil {
			why = "this reader or its expression is too slow"
		}
		body, err = s.encoder.note(p.replica, n+" lines dropped here, because "+why)
	default:
		body, err = s.encoder.note(p.replica, p.text)
	}
	if err != nil {
		return fmt.Errorf("encode a note: %w", err)
	}
	return s.publish(ctx, header, body, 0, nil)
}

// publish sends one message when the reader is ready for it. A window that has
// let go of it gives kept back to the outbox.
func (s *stream) publish(ctx context.Context, header nats.Header, body []byte, lines int, kept *batch) error {
	msg := &nats.Msg{Subject: s.target, Header: header, Data: body}
	if !s.far {
		msg.Reply = s.ack + strconv.FormatUint(s.seq, 10)
	}
	if s.window == nil {
		if err := s.limiter.WaitN(ctx, min(len(body), paceBurst)); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			// A deadline that comes before the message may go.
			<-ctx.Done()
			return context.Cause(ctx)
		}
	} else if err := s.window.enter(ctx, s.seq, msg, kept); err != nil {
		return err
	}
	if err := s.reader.hold(ctx); err != nil {
		return err
	}
	if s.window != nil {
		lines = 0 // they are sent again
	}
	s.reader.isSending(s.seq, lines)
	return s.deliver(ctx, msg)
}

// deliver hands a message to the connection, and waits for a connection that is
// away.
func (s *Service) deliver(ctx context.Context, msg *nats.Msg) error {
	err := s.nc.PublishMsg(msg)
	if err == nil {
		return nil
	}
	limit := time.NewTimer(outageLimit)
	defer limit.Stop()
	tick := time.NewTicker(outageTick)
	defer tick.Stop()
	for {
		switch {
		case err == nil:
			return nil
		case errors.Is(err, nats.ErrMaxPayload):
			return fmt.Errorf("a message of %d bytes: %w", len(msg.Data), err)
		case errors.Is(err, nats.ErrConnectionClosed):
			return err
		}
		select {
		case <-tick.C:
		case <-limit.C:
			return errGone
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		err = s.nc.PublishMsg(msg)
	}
}

// ending is what the last message of a stream says.
type ending struct {
	id     string // of the stream; empty: there is none
	seq    uint64
	reason subjects.LogEnd
	lines  int64
	end    string // the option
}

// endMessage is the last message of a stream, or of an answer that is an error.
func endMessage(target string, e ending) *nats.Msg {
	status := subjects.StatusNoResponders
	if e.end == endEmpty {
		status = subjects.StatusNoContent
	}
	header := nats.Header{
		subjects.HeaderStatus:   {status},
		subjects.HeaderLogEnd:   {string(e.reason)},
		subjects.HeaderLogLines: {strconv.FormatInt(e.lines, 10)},
	}
	if e.id != "" {
		header[subjects.HeaderLogStream] = []string{e.id}
		header[subjects.HeaderLogSeq] = []string{strconv.FormatUint(e.seq, 10)}
	}
	return &nats.Msg{Subject: target, Header: header}
}

// publishLast sends what ends a request. It waits for a connection that is away,
// since its reader would wait for ever, but not when the service ends.
func (s *Service) publishLast(ctx context.Context, msg *nats.Msg) {
	_ = s.deliver(ctx, msg) // there is nobody left to tell
}

// endOf is the reason of an end with an error.
func endOf(failure *Error) subjects.LogEnd {
	if failure.Code == subjects.CodeResourceExhausted {
		return subjects.LogEndLimit
	}
	return subjects.LogEndError
}
