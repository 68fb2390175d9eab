package bridge

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// retry calls op until it succeeds, is permanent or ctx ends: exponential,
// capped, jittered. report hears of each failure that will be tried again.
func retry(ctx context.Context, op func() error, report func(err error, next time.Duration)) error {
	policy := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second),
		backoff.WithMaxElapsedTime(0),
	)
	return backoff.RetryNotify(op, backoff.WithContext(policy, ctx), report)
}

// permanent marks an error that no retry mends.
func permanent(err error) error { return backoff.Permanent(err) }

// newPause paces something that is started over and over.
func newPause() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond), backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
}
