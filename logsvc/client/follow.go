package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// heardMargin is how long before its last message a stream is resumed by a service that does not know
	// its positions.
	heardMargin  = time.Minute
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
// lines may be missing or repeated: the log does not have the last line any more, or a replica is gone. A
// Note of kind waiting reports that the stream could not be resumed at once. A message with Lines may
// have an empty Body. There is one Last message, with the number of all lines.
//
// Only LogFormatRaw (or none) can be followed. The service knows where to go on. An older one that
// does not is asked for the time of the last line, and a Note reports that lines may be repeated.
func Follow(ctx context.Context, nc *nats.Conn, req Request, handle Handler) (End, error) {
	return follow(ctx, nc, req, handle, followTiming(), defaultPause())
}

func follow(ctx context.Context, nc *nats.Conn, req Request, handle Handler, t timing, pause *backoff.ExponentialBackOff) (End, error) {
	if req.Format != "" && req.Format != subjects.LogFormatRaw {
		return End{}, fmt.Errorf("log request: format %q: want %s, the only one that can be resumed", req.Format, subjects.LogFormatRaw)
	}
	f := &follower{nc: nc, req: req, handle: handle, timing: t, pause: pause, positions: map[string]string{}, times: map[string]time.Time{}}
	end, err := f.run(ctx)
	if f.last == nil || f.failed != nil {
		return end, err
	}
	end.Lines, f.last.End.Lines = f.lines, f.lines
	return end, cmp.Or(handle(f.last), err)
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
	lines      int64
	failed     error    // of the handler
	last       *Message // the end of the newest stream
	reconnects uint64   // of the connection at the last pause

	// exact: positions has those of the lines that the handler got, by replica. One is empty until it comes.
	exact     bool
	positions map[string]string
	heard     time.Time // when the newest lines came
	// times are those of the last lines, by replica, from a service that does not know positions.
	times  map[string]time.Time
	warned bool // the handler knows that lines may be repeated

	old      bool   // the service of this stream does not know positions
	resuming bool   // this stream goes on behind positions
	answered bool   // this stream has begun
	listed   bool   // this stream has named its replicas
	names    string // of the replicas, as they were handed on last; empty: no stream has named them
	waiting  string // the newest note of that kind, until something else comes
	pending  bool   // the handler expects another message
}

func (f *follower) run(ctx context.Context) (End, error) {
	f.began = time.Now()
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
		case resumed && f.listed:
			noted, broken = false, time.Time{}
		case broken.IsZero() && resumed:
			broken = began
		}
		if !broken.IsZero() && !noted && time.Since(broken) >= f.timing.silentRetry {
			noted = true
			if err := f.note("the log stream was interrupted (" + describe(end, err) + "), trying to go on"); err != nil {
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

// attempt reads one stream. A service that does not know positions is asked again without them.
func (f *follower) attempt(ctx context.Context) (End, error) {
	resumed := f.names != ""
	f.old = false
	end, err := f.read(ctx)
	if failureCode(err) == subjects.CodeInvalidArgument && !f.answered {
		f.old = true
		end, err = f.read(ctx)
	}
	if resumed && failureCode(err) == subjects.CodeNotFound {
		// Without an interruption this would have been the end of the log.
		if err := f.note("the app or the replica is gone; its last lines may be missing"); err != nil {
			return End{}, err
		}
		end = End{Reason: subjects.LogEndEOF}
		f.last = &Message{Kind: Last, End: end}
		return end, nil
	}
	return end, err
}

// failureCode returns the code of an error of the service, else 0.
func failureCode(err error) subjects.Code {
	if failure, ok := errors.AsType[*Error](err); ok {
		return failure.Code
	}
	return 0
}

// request returns the request for the next stream.
func (f *follower) request() Request {
	req := f.req
	req.Format, req.Timestamps = subjects.LogFormatRaw, f.req.Timestamps || f.old
	if f.req.MaxDuration > 0 && f.started {
		req.MaxDuration = max(f.remaining(), time.Millisecond)
	}
	if since := f.since(); !since.IsZero() {
		req.Tail, req.Since, req.SinceStart, req.SinceTime = nil, 0, false, since
	}
	if f.old {
		return req
	}
	req.positions = &positions{}
	if f.exact {
		req.positions.resume = f.positions
		if !slices.Contains(slices.Collect(maps.Values(f.positions)), "") {
			req.Tail, req.Since, req.SinceStart, req.SinceTime = nil, 0, false, time.Time{}
		}
	}
	return req
}

// since returns the time from which a stream without positions goes on, zero if that is not known.
func (f *follower) since() (first time.Time) {
	if f.old && f.exact {
		return f.heard.Add(-heardMargin)
	}
	for _, at := range f.times {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}
