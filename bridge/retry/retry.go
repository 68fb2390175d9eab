package retry

import (
	"context"
	"iter"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.uber.org/zap"
)

// Do calls op until it succeeds, is permanent or ctx ends: exponential, capped, jittered. report
// receives each failure that will be tried again.
func Do(ctx context.Context, op func() error, report func(err error, next time.Duration)) error {
	policy := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second),
		backoff.WithMaxElapsedTime(0),
	)
	err := backoff.RetryNotify(op, backoff.WithContext(policy, ctx), report)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // the cause, not "context canceled"
	}
	return err
}

// Permanent marks an error that no retry fixes.
func Permanent(err error) error { return backoff.Permanent(err) }

// NewPause makes the pauses of a loop that starts the same thing again and again.
func NewPause() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond), backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
}

// Wait waits for d. It returns the cause if ctx ends first.
func Wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Ticks yields at each interval until ctx ends.
func Ticks(ctx context.Context, interval time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for tick := time.Tick(interval); ; {
			select {
			case now := <-tick:
				if ctx.Err() != nil || !yield(now) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// Log logs why something has to be tried again: each reason once, and again after a while.
type Log struct {
	Logger *zap.Logger
	last   string
	at     time.Time
}

const logInterval = 30 * time.Second

// Warn logs an error under a message.
func (l *Log) Warn(message string, err error) {
	if err.Error() == l.last && time.Since(l.at) < logInterval {
		return
	}
	l.last, l.at = err.Error(), time.Now()
	l.Logger.Warn(message, zap.Error(err))
}
