package pods

import (
	"context"
	"math"

	"golang.org/x/time/rate"

	"github.com/appbridge/appbridge/bridge/request"
)

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

// wait blocks until a stream of a project that has read so many bytes and lines may read on.
func (t *throttle) wait(ctx context.Context, project string, bytes, lines int) error {
	if t.turns == nil {
		return context.Cause(ctx)
	}
	slot, err := t.turns.Acquire(ctx, request.Claim{Project: project, Units: 1})
	if err != nil {
		return err
	}
	defer slot.Release()
	return t.rate.WaitN(ctx, t.cost(bytes, lines))
}

func (t *throttle) cost(bytes, lines int) int {
	return min(max(bytes, lines*minLineBytes), t.rate.Burst())
}
