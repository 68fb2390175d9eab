package pods

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// lease holds the slots of one stream. When a project needs slots and another one has more than
// its share, the newest streams of that project end.
type lease struct {
	slots   *request.Limiter
	project string

	mu      sync.Mutex
	held    []*request.Slot         // those with units left
	revoked error                   // set when the stream has to end, or has ended
	end     context.CancelCauseFunc // ends the stream; nil before it runs
}

// take takes n slots or none. Nothing can be taken after close.
func (l *lease) take(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	slot, err := l.slots.Acquire(ctx, request.Claim{Project: l.project, Units: n, Revoke: l.revoke})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revoked != nil {
		slot.Release()
		return l.revoked
	}
	l.held = append(l.held, slot)
	return nil
}

// revoke ends the stream, now or as soon as it runs. A stream that waits for its reader does not
// run yet: its slots are released at once.
func (l *lease) revoke(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revoked != nil {
		return
	}
	l.revoked = cause
	if l.end == nil {
		l.releaseAll()
		return
	}
	l.end(cause)
}

// run returns a context for the stream that ends when slots are revoked.
func (l *lease) run(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = end
	if l.revoked != nil {
		end(l.revoked)
	}
	return ctx, end
}

func (l *lease) giveBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := len(l.held) - 1; last >= 0 && l.held[last].Return(1) == 0 {
		l.held = l.held[:last]
	}
}

func (l *lease) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revoked == nil {
		l.revoked = request.Errorf(subjects.CodeInternal, "the log stream is closed")
	}
	l.releaseAll()
}

// releaseAll is called with the lock.
func (l *lease) releaseAll() {
	for _, slot := range l.held {
		slot.Release()
	}
	l.held = nil
}

const (
	// maxCalls is how many requests to the API server, other than those for a log, run at a
	// time. More would slow down each of them and the API server.
	maxCalls = 8
	// minLineBytes is how many bytes a line counts at least: short lines take as much CPU time
	// as long ones.
	minLineBytes = 128
)

// newCalls makes the limit for requests that are not for a log. The queue has no bound: each
// request belongs to a stream, and those are limited.
func newCalls() *request.Limiter {
	return request.NewLimiter(request.Limit{What: "requests to Kubernetes", Max: maxCalls, Pending: math.MaxInt})
}

// throttle limits the read rate of all logs together. Projects take turns, so that the many
// streams of one project do not delay those of another.
type throttle struct {
	rate  *rate.Limiter
	turns *request.Limiter
}

// newThrottle makes a throttle; 0 is no limit.
func newThrottle(bytesPerSecond int64) *throttle {
	t := &throttle{rate: rate.NewLimiter(rate.Inf, 0)}
	if bytesPerSecond > 0 {
		t.rate = rate.NewLimiter(rate.Limit(bytesPerSecond), max(readBytes, int(bytesPerSecond/8)))
		t.turns = request.NewLimiter(request.Limit{What: "reads of logs", Max: 1, Pending: math.MaxInt})
	}
	return t
}

// errThrottled: the time of a query is over before it may read on.
var errThrottled = errors.New("the log service may not read more in time (max-log-rate)")

// wait blocks until a stream of a project that has read so many bytes and lines may read on.
func (t *throttle) wait(ctx context.Context, project string, bytes, lines int) error {
	if t.turns == nil {
		return context.Cause(ctx)
	}
	slot, err := t.turns.Acquire(ctx, request.Claim{Project: project, Units: 1})
	if err == nil {
		err = t.rate.WaitN(ctx, t.cost(bytes, lines))
		slot.Release()
	}
	if err == nil {
		return nil
	}
	<-ctx.Done() // its deadline may be before the time of the bytes
	if err := context.Cause(ctx); !errors.Is(err, errLate) {
		return err
	}
	return errThrottled
}

// spend counts what a follow has read, as far as the rate allows, and never waits.
func (t *throttle) spend(bytes, lines int) {
	if t.turns != nil {
		t.rate.AllowN(time.Now(), t.cost(bytes, lines))
	}
}

func (t *throttle) cost(bytes, lines int) int {
	return min(max(bytes, lines*minLineBytes), t.rate.Burst())
}
