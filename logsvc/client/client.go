package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

// Handler handles the messages of a stream one by one, in order. The stream waits until it returns;
// when it is too slow for a log that is followed, the service drops the oldest lines and sends a
// note with their number. Tail returns its error.
type Handler func(*Message) error

// timing holds the timeouts and intervals of a client.
type timing struct {
	check       time.Duration // how often it checks the stream
	quiet       time.Duration // time without a message until it probes for the service
	answer      time.Duration // for the server to report that there is none
	gone        time.Duration // how long the server reports that
	gap         time.Duration // for a missing message to come
	end         time.Duration // for the end after an error, and for the last flush
	keepAlive   time.Duration // how often a client whose handler works acknowledges again
	resumes     bool          // another stream replaces one that breaks
	silentRetry time.Duration // how long that may fail without a note
}

func defaultTiming() timing {
	return timing{
		check: 250 * time.Millisecond, quiet: 5 * time.Second, answer: time.Second,
		gone: 20 * time.Second, gap: 30 * time.Second, end: time.Second,
		keepAlive: 15 * time.Second,
	}
}

// Tail reads the log of an app and hands it to handle until the stream has ended (nil), ctx is done
// (its error), handle fails (its error), or the stream breaks. If it returns before the end, it
// stops the stream. It waits while the connection reconnects; a closed connection is an error. Tail
// may be called concurrently.
//
// The handler also gets the Last message if Tail returns an error for it.
func Tail(ctx context.Context, nc *nats.Conn, req Request, handle Handler) (End, error) {
	return tail(ctx, nc, req, handle, defaultTiming())
}

func tail(ctx context.Context, nc *nats.Conn, req Request, handle Handler, t timing) (End, error) {
	s, err := newStream(nc, req, t)
	if err != nil {
		return End{}, err
	}
	// A new inbox: the connection subscribes to that of its requests, and messages would arrive
	// twice.
	reply := nc.NewInbox()
	for subject, arriving := range map[string]chan *nats.Msg{reply: s.inbox.arriving, s.liveness.inbox: s.liveness.answers} {
		sub, err := nc.ChanSubscribe(subject, arriving)
		if err != nil {
			return End{}, fmt.Errorf("subscribe to %s: %w", subject, err)
		}
		defer func() { _ = sub.Unsubscribe() }() // fails on a connection that ends only
	}
	receiving, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { s.inbox.run(receiving, nc, t.keepAlive) })
	end, err := s.read(ctx, reply, handle)
	cancel()
	running.Wait()
	s.sendStop(ctx)
	return end, err
}

// stream is one call of Tail.
type stream struct {
	nc       *nats.Conn
	req      Request
	scheme   subjects.Subjects
	subject  string // of the request
	body     []byte
	timing   timing
	inbox    *inbox
	liveness *liveness

	id         string // empty before the first message
	ended      bool   // the service needs no stop
	failure    *Error // from the service, before the end
	failedAt   time.Time
	asked      time.Time // when the request went out
	reconnects uint64    // of the connection when the request went out
}

func newStream(nc *nats.Conn, req Request, t timing) (*stream, error) {
	req.Prefix = cmp.Or(req.Prefix, subjects.DefaultPrefix)
	req.Window = cmp.Or(req.Window, DefaultWindow)
	req.Timeout = cmp.Or(req.Timeout, DefaultTimeout)
	scheme, err := subjects.New(req.Prefix)
	if err := errors.Join(req.validate(), err); err != nil {
		return nil, fmt.Errorf("log request: %w", err)
	}
	subject, err := scheme.Logs(subjects.LogTail, req.App)
	if err != nil {
		return nil, err
	}
	body, err := req.body()
	if err != nil {
		return nil, err
	}
	return &stream{
		nc: nc, req: req, scheme: scheme, subject: subject, body: body, timing: t,
		inbox:    newInbox(req.Window),
		liveness: &liveness{nc: nc, timing: t, inbox: nc.NewInbox(), answers: make(chan *nats.Msg, 16), connected: true},
	}, nil
}

func (s *stream) read(ctx context.Context, reply string, handle Handler) (End, error) {
	s.asked, s.reconnects = time.Now(), s.nc.Stats().Reconnects
	if err := s.nc.PublishMsg(&nats.Msg{Subject: s.subject, Reply: reply, Data: s.body}); err != nil {
		return End{}, fmt.Errorf("request logs on %s: %w", s.subject, err)
	}
	look := time.Tick(s.timing.check)
	for {
		select {
		case <-ctx.Done():
			return End{}, ctx.Err()
		case it := <-s.inbox.queue:
			if ended, err := s.take(&it, handle); ended || err != nil {
				return it.End, err
			}
		case m := <-s.liveness.answers:
			if err := s.liveness.answered(m, time.Now()); err != nil {
				s.ended = true
				return End{}, err
			}
		case <-look:
			if err := s.check(time.Now()); err != nil {
				return End{}, err
			}
		}
	}
}

// take handles one message and reports whether it was the last.
func (s *stream) take(it *item, handle Handler) (ended bool, err error) {
	if it.noService {
		if s.id != "" {
			return false, nil // the service had not seen this subscription yet
		}
		s.ended = true
		return false, fmt.Errorf("%w on %s", ErrNoService, s.subject)
	}
	if it.stream != "" {
		s.id = it.stream
	}
	if it.ack != "" {
		s.liveness.subject = it.ack
	}
	if it.failure != nil {
		s.failure, s.failedAt = it.failure, time.Now()
		if it.Kind != Last {
			s.finish(it)
			return false, nil // the end comes next
		}
	}
	if it.Kind == Last {
		s.ended = true // what is missing does not come any more
		if err := s.inbox.gapError(); err != nil && s.failure == nil {
			return true, err
		}
	}
	it.More = len(s.inbox.queue) > 0
	began := time.Now()
	if err := handle(&it.Message); err != nil {
		return false, err
	}
	if now := time.Now(); now.Sub(began) > s.timing.quiet {
		s.inbox.resetTimers(now) // the service sends unacknowledged messages again after longer and longer times
	}
	if it.Kind == Last {
		return true, endError(it.End.Reason, s.failure)
	}
	s.finish(it)
	return false, nil
}

func (s *stream) finish(it *item) {
	if it.seq > 0 {
		s.inbox.handled(it)
	}
	acknowledge(s.nc, it.ack)
}

func (s *stream) check(now time.Time) error {
	if s.nc.IsClosed() {
		s.ended = true
		return fmt.Errorf("read logs: %w", errors.Join(nats.ErrConnectionClosed, s.nc.LastError()))
	}
	arrived, started, gap, broken := s.inbox.state()
	switch {
	case broken != nil:
		return broken
	case s.failure != nil && now.Sub(s.failedAt) > s.timing.end:
		return s.failure
	case !started && now.Sub(s.asked) > s.req.Timeout:
		return fmt.Errorf("%w on %s within %s", ErrNoAnswer, s.subject, s.req.Timeout)
	case !s.nc.IsConnected():
		s.inbox.resetTimers(now)
		s.liveness.connected = false
		return nil
	case len(s.inbox.queue) > 0:
		// The handler gets the queued messages before a gap is an error.
	case !gap.IsZero() && (s.inbox.paced || now.Sub(gap) > s.timing.gap):
		return s.inbox.gapError() // of a paced stream nothing is sent again
	case s.inbox.paced && s.timing.resumes && s.nc.Stats().Reconnects != s.reconnects:
		return fmt.Errorf("%w: the connection was interrupted, and nothing is sent again without a window", ErrGap)
	}
	return s.liveness.check(arrived, now)
}

// sendStop makes the service end the stream, unless it has ended.
func (s *stream) sendStop(ctx context.Context) {
	if s.ended || s.id == "" || !s.nc.IsConnected() {
		return
	}
	subject, err := s.scheme.LogsStop(s.req.App.Project, s.id)
	if err != nil {
		return // an invalid id: the service notices itself that the reader is gone
	}
	// Without it the service notices that the reader is gone.
	_ = s.nc.Publish(subject, nil)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timing.end)
	defer cancel()
	_ = s.nc.FlushWithContext(ctx)
}
