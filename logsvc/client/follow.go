package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// resumeMargin is how long before the last line a resumed request begins: lines may be
	// slightly out of order, and a new replica is noticed slightly late.
	resumeMargin = 10 * time.Second
	newcomer     = time.Minute      // how long a replica may write before it is noticed
	progressTime = 10 * time.Second // how long a stream lasts that counts as a success
	// ResumeTimeout is how long Follow retries while NATS is connected.
	ResumeTimeout = 5 * time.Minute
)

func followTiming() timing {
	t := defaultTiming()
	t.resumes = true
	t.gone = 5 * time.Second // another stream is cheap
	t.silentRetry = 2 * time.Second
	return t
}

func defaultPause() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMultiplier(2), backoff.WithMaxInterval(10*time.Second), backoff.WithMaxElapsedTime(ResumeTimeout))
}

// Follow reads the log of an app like Tail, and resumes when the stream breaks: after the last line
// that the handler got, without repeats or holes. It gives up after ResumeTimeout without success
// (which starts again with each connection to NATS). The first request has the errors and the end
// of Tail.
//
// The handler gets each line once, whole, in the order of its replica's log. It gets a Note when
// lines may be missing: the log does not have the last line any more, or a replica is gone. A Note
// of kind waiting reports that the stream could not be resumed at once. A message with Lines may
// have an empty Body. There is one Last message, with the number of all lines.
//
// Only LogFormatRaw (or none) can be followed. A position is a time and a count of lines: lines
// without a time may be repeated.
func Follow(ctx context.Context, nc *nats.Conn, req Request, handle Handler) (End, error) {
	return follow(ctx, nc, req, handle, followTiming(), defaultPause())
}

func follow(ctx context.Context, nc *nats.Conn, req Request, handle Handler, t timing, pause *backoff.ExponentialBackOff) (End, error) {
	if req.Format != "" && req.Format != subjects.LogFormatRaw {
		return End{}, fmt.Errorf("log request: format %q: want %s, the only one that can be resumed", req.Format, subjects.LogFormatRaw)
	}
	f := &follower{nc: nc, req: req, handle: handle, timing: t, pause: pause, places: map[string]*place{}}
	end, err := f.run(ctx)
	if f.last == nil || f.failed != nil {
		return end, err
	}
	end.Lines, f.last.End.Lines = f.lines, f.lines
	return end, cmp.Or(handle(f.last), err)
}

// place is a position in the log of a replica, and the progress of the current stream.
type place struct {
	position

	live bool // one of the replicas that are read
	// since is where the log is needed from while the handler got no line, and least the time
	// before which no line is wanted.
	since   time.Time
	least   time.Time
	passage passage
}

// begin prepares for another stream. sure: one of the same attempt had the last line.
func (p *place) begin(pass pass, sure bool) {
	p.passage = passage{position: p.position, skipping: p.any, sure: sure, before: pass == passBacklog}
	if !p.any {
		p.passage.least = p.least
	}
}

func (p *place) from() time.Time {
	if p.any {
		return p.last
	}
	return p.since
}

// follower is one call of Follow. It is for one goroutine.
type follower struct {
	nc     *nats.Conn
	req    Request
	handle Handler
	timing timing
	pause  *backoff.ExponentialBackOff

	began      time.Time // of the first request
	started    bool      // the first stream has begun
	places     map[string]*place
	lines      int64
	failed     error    // of the handler
	last       *Message // the end of the newest stream
	reconnects uint64   // of the connection at the last pause

	pass    pass
	listed  bool      // this stream has named its replicas
	names   string    // of the replicas, as they were handed on last
	noted   time.Time // when
	waiting string    // the newest note of that kind, until something else comes
	pending bool      // the handler expects another message
}

// pass is what a stream is read for.
type pass int

const (
	passFirst pass = iota
	// passBacklog: lines from before the first request, of replicas of which the handler got
	// none.
	passBacklog
	// passPrevious: lines of instances that ended during the interruption.
	passPrevious
	passMain
)

func (f *follower) run(ctx context.Context) (End, error) {
	f.began = time.Now()
	f.noted = f.began
	noted := false
	var broken time.Time // since when no attempt succeeded; zero while one has
	for {
		resumed, began, lines := f.started, time.Now(), f.lines
		end, err := f.attempt(ctx)
		if err = f.finishPending(err); f.terminal(ctx, end, err) {
			return end, err
		}
		switch {
		case f.lines > lines, f.listed && time.Since(began) > progressTime:
			f.pause.Reset()
			noted, broken = false, time.Time{}
		case f.pass == passMain && f.listed:
			noted, broken = false, time.Time{}
		case broken.IsZero() && resumed:
			broken = began
		}
		if !broken.IsZero() && !noted && time.Since(broken) >= f.timing.silentRetry {
			noted = true
			if err := f.note("the log stream was interrupted ("+describe(end, err)+"), trying to go on", ""); err != nil {
				return End{}, err
			}
		}
		if stop := f.backOff(ctx); stop != nil {
			if ctx.Err() == nil {
				stop = fmt.Errorf("the log stream could not be resumed within %s: %s", ResumeTimeout, describe(end, err))
			}
			return End{}, stop
		}
	}
}

func describe(end End, err error) string {
	if err == nil {
		return "the service ended it: " + string(end.Reason)
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

// finishPending ends a sequence of messages that a broken stream has interrupted.
func (f *follower) finishPending(err error) error {
	if f.failed == nil && f.pending {
		return cmp.Or(f.deliver(&Message{Kind: Lines}), err)
	}
	return err
}

// terminal reports whether the end is that of the reader or of the log, or an error that retries
// do not help.
func (f *follower) terminal(ctx context.Context, end End, err error) bool {
	var failure *Error
	var ended *EndError
	switch {
	case f.failed != nil, ctx.Err() != nil, errors.Is(err, nats.ErrConnectionClosed):
		return true
	case err == nil:
		// The service has a limit of its own for readers in other accounts.
		return end.Reason != subjects.LogEndMaxDuration || f.req.MaxDuration > 0 && f.remaining() < time.Second
	case errors.As(err, &ended):
		return !f.started && ended.Reason != subjects.LogEndShutdown && ended.Reason != subjects.LogEndStalled
	case !f.started:
		return true
	case errors.As(err, &failure):
		return slices.Contains([]subjects.Code{subjects.CodeInvalidArgument, subjects.CodePermissionDenied, subjects.CodeNotFound, subjects.CodeFailedPrecondition}, failure.Code)
	}
	return !errors.Is(err, ErrGone) && !errors.Is(err, ErrGap) && !errors.Is(err, ErrNoAnswer) && !errors.Is(err, ErrNoService)
}

func (f *follower) remaining() time.Duration { return f.req.MaxDuration - time.Since(f.began) }

// backOff pauses before the next attempt, and waits for a connection.
func (f *follower) backOff(ctx context.Context) error {
	if n := f.nc.Stats().Reconnects; n != f.reconnects {
		f.reconnects = n
		f.pause.Reset()
	}
	wait := f.pause.NextBackOff()
	if wait == backoff.Stop {
		return ErrGone
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		if f.nc.IsConnected() || f.nc.IsClosed() {
			return nil // the next attempt returns the error of a closed connection
		}
		f.pause.Reset()
		wait = f.timing.check
	}
}

func (f *follower) attempt(ctx context.Context) (End, error) {
	if f.names == "" && len(f.places) == 0 {
		return f.read(ctx, passFirst, f.req)
	}
	req := f.req
	req.Since, req.SinceStart, req.SinceTime, req.Tail = 0, false, f.since(), nil
	for _, p := range f.places {
		p.passage.sure = false
	}
	if f.hasBacklog() {
		backlog := f.req
		backlog.Follow = new(false)
		if err := f.catchUp(ctx, passBacklog, backlog); err != nil {
			return End{}, err
		}
	}
	if !f.req.Previous {
		previous := req
		previous.Previous, previous.Follow = true, new(false)
		if err := f.catchUp(ctx, passPrevious, previous); err != nil {
			return End{}, err
		}
	}
	end, err := f.read(ctx, passMain, req)
	if failure, ok := errors.AsType[*Error](err); ok && failure.Code == subjects.CodeNotFound {
		// Without an interruption this would have been the end of the log.
		if err := f.note("the app or the replica is gone; its last lines may be missing", ""); err != nil {
			return End{}, err
		}
		end = End{Reason: subjects.LogEndEOF}
		f.last = &Message{Kind: Last, End: end}
		return end, nil
	}
	return end, err
}

// catchUp reads lines that the resumed stream does not have, if there are any.
func (f *follower) catchUp(ctx context.Context, pass pass, req Request) error {
	end, err := f.read(ctx, pass, req)
	var failure *Error
	switch {
	case errors.As(err, &failure) && (failure.Code == subjects.CodeFailedPrecondition || failure.Code == subjects.CodeNotFound):
		return nil
	case err == nil && end.Reason != subjects.LogEndEOF:
		return &EndError{Reason: end.Reason}
	}
	return err
}

// since returns the time from which the log is needed, for known replicas and for new ones.
func (f *follower) since() time.Time {
	var first time.Time
	for name, p := range f.places {
		at := p.from()
		switch {
		case p.live && (first.IsZero() || at.Before(first)):
			first = at
		case !p.live && time.Since(at) > time.Hour:
			delete(f.places, name) // it went long ago
		}
	}
	if first.IsZero() {
		first = f.noted // there was none
	}
	return first.Add(-resumeMargin)
}

// hasBacklog reports whether the request has existing lines of logs of which the handler got none.
func (f *follower) hasBacklog() bool {
	if f.req.Tail == nil && (f.req.Since != 0 || !f.req.SinceTime.IsZero()) || f.req.Tail != nil && *f.req.Tail == 0 {
		return false // everything from the floor on was wanted
	}
	for _, p := range f.places {
		if p.live && !p.any && !p.least.IsZero() {
			return true
		}
	}
	return false
}

// floor returns the time from which all lines of the first replicas are wanted.
func (f *follower) floor() time.Time {
	switch {
	case f.req.Tail != nil:
	case f.req.Since != 0:
		return f.began.Add(-f.req.Since)
	case !f.req.SinceTime.IsZero():
		return f.req.SinceTime
	}
	return f.began
}
