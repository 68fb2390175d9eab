// Package suite is what tests have in common that need no API server: NATS servers, waiting, the
// end of a package. It imports nothing of Kubernetes, which takes seconds to link.
package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Patience bounds every wait. Nothing is expected to come near it.
const Patience = 5 * time.Minute

// Slow skips a test under -short for a reason other than a missing part.
func Slow(tb testing.TB, why string) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("-short: this test " + why)
	}
}

// Main runs the tests of a package, then stop, which ends what they share; and
// fails if they leave goroutines behind that the options do not name. It does not return.
func Main(m *testing.M, stop func() error, ignored ...goleak.Option) {
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		if err := goleak.Find(ignored...); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// ErrFatal ends Eventually at once when the error of a check wraps it.
var ErrFatal = errors.New("this will not get better")

// Eventually polls until check returns nil, and fails the test when that takes
// longer than the limit. Checks may be expensive: the longer it takes, the longer
// are the pauses between them.
func Eventually(tb testing.TB, limit time.Duration, what string, check func() error) {
	tb.Helper()
	eventually(tb.Context(), tb, limit, what, check)
}

// eventually is Eventually with another context than the test's, which ends before its cleanup.
func eventually(ctx context.Context, tb testing.TB, limit time.Duration, what string, check func() error) {
	tb.Helper()
	deadline := time.Now().Add(limit)
	for pause := 5 * time.Millisecond; ; pause = min(pause+pause/4, 50*time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if errors.Is(err, ErrFatal) || time.Now().After(deadline) {
			tb.Fatalf("%s: %v", what, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			tb.Fatalf("%s: %v", what, err)
		}
	}
}

// Progress polls until count returns want. It fails the test when the count does not change for
// longer than the limit, so that a slow machine may take as long as it needs.
func Progress(tb testing.TB, limit time.Duration, what string, want int64, count func() int64) {
	tb.Helper()
	for got := count(); got != want; {
		before := got
		Eventually(tb, limit, what, func() error {
			if got = count(); got == before {
				return fmt.Errorf("%d, want %d", got, want)
			}
			return nil
		})
	}
}
