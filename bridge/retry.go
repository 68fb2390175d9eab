package bridge

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.uber.org/zap"
)

// retry calls op until it succeeds, is permanent or ctx ends: exponential,
// capped, jittered. report hears of each failure that will be tried again.
func retry(ctx context.Context, op func() error, report func(err error, next time.Duration)) error {
	policy := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second),
		backoff.WithMaxElapsedTime(0),
	)
	err := backoff.RetryNotify(op, backoff.WithContext(policy, ctx), report)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // why it was given up, not that it was
	}
	return err
}

// permanent marks an error that no retry mends.
func permanent(err error) error { return backoff.Permanent(err) }

// newPause paces something that is started over and over.
func newPause() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond), backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
}

// waitLog logs why something has to be tried again: each reason once, and
// again after a while.
type waitLog struct {
	log  *zap.Logger
	last string
	at   time.Time
}

const waitLogInterval = 30 * time.Second

func (w *waitLog) warn(what string, err error) {
	if err.Error() == w.last && time.Since(w.at) < waitLogInterval {
		return
	}
	w.last, w.at = err.Error(), time.Now()
	w.log.Warn(what, zap.Error(err))
}
