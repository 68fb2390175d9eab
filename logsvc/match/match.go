// Package match filters lines with the expressions of a request. Expressions are bounded in their
// cost before they are compiled, and matched in turns.
package match

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc/logline"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// turnTime is how long a stream matches lines before it gives up its slot.
	turnTime = 10 * time.Millisecond
	// rateAfter is the CPU time after which the speed of expressions is checked, and minMatchRate
	// the bytes per second of CPU time below which they end their stream.
	rateAfter    = 5 * time.Second
	minMatchRate = 512 << 10
	lineCost     = 64              // what a line counts in that in addition to its text
	maxDelay     = 5 * time.Second // how long expressions may delay live lines
)

// NewTurns returns the limit for matching expressions: half of the processors. The other half is
// free for everything else.
func NewTurns() *request.Limiter {
	return request.NewLimiter(request.Limit{
		What: "expressions", Max: max(1, runtime.GOMAXPROCS(0)/2),
		Pending: 1 << 30, // of streams, each of which has a slot
	})
}

var errDelayed = errors.New("expressions delay live lines")

// Matcher filters lines with the expressions of a request. A nil Matcher passes all lines. It may
// be used concurrently for different replicas.
type Matcher struct {
	turns            *request.Limiter
	project          string
	include, exclude *Expression // nil: everything, nothing

	mu     sync.Mutex
	took   time.Duration // CPU time since the last check
	bytes  int
	delays map[string]delay // by replica
}

// delay is how long the live lines of a replica were delayed, less the time without lines since.
type delay struct {
	time time.Duration
	left time.Time // when the last lines were matched
}

// New returns the Matcher of a request, which shares the turns with the other requests. A nil
// expression is not given.
func New(turns *request.Limiter, project string, include, exclude *Expression) *Matcher {
	if include == nil && exclude == nil {
		return nil
	}
	return &Matcher{turns: turns, project: project, include: include, exclude: exclude, delays: map[string]delay{}}
}

// Filter returns the lines that match. The last missed lines are live lines that were not matched,
// because the expressions have delayed their replica for too long.
func (m *Matcher) Filter(ctx context.Context, replica string, lines []logline.Line, live bool) (wanted []logline.Line, missed int, err error) {
	if m == nil {
		return lines, 0, nil
	}
	if live {
		limit := m.allowedDelay(replica)
		defer m.addDelay(replica, time.Now())
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, limit, errDelayed)
		defer stop()
	}
	for len(lines) > 0 {
		slot, err := m.turns.Acquire(ctx, request.Claim{Project: m.project, Units: 1})
		if errors.Is(err, errDelayed) {
			return wanted, len(lines), nil
		}
		if err != nil {
			return nil, 0, err
		}
		runtime.LockOSThread() // for threadTime
		began, used, n, size := time.Now(), threadTime(), 0, 0
		for n < len(lines) && time.Since(began) < turnTime {
			text := lines[n].Text
			if (m.include == nil || m.include.match(text)) && (m.exclude == nil || !m.exclude.match(text)) {
				wanted = append(wanted, lines[n])
			}
			size += len(text) + lineCost
			n++
		}
		used = threadTime() - used
		runtime.UnlockOSThread()
		slot.Release()
		lines = lines[n:]
		if err := m.checkRate(used, size); err != nil {
			return nil, 0, err
		}
	}
	return wanted, 0, nil
}

// checkRate ends a stream whose expressions take a processor for next to nothing.
func (m *Matcher) checkRate(took time.Duration, size int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.took += took
	m.bytes += size
	if m.took < rateAfter {
		return nil
	}
	rate := float64(m.bytes) / m.took.Seconds()
	m.took, m.bytes = 0, 0
	if rate >= minMatchRate {
		return nil
	}
	option := "include, exclude"
	switch {
	case m.exclude == nil:
		option = "include"
	case m.include == nil:
		option = "exclude"
	}
	return request.Errorf(subjects.CodeResourceExhausted, "%s: takes the time of a processor for %.1f MB of lines a second, want an expression that is tried on at least %.1f MB a second",
		option, rate/1e6, minMatchRate/1e6)
}

// allowedDelay returns for how long the lines of a replica may be delayed now.
func (m *Matcher) allowedDelay(replica string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.delays[replica]
	h.time = max(0, h.time-time.Since(h.left))
	m.delays[replica] = h
	return maxDelay - h.time
}

func (m *Matcher) addDelay(replica string, began time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.delays[replica] = delay{time: m.delays[replica].time + now.Sub(began), left: now}
}
