package logsvc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// outageTick is how often a message is retried while the connection is lost.
const outageTick = 100 * time.Millisecond

// send sends the parcels of the outbox, as fast as the reader takes them, until it is closed and
// empty.
func (s *stream) send(ctx context.Context) error {
	for {
		p, more, err := s.out.next(ctx)
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
	s.encoder.addReplicas(b.replica)
	bodies, counts, err := s.parts(ctx, b)
	if err != nil {
		return fmt.Errorf("encode lines of %s: %w", b.replica, err)
	}
	// A window keeps a body as long as it may have to be sent again, and with it the batch whose
	// memory it shares. A batch with several bodies is not reused.
	var kept *batch
	switch {
	case s.req.window == 0 || !shares(bodies[0], b):
		defer s.out.done(b)
	case len(bodies) == 1:
		kept = b
	}
	sent := 0
	for i, body := range bodies {
		header := s.header()
		header[subjects.HeaderLogReplica] = []string{b.replica}
		reached := b.reached
		if sent += counts[i]; sent < b.lines && reached.Place != "" {
			reached = b.at[sent-1]
		}
		if reached.Place != "" {
			header[subjects.HeaderLogPosition] = []string{reached.String()}
		}
		if err := s.publish(ctx, header, body, counts[i], kept); err != nil {
			return err
		}
		if s.lines == 0 && counts[i] > 0 {
			s.metrics.firstLine.Observe(time.Since(s.req.arrived).Seconds())
		}
		s.lines += int64(counts[i])
		s.metrics.lines.Add(float64(counts[i]))
		s.metrics.bytes.Add(float64(len(body)))
	}
	return nil
}

// parts encodes a batch. Flyte's messages take many times the memory of their text while they are
// encoded, so no more are encoded at a time than there are processors.
func (s *stream) parts(ctx context.Context, b *batch) (bodies [][]byte, counts []int, err error) {
	if b.lines == 0 {
		return [][]byte{nil}, []int{0}, nil
	}
	if s.encoder.format.Structured() {
		done, err := s.acquireEncoder(ctx)
		if err != nil {
			return nil, nil, err
		}
		defer done()
	}
	return s.encoder.parts(b, s.maxMessage()-payloadMargin)
}

// acquireEncoder waits until one more batch may be encoded. The caller calls done afterwards.
func (s *Service) acquireEncoder(ctx context.Context) (done func(), err error) {
	select {
	case s.encoding <- struct{}{}:
		return func() { <-s.encoding }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *stream) sendNote(ctx context.Context, p parcel) error {
	var body []byte
	var err error
	header := s.header()
	header[subjects.HeaderLogNote] = []string{string(p.note)}
	switch p.note {
	case subjects.LogNoteReplicas:
		s.encoder.addReplicas(p.replicas...)
		names, more := s.encoder.fitting(p.replicas, s.maxMessage()/4)
		header[subjects.HeaderLogReplicas] = []string{strings.Join(names, ",")}
		body, err = s.encoder.replicas(names, more)
		if s.req.far() && s.lines == 0 && err == nil {
			// Structured formats have no text for it; the header has it in all formats.
			header[subjects.HeaderLogLimit] = []string{s.limit().String()}
			if !s.req.format.Structured() {
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
		body, err = s.encoder.note([]string{p.replica}, n+" lines dropped here, because "+why)
	default:
		body, err = s.encoder.note(p.replicas, p.text)
	}
	if err != nil {
		return fmt.Errorf("encode a note: %w", err)
	}
	return s.publish(ctx, header, body, 0, nil)
}

// publish sends one message when the reader is ready for it. When it is acknowledged, kept can be
// reused.
func (s *stream) publish(ctx context.Context, header nats.Header, body []byte, lines int, kept *batch) error {
	msg := &nats.Msg{Subject: s.target, Header: header, Data: body}
	if !s.req.far() {
		msg.Reply = s.ack + strconv.FormatUint(s.seq, 10)
	}
	if s.req.window == 0 {
		if err := s.limiter.WaitN(ctx, min(len(body), paceBurst)); err != nil {
			<-ctx.Done() // its deadline may be before the time of the message
			return context.Cause(ctx)
		}
	} else if err := s.window.enter(ctx, s.seq, msg, kept); err != nil {
		return err
	}
	select {
	case <-s.reader.presence():
	case <-ctx.Done():
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if s.req.window > 0 {
		lines = 0 // they are sent again
	}
	s.reader.recordMessage(s.seq, lines)
	return s.deliver(ctx, msg)
}

// deliver publishes a message. While the connection is lost it retries.
func (s *Service) deliver(ctx context.Context, msg *nats.Msg) error {
	var limit, tick <-chan time.Time
	for {
		err := s.nc.PublishMsg(msg)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, nats.ErrMaxPayload):
			return fmt.Errorf("a message of %d bytes: %w", len(msg.Data), err)
		case errors.Is(err, nats.ErrConnectionClosed):
			return err
		case limit == nil:
			limit, tick = time.After(outageLimit), time.Tick(outageTick)
		}
		select {
		case <-tick:
		case <-limit:
			return errGone
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// confirmTime is how long the server may take to confirm the end of a stream.
const confirmTime = 2 * time.Second

// deliverEnd delivers the last messages of an answer. Those of a stream are confirmed: what is
// written to a connection that breaks is lost without an error. They are sent again until the
// server has read them, which may repeat them.
func (s *Service) deliverEnd(ctx context.Context, end ending, msgs ...*nats.Msg) {
	ctx, stop := context.WithTimeout(ctx, outageLimit)
	defer stop()
	for {
		for _, msg := range msgs {
			_ = s.deliver(ctx, msg) // an error has no receiver, and the end has to follow
		}
		if end.id == "" || s.nc.FlushTimeout(confirmTime) == nil || s.nc.IsClosed() || ctx.Err() != nil {
			return
		}
	}
}

// early is an error that ends a stream before the end of its log and is no failure: its reason.
type early subjects.LogEnd

const (
	errStopped     = early(subjects.LogEndStopped)
	errMaxDuration = early(subjects.LogEndMaxDuration)
	errStalled     = early(subjects.LogEndStalled)
	// errGone: the reader is gone, and receives no end.
	errGone early = "gone"
)

func (e early) Error() string { return string(e) }

// ending is how an answer ends.
type ending struct {
	target string    // the subject of the last messages
	answer *nats.Msg // of a get: the lines, which need no end
	id     string    // of the stream; empty: it has not begun
	seq    uint64
	lines  int64
}

// finish sends the end of an answer, after the error if there is one. Without it the requester
// would wait forever, so it is retried while the connection is lost, until ctx is done.
func (s *Service) finish(ctx context.Context, req *logRequest, end ending, err error) (result string) {
	if err == nil && end.answer != nil {
		end.answer.Subject = end.target
		if err = s.deliver(ctx, end.answer); err == nil {
			s.metrics.firstLine.Observe(time.Since(req.arrived).Seconds())
			s.metrics.lines.Add(float64(end.lines))
			s.metrics.bytes.Add(float64(len(end.answer.Data)))
			return string(subjects.LogEndEOF)
		}
		end.lines = 0
	}
	reason := early(subjects.LogEndEOF)
	switch {
	case err == nil, errors.As(err, &reason):
	case errors.Is(err, nats.ErrConnectionClosed):
		reason = errGone
	case end.id != "" && (errors.Is(err, request.ErrShutdown) || errors.Is(err, context.Canceled)):
		reason = early(subjects.LogEndShutdown)
	default:
		failure := s.failure(req.query.App, err)
		s.deliverEnd(ctx, end, end.messages(failure, req.end)...)
		return failure.Code.String()
	}
	if reason != errGone {
		s.deliverEnd(ctx, end, end.message(subjects.LogEnd(reason), req.end))
	}
	return string(reason)
}

func (e ending) messages(failure *request.Error, option string) []*nats.Msg {
	reason := subjects.LogEndError
	if failure.Code == subjects.CodeResourceExhausted {
		reason = subjects.LogEndLimit
	}
	return []*nats.Msg{request.ErrorMessage(e.target, failure), e.message(reason, option)}
}

// message returns the last message. The option is that of the request.
func (e ending) message(reason subjects.LogEnd, option string) *nats.Msg {
	status := subjects.StatusNoResponders
	if option == endEmpty {
		status = subjects.StatusNoContent
	}
	header := nats.Header{
		subjects.HeaderStatus:   {status},
		subjects.HeaderLogEnd:   {string(reason)},
		subjects.HeaderLogLines: {strconv.FormatInt(e.lines, 10)},
	}
	if e.id != "" {
		header[subjects.HeaderLogStream] = []string{e.id}
		header[subjects.HeaderLogSeq] = []string{strconv.FormatUint(e.seq, 10)}
	}
	return &nats.Msg{Subject: e.target, Header: header}
}
