package match

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc/logline"
	"github.com/appbridge/appbridge/subjects"
)

func testMatcher(t *testing.T, include string) *Matcher {
	t.Helper()
	return New(NewTurns(), "shop", Compile(include), nil)
}

// Expressions that hold back lines that are being written for too long are not tried on
// more of them; lines that exist wait.
func TestHeldBack(t *testing.T) {
	t.Parallel()
	m := testMatcher(t, "a")
	lines := []logline.Line{{Text: []byte("a")}, {Text: []byte("b")}}
	for _, tt := range []struct {
		name           string
		held           time.Duration
		live           bool
		wanted, missed int
	}{
		{"not held", 0, true, 1, 0},
		{"held", 2 * maxDelay, true, 0, 2},
		{"exists", 2 * maxDelay, false, 1, 0},
	} {
		m.delays["r"] = delay{time: tt.held, left: time.Now()}
		wanted, _, missed, err := m.Filter(t.Context(), "r", lines, tt.live)
		if err != nil || len(wanted) != tt.wanted || missed != tt.missed {
			t.Errorf("%s: got %d wanted, %d missed, %v", tt.name, len(wanted), missed, err)
		}
	}
	// It recovers while its replica writes nothing.
	m.delays["r"] = delay{time: maxDelay, left: time.Now().Add(-2 * maxDelay)}
	if wanted, _, missed, err := m.Filter(t.Context(), "r", lines, true); err != nil || len(wanted) != 1 || missed != 0 {
		t.Errorf("got %d wanted, %d missed, %v", len(wanted), missed, err)
	}
}

// A stream ends when its expressions took long for little.
func TestSlowMatching(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		took  time.Duration
		bytes int
		ends  bool
	}{
		{"too early", rateAfter / 2, 1, false},
		{"slow", 2 * rateAfter, minMatchRate, true},
		{"fast", 2 * rateAfter, 100 * minMatchRate, false},
	} {
		err := testMatcher(t, "a").checkRate(tt.took, tt.bytes)
		if ended := err != nil; ended != tt.ends {
			t.Errorf("%s: got %v", tt.name, err)
		}
		var failure *request.Error
		if err != nil && (!errors.As(err, &failure) || failure.Code != subjects.CodeResourceExhausted || !strings.HasPrefix(err.Error(), "include: ")) {
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
}

// On a busy machine an expression is judged by the time of a processor that it took.
func TestMatchingTime(t *testing.T) { //nolint:paralleltest // keeps all processors busy
	var busy sync.WaitGroup
	defer busy.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for range 8 * runtime.GOMAXPROCS(0) {
		busy.Go(func() {
			for ctx.Err() == nil {
			}
		})
	}
	line := logline.Line{Text: []byte(strings.Repeat("x", 64<<10))}
	deadline := time.Now().Add(5 * time.Minute)
	for {
		m := testMatcher(t, strings.Repeat(".*", 30)+"needle")
		began := time.Now()
		if _, _, _, err := m.Filter(t.Context(), "r", []logline.Line{line, line}, false); err != nil {
			t.Fatal(err)
		}
		took, passed := m.took, time.Since(began)
		if took > 0 && took < passed/2 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("took %s of %s", took, passed)
		}
	}
}
