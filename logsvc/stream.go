package logsvc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// openTimeout is how long finding an app may take.
	openTimeout = 10 * time.Second
	// firstNote is when the requester gets a note if the app is not found yet: clients give up
	// after some seconds without a message.
	firstNote = 1500 * time.Millisecond
	// listenTimeout is how long an open stream waits for a subscriber.
	listenTimeout = 10 * time.Second
	// pace and paceBurst are the rate of a stream without a window, in bytes per second and
	// bytes: the stock client keeps up with it.
	pace      = 4 << 20
	paceBurst = 1 << 20
	// farDuration is the default duration of a stream to another account, maxFarDuration the
	// longest: such a stream does not notice that its reader is gone.
	farDuration    = 10 * time.Minute
	maxFarDuration = time.Hour
	// outageLimit is how long the service's connection may be lost before a stream ends.
	outageLimit = 15 * time.Second
	// payloadMargin is the part of max_payload for headers, apart from the list of replicas.
	payloadMargin = 1 << 10
	// pendingBytes bounds the queue of messages that clients send to a stream.
	pendingBytes = 256 << 10
)

// The errors that end a stream before the end of its log.
var (
	errStopped     = errors.New("stopped by request")
	errMaxDuration = errors.New("maximum duration reached")
	errStalled     = errors.New("the reader does not acknowledge")
	errGone        = errors.New("the reader is gone")
	errNoListener  = errors.New("no reader subscribed")
)

// resultGone is the result of a request whose reader is gone.
const resultGone = "gone"

// stream is one request that is answered with many messages.
type stream struct {
	*Service
	req    *logRequest
	id     string
	target string // the subject that is written to
	ack    string // what a reply subject begins with

	reader  *reader
	window  *window
	out     *outbox
	encoder *encoder
	limiter *rate.Limiter
	seq     uint64
	lines   int64
}

// serve sends the stream until ctx is done, without its end. conclude sends the end after the
// resources of the stream are released, unless parent is done, and returns the result.
func (s *stream) serve(ctx, parent context.Context) (conclude func() (result string)) {
	defer s.window.release()
	defer s.out.release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if d := s.limit(); d > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, d, errMaxDuration)
		defer stop()
	}
	unsubscribe, err := s.listen(cancel)
	if err != nil {
		return func() string { return s.finish(parent, s.req.reply, err) }
	}
	defer unsubscribe()
	source, err := s.open(ctx)
	if err != nil {
		target := s.target
		if s.req.op == subjects.LogOpen {
			target = s.req.reply // the requester does not have the other one yet
		}
		return func() string { return s.finish(parent, target, err) }
	}
	defer source.Close()
	s.encoder = newEncoder(s.req, source.Org())
	err = s.transfer(ctx, cancel, source)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return func() string { return s.finish(parent, s.target, err) }
}

// transfer sends the log of the source.
func (s *stream) transfer(ctx context.Context, end context.CancelCauseFunc, source LogStream) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if s.req.op == subjects.LogOpen {
		if err := s.sendSubject(); err != nil {
			return err
		}
		if err := s.awaitListener(ctx); err != nil {
			return err
		}
	}
	running.Go(func() { s.monitor(ctx, end) })
	out := s.out
	if err := out.Replicas(ctx, source.Replicas()); err != nil {
		return err
	}
	var readErr error
	running.Go(func() {
		defer out.close()
		readErr = source.Run(ctx, out)
	})
	err := s.send(ctx, out)
	if err == nil {
		err = s.window.drain(ctx)
	}
	stop()
	running.Wait()
	if err != nil {
		return err
	}
	return readErr
}

// limit is how long the stream may last, 0 for no limit.
func (s *stream) limit() time.Duration {
	if !s.req.far() {
		return s.req.maxDuration
	}
	if s.req.maxDuration == 0 {
		return farDuration
	}
	return min(s.req.maxDuration, maxFarDuration)
}

// listen subscribes to the acknowledgements of the stream and to its stop subject.
func (s *stream) listen(end context.CancelCauseFunc) (unsubscribe func(), err error) {
	project := s.req.query.App.Project
	acks, err := s.names.LogsAckFilter(project, s.id)
	if err != nil {
		return nil, err
	}
	s.ack = strings.TrimSuffix(acks, "*")
	stop, err := s.names.LogsStop(project, s.id)
	if err != nil {
		return nil, err
	}
	var subs []*nats.Subscription
	unsubscribe = func() {
		for _, sub := range subs {
			_ = sub.Unsubscribe() // fails on a closed connection only
		}
	}
	for subject, handle := range map[string]nats.MsgHandler{
		acks: s.handleAck,
		stop: func(msg *nats.Msg) {
			end(errStopped)
			if request.CheckReply(s.cfg.InboxPrefix, msg.Reply) == "" {
				_ = msg.Respond([]byte("stopped\n")) // the stream's end reports it, too
			}
		},
	} {
		sub, err := s.nc.Subscribe(subject, handle)
		if err != nil {
			unsubscribe()
			return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
		}
		subs = append(subs, sub)
		// Acknowledgements beyond the limits are lost; their messages are sent again.
		if err := sub.SetPendingLimits(2*maxWindow, pendingBytes); err != nil {
			unsubscribe()
			return nil, fmt.Errorf("bound %s: %w", subject, err)
		}
	}
	return unsubscribe, nil
}

// open finds the log. The requester of a tail gets a note when that takes long.
func (s *stream) open(ctx context.Context) (LogStream, error) {
	ctx, stop := context.WithTimeoutCause(ctx, openTimeout, request.Errorf(subjects.CodeDeadlineExceeded, "Kubernetes has not answered for %s", openTimeout))
	defer stop()
	type result struct {
		source LogStream
		err    error
	}
	found := make(chan result, 1)
	go func() {
		source, err := s.source.Open(ctx, s.req.query)
		found <- result{source, err}
	}()
	var r result
	var sendErr error
	select {
	case r = <-found:
	case <-time.After(firstNote):
		if s.req.op == subjects.LogTail {
			s.encoder = newEncoder(s.req, "")
			sendErr = s.sendNote(ctx, parcel{note: subjects.LogNoteWaiting, text: "waiting for Kubernetes"})
			if sendErr != nil {
				stop()
			}
		}
		r = <-found
	}
	switch {
	case sendErr != nil:
		if r.source != nil {
			r.source.Close()
		}
		return nil, sendErr
	case r.err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return r.source, r.err
}

// sendSubject answers an open with the subject of the stream.
func (s *stream) sendSubject() error {
	err := s.nc.PublishMsg(&nats.Msg{Subject: s.req.reply, Data: []byte(s.target), Header: nats.Header{subjects.HeaderLogStream: {s.id}}})
	if err != nil {
		return fmt.Errorf("answer on %s: %w", s.req.reply, err)
	}
	return nil
}

// awaitListener waits for a subscriber.
func (s *stream) awaitListener(ctx context.Context) error {
	limit, tick := time.After(listenTimeout), time.Tick(missingInterval/2)
	for {
		s.probe()
		select {
		case <-s.reader.listening:
			return nil
		case <-tick:
		case <-limit:
			return errNoListener
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// finish sends the end of the stream, after the error if there is one.
func (s *stream) finish(ctx context.Context, target string, err error) (result string) {
	var failure *request.Error
	reason := subjects.LogEndEOF
	switch {
	case err == nil:
	case errors.Is(err, errGone), errors.Is(err, errNoListener), errors.Is(err, nats.ErrConnectionClosed):
		return resultGone
	case errors.Is(err, errStopped):
		reason = subjects.LogEndStopped
	case errors.Is(err, errMaxDuration):
		reason = subjects.LogEndMaxDuration
	case errors.Is(err, errStalled):
		reason = subjects.LogEndStalled
	case errors.Is(err, request.ErrShutdown), errors.Is(err, context.Canceled):
		reason = subjects.LogEndShutdown
	default:
		failure = s.failure(s.req.query.App, err)
		reason, result = endOf(failure), failure.Code.String()
	}
	if failure != nil {
		s.publishLast(ctx, request.ErrorMessage(target, failure))
	}
	s.publishLast(ctx, endMessage(target, ending{id: s.id, seq: s.seq + 1, reason: reason, lines: s.reader.delivered(s.lines), end: s.req.end}))
	if result == "" {
		result = string(reason)
	}
	return result
}

// header returns the headers that all messages have.
func (s *stream) header() nats.Header {
	s.seq++
	return nats.Header{
		subjects.HeaderLogStream: {s.id},
		subjects.HeaderLogSeq:    {strconv.FormatUint(s.seq, 10)},
	}
}
