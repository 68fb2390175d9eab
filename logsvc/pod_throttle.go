package logsvc

import (
	"context"
	"math"

	"github.com/appbridge/appbridge/bridge/request"

	"golang.org/x/time/rate"
)

const (
	// maxCalls is how many requests to the API server, other than those for a log, run at
	// one time. More make each of them slower, and the API server with them.
	maxCalls = 8
	// minLineBytes is what a line counts at least, in bytes: short lines cost the processor as
	// much as long ones.
	minLineBytes = 128
)

// newCalls makes the limit of the requests that are not for a log. All wait: each belongs to a
// stream, and those are limited.
func newCalls() *request.Limiter {
	return request.NewLimiter(request.Limit{What: "requests to Kubernetes", Max: maxCalls, Pending: math.MaxInt})
}

// throttle bounds how many bytes a second are read of all logs together. Projects take
// turns, so that the many streams of one do not hold up those of another.
type throttle struct {
	rate  *rate.Limiter
	turns *request.Limiter
}

// newThrottle makes a throttle; bytesPerSecond 0 is no limit.
func newThrottle(bytesPerSecond int64) *throttle {
	t := &throttle{rate: rate.NewLimiter(rate.Inf, 0)}
	if bytesPerSecond > 0 {
		t.rate = rate.NewLimiter(rate.Limit(bytesPerSecond), max(readBytes, int(bytesPerSecond/8)))
		t.turns = request.NewLimiter(request.Limit{What: "reads of logs", Max: 1, Pending: math.MaxInt})
	}
	return t
}

// wait waits until a stream of a project may read on after so many bytes and lines.
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

// cost is what a read counts.
func (t *throttle) cost(bytes, lines int) int {
	return min(max(bytes, lines*minLineBytes), t.rate.Burst())
}
