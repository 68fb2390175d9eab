package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

// Handler takes the messages of a stream one by one, in order. While it works
// the stream waits, as long as it takes; of a log that is followed the service
// then drops the oldest lines and says how many. Its error ends the stream, and
// is what Tail returns.
type Handler func(*Message) error

// timing is how long the client waits for what.
type timing struct {
	look   time.Duration // how often it looks whether all is well
	quiet  time.Duration // without a message, until it asks whether the service is there
	answer time.Duration // for the server to say that it is not
	gone   time.Duration // during which the server says so
	gap    time.Duration // for a missing message to come
	end    time.Duration // for the end after an error, and for the last words to be sent
	sign   time.Duration // how often the service hears of a reader whose handler is at work
	// resumes: another stream goes on where this one breaks.
	resumes bool
	quietly time.Duration // for which that may fail without a note
}

func defaultTiming() timing {
	return timing{
		look: 250 * time.Millisecond, quiet: 5 * time.Second, answer: time.Second,
		gone: 20 * time.Second, gap: 30 * time.Second, end: time.Second,
		sign: 15 * time.Second,
	}
}

// Tail reads the log of an app and hands it to handle until the stream has
// ended (nil), ctx is done (its error), handle fails (its error), or there is no
// way on. It tells the service to stop when it leaves before the end. During an
// outage of NATS it waits for the connection to come back; a connection that is
// closed for good is an error. Tail may be called from many goroutines.
//
// The handler also gets the Last message, whatever Tail makes of it.
func Tail(ctx context.Context, nc *nats.Conn, req Request, handle Handler) (End, error) {
	return tail(ctx, nc, req, handle, defaultTiming())
}

func tail(ctx context.Context, nc *nats.Conn, req Request, handle Handler, t timing) (End, error) {
	req = req.withDefaults()
	s, err := newStream(nc, req, t)
	if err != nil {
		return End{}, err
	}
	arriving := make(chan *nats.Msg, req.arriving())
	// An inbox of its own: that of the connection's requests has a subscription,
	// and everything would come twice.
	reply := nc.NewInbox()
	sub, err := nc.ChanSubscribe(reply, arriving)
	if err != nil {
		return End{}, fmt.Errorf("subscribe to %s: %w", reply, err)
	}
	asking, err := nc.ChanSubscribe(s.life.inbox, s.life.answers)
	if err != nil {
		return End{}, errors.Join(fmt.Errorf("subscribe to %s: %w", s.life.inbox, err), unsubscribe(sub))
	}
	receiving, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { s.inbox.run(receiving, nc, arriving, t.sign) })

	end, err := s.read(ctx, req, reply, handle)
	cancel()
	running.Wait()
	s.sayStop(ctx)
	if left := errors.Join(unsubscribe(asking), unsubscribe(sub)); err == nil {
		err = left
	}
	return end, err
}

// unsubscribe is not needed on a connection that is closed.
func unsubscribe(sub *nats.Subscription) error {
	if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
		return fmt.Errorf("unsubscribe from %s: %w", sub.Subject, err)
	}
	return nil
}

// stream is one call of Tail.
type stream struct {
	nc      *nats.Conn
	app     subjects.AppID
	scheme  subjects.Subjects
	subject string // of the request
	body    []byte
	timing  timing
	inbox   *inbox
	life    *life

	id       string // empty before the first message
	over     bool   // there is nobody to be told to stop
	failure  *Error // what the service told, before the end
	failedAt time.Time
	asked    time.Time // when the request went out
	// reconnects of the connection when the request went out.
	reconnects uint64
}

func newStream(nc *nats.Conn, req Request, t timing) (*stream, error) {
	err := req.validate()
	scheme, schemeErr := subjects.New(req.Prefix)
	if err = errors.Join(err, schemeErr); err != nil {
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
		nc: nc, app: req.App, scheme: scheme, subject: subject, body: body, timing: t,
		inbox: newInbox(req.room(), req.Window == Paced, time.Now()), life: newLife(nc, t),
	}, nil
}

// read asks for the stream and reads it to its end.
func (s *stream) read(ctx context.Context, req Request, reply string, handle Handler) (End, error) {
	s.asked, s.reconnects = time.Now(), s.nc.Stats().Reconnects
	if err := s.nc.PublishMsg(&nats.Msg{Subject: s.subject, Reply: reply, Data: s.body}); err != nil {
		return End{}, fmt.Errorf("ask for logs on %s: %w", s.subject, err)
	}
	look := time.NewTicker(s.timing.look)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return End{}, ctx.Err()
		case it := <-s.inbox.queue:
			if ended, err := s.take(&it, handle); ended || err != nil {
				return it.End, err
			}
		case m := <-s.life.answers:
			if err := s.life.answered(m, time.Now()); err != nil {
				s.over = true
				return End{}, err
			}
		case <-look.C:
			if err := s.check(req, time.Now()); err != nil {
				return End{}, err
			}
		}
	}
}

// take handles one message and tells whether it was the last.
func (s *stream) take(it *item, handle Handler) (ended bool, err error) {
	if it.noService {
		if s.id != "" {
			return false, nil // of a service that was slow to see this subscription
		}
		s.over = true
		return false, fmt.Errorf("%w on %s", ErrNoService, s.subject)
	}
	if it.stream != "" {
		s.id = it.stream
	}
	if it.ack != "" {
		s.life.subject = it.ack
	}
	if it.failure != nil {
		s.failure, s.failedAt = it.failure, time.Now()
		if it.Kind != Last {
			s.finish(it)
			return false, nil // the end comes next
		}
	}
	if it.Kind == Last {
		s.over = true
		// Nothing comes after the end, so what is missing stays so.
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
		s.inbox.excuse(now) // the service is the slower to send again the longer it waits
	}
	if it.Kind == Last {
		return true, endError(it.End.Reason, s.failure)
	}
	s.finish(it)
	return false, nil
}

// finish acknowledges what the handler has taken.
func (s *stream) finish(it *item) {
	if it.seq > 0 {
		s.inbox.handled(it)
	}
	acknowledge(s.nc, it.ack)
}

// check finds out that nothing will come any more.
func (s *stream) check(req Request, now time.Time) error {
	if s.nc.IsClosed() {
		s.over = true
		return fmt.Errorf("read logs: %w", errors.Join(nats.ErrConnectionClosed, s.nc.LastError()))
	}
	arrived, started, gap, broken := s.inbox.state()
	switch {
	case broken != nil:
		return broken
	case s.failure != nil && now.Sub(s.failedAt) > s.timing.end:
		return s.failure
	case !started && now.Sub(s.asked) > req.Timeout:
		return fmt.Errorf("%w on %s within %s", ErrNoAnswer, s.subject, req.Timeout)
	case !s.nc.IsConnected():
		s.inbox.excuse(now)
		s.life.connected = false
		return nil
	case len(s.inbox.queue) > 0:
		// What has arrived is handed on before anything is found missing.
	case !gap.IsZero() && (s.inbox.paced || now.Sub(gap) > s.timing.gap):
		return s.inbox.gapError() // of a paced stream nothing is sent again
	case s.inbox.paced && s.timing.resumes && s.nc.Stats().Reconnects != s.reconnects:
		return fmt.Errorf("%w: the connection was interrupted, and nothing is sent again without a window", ErrGap)
	}
	return s.life.check(arrived, now)
}

// sayStop asks the service to end the stream, unless it has.
func (s *stream) sayStop(ctx context.Context) {
	if s.over || s.id == "" || !s.nc.IsConnected() {
		return
	}
	subject, err := s.scheme.LogsStop(s.app.Project, s.id)
	if err != nil {
		return // an id that is none: the service finds out by itself that nobody listens
	}
	// It may go wrong without harm for the same reason.
	_ = s.nc.Publish(subject, nil)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timing.end)
	defer cancel()
	_ = s.nc.FlushWithContext(ctx)
}
