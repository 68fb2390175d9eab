package logsvc

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/appbridge/appbridge/bridge/request"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// turnTime is how long a stream tries its expressions before others have a turn.
	turnTime = 10 * time.Millisecond
	// judgeAfter is how much time of a processor shows how fast expressions are, and
	// minMatchRate the bytes in a second of it below which they end their stream.
	judgeAfter   = 5 * time.Second
	minMatchRate = 512 << 10
	// lineCost is what a line counts in that beside its text.
	lineCost = 64
	// maxHeld is how long expressions may hold back lines that are being written.
	maxHeld = 5 * time.Second
)

// newTurns makes the limit of what tries expressions at one time: half of the
// processors, so that the rest is there for everything else.
func newTurns() *request.Limiter {
	return request.NewLimiter(request.Limit{
		What: "expressions", Max: max(1, runtime.GOMAXPROCS(0)/2),
		Pending: 1 << 30, // of streams, each of which has a slot
	})
}

var errHeld = errors.New("expressions hold back lines that are being written")

// matcher finds the lines that a stream wants. A nil one wants all. It is safe for use by
// many goroutines, each of one replica.
type matcher struct {
	turns            *request.Limiter
	project          string
	option           string      // what names the expressions in an error
	include, exclude *expression // nil: everything, nothing

	mu    sync.Mutex
	took  time.Duration // since the speed was judged
	bytes int
	held  map[string]*holding // by replica
}

// holding is how long a replica whose lines are being written was held back, less the
// time that it left since.
type holding struct {
	time time.Duration
	left time.Time // when the last lines were done
}

func newMatcher(r *logRequest, turns *request.Limiter) *matcher {
	m := &matcher{turns: turns, project: r.query.App.Project, include: r.include, exclude: r.exclude, held: map[string]*holding{}}
	switch {
	case m.include == nil && m.exclude == nil:
		return nil
	case m.exclude == nil:
		m.option = "include"
	case m.include == nil:
		m.option = "exclude"
	default:
		m.option = "include, exclude"
	}
	return m
}

// wanted are the lines that are wanted. Missed are the last ones of lines, which are being
// written and were not tried because expressions have held back their replica for too long.
func (m *matcher) wanted(ctx context.Context, replica string, lines []Line, live bool) (wanted []Line, missed int, err error) {
	if m == nil {
		return lines, 0, nil
	}
	if live {
		limit := m.hold(replica)
		defer m.letGo(replica, time.Now())
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, limit, errHeld)
		defer stop()
	}
	for len(lines) > 0 {
		slot, err := m.turns.Acquire(ctx, request.Claim{Project: m.project, Units: 1})
		if errors.Is(err, errHeld) {
			return wanted, len(lines), nil
		}
		if err != nil {
			return nil, 0, err
		}
		runtime.LockOSThread() // whose time counts
		began, used, n, size := time.Now(), threadTime(), 0, 0
		for n < len(lines) && time.Since(began) < turnTime {
			if line := lines[n]; m.wants(line.Text) {
				wanted = append(wanted, line)
			}
			size += len(lines[n].Text) + lineCost
			n++
		}
		used = threadTime() - used
		runtime.UnlockOSThread()
		slot.Release()
		lines = lines[n:]
		if err := m.judge(used, size); err != nil {
			return nil, 0, err
		}
	}
	return wanted, 0, nil
}

func (m *matcher) wants(text []byte) bool {
	return (m.include == nil || m.include.match(text)) && (m.exclude == nil || !m.exclude.match(text))
}

// judge ends a stream whose expressions take a processor for next to nothing.
func (m *matcher) judge(took time.Duration, size int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.took += took
	m.bytes += size
	if m.took < judgeAfter {
		return nil
	}
	rate := float64(m.bytes) / m.took.Seconds()
	m.took, m.bytes = 0, 0
	if rate >= minMatchRate {
		return nil
	}
	return Errorf(subjects.CodeResourceExhausted, "%s: takes the time of a processor for %.1f MB of lines a second, want an expression that is tried on at least %.1f MB a second",
		m.option, rate/1e6, minMatchRate/1e6)
}

// hold returns for how long the lines of a replica may be held back now.
func (m *matcher) hold(replica string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.held[replica]
	if h == nil {
		h = &holding{left: time.Now()}
		m.held[replica] = h
	}
	h.time = max(0, h.time-time.Since(h.left))
	return maxHeld - h.time
}

// letGo notes that the lines of a replica were held back since began.
func (m *matcher) letGo(replica string, began time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.held[replica]
	h.left = time.Now()
	h.time += h.left.Sub(began)
}
