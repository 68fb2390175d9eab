package pods

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The streams of one project do not hold up those of another one.
func TestThrottleShares(t *testing.T) {
	t.Parallel()
	const streams = 40
	throttle := newThrottle(1 << 20)
	var others atomic.Int32 // reads of the project with many streams
	var all sync.WaitGroup
	for range streams {
		all.Go(func() {
			if err := throttle.wait(t.Context(), "many", readBytes, 1); err != nil {
				t.Errorf("wait: %v", err)
			}
			others.Add(1)
		})
	}
	for throttle.turns.Usage().Pending < streams/2 {
		if err := pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	before := others.Load()
	if err := throttle.wait(t.Context(), "one", 1<<10, 1); err != nil {
		t.Fatal(err)
	}
	// Its turn is the next one, and this goroutine may run a little later. Else all come first.
	if between := others.Load() - before; between > streams/4 {
		t.Errorf("%d reads of the other project came first, want %d at most", between, streams/4)
	}
	all.Wait()
}

// A line has a least cost, and no read costs more than the throttle ever grants at once.
func TestThrottleCost(t *testing.T) {
	t.Parallel()
	throttle := newThrottle(1 << 20)
	for _, tt := range []struct {
		name         string
		bytes, lines int
		want         int
	}{
		{"long lines", 10_000, 10, 10_000},
		{"short lines", 300, 100, 100 * minLineBytes},
		{"empty lines without times", readBytes, readBytes, 128 << 10},
	} {
		if got := throttle.cost(tt.bytes, tt.lines); got != tt.want {
			t.Errorf("%s: cost %d, want %d", tt.name, got, tt.want)
		}
	}
	if err := newThrottle(0).wait(t.Context(), "any", math.MaxInt, 1); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

// Requests to Kubernetes are few at one time, and one project's wait does not delay another's.
func TestCallsShare(t *testing.T) {
	t.Parallel()
	src := &Source{calls: newCalls(), timing: timing{answer: time.Hour}}
	started, release := make(chan string), make(chan struct{})
	var all sync.WaitGroup
	call := func(project string) {
		all.Go(func() {
			err := src.call(t.Context(), project, func(context.Context) error {
				started <- project
				<-release
				return nil
			})
			if err != nil {
				t.Errorf("call: %v", err)
			}
		})
	}
	for range 3 * maxCalls {
		call("many")
	}
	for range maxCalls {
		<-started
	}
	call("one")
	for src.calls.Usage().Pending < 2*maxCalls+1 {
		if err := pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := src.calls.Usage().Active; got != maxCalls {
		t.Errorf("%d requests at one time, want %d", got, maxCalls)
	}
	release <- struct{}{}
	if got := <-started; got != "one" {
		t.Errorf("the next request is one of project %q, want that of the other", got)
	}
	go func() {
		for range started {
		}
	}()
	close(release)
	all.Wait()
	close(started)
}

// pause is the interval at which a condition is checked.
func pause(ctx context.Context) error {
	select {
	case <-time.After(time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
