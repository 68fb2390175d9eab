// Package match filters lines with the expressions of a request. Expressions are bounded in their
// cost before they are compiled, and matched in turns.
package match

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"regexp/syntax"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

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

// Filter returns the lines that match, and the place of each among all of them, counted from 1; no places
// if there are no expressions. The last missed lines are live lines that were not matched, because the
// expressions have delayed their replica for too long.
func (m *Matcher) Filter(ctx context.Context, replica string, lines []logline.Line, live bool) (wanted []logline.Line, places []int, missed int, err error) {
	if m == nil {
		return lines, nil, 0, nil
	}
	before := 0
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
			return wanted, places, len(lines), nil
		}
		if err != nil {
			return nil, nil, 0, err
		}
		runtime.LockOSThread() // for threadTime
		began, used, n, size := time.Now(), threadTime(), 0, 0
		for n < len(lines) && time.Since(began) < turnTime {
			text := lines[n].Text
			if (m.include == nil || m.include.match(text)) && (m.exclude == nil || !m.exclude.match(text)) {
				wanted, places = append(wanted, lines[n]), append(places, before+n+1)
			}
			size += len(text) + lineCost
			n++
		}
		used = threadTime() - used
		runtime.UnlockOSThread()
		slot.Release()
		lines, before = lines[n:], before+n
		if err := m.checkRate(used, size); err != nil {
			return nil, nil, 0, err
		}
	}
	return wanted, places, 0, nil
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

// MaxBytes is how long an expression may be.
const MaxBytes = 1 << 10

const (
	// maxInstructions and maxWide bound the cost of an expression, too: it is compiled for each
	// request and matched with every line.
	maxInstructions     = 500
	maxWide             = 16
	foldedRange         = 8
	runesPerInstruction = 256 // how many runes of a class cost as much as one instruction
	// maxSteps bounds the cost of matching one line, in instructions times bytes, because a match
	// cannot be interrupted: 0.1 s at worst. An expression of up to 32 instructions matches the
	// whole of the longest line.
	maxSteps = 4 << 20
)

// Expression is the value of include or exclude.
type Expression struct {
	re       *regexp.Regexp
	maxBytes int // how many bytes of a line are matched
}

// Compile returns nil for an expression that is invalid or costs too much. It checks the cost
// first: 1 KiB of nested repetitions compiles to a million instructions.
func Compile(text string) *Expression {
	if len(text) > MaxBytes || wide(text) > maxWide {
		return nil
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil
	}
	n := instructions(parsed) + 2 // one at the beginning and one at the end
	if n > maxInstructions {
		return nil
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil
	}
	return &Expression{re: re, maxBytes: maxSteps / n}
}

// match reports whether the expression matches the first maxBytes of a line.
func (e *Expression) match(text []byte) bool {
	text = bytes.TrimRight(text, "\r")
	return e.re.Match(text[:min(len(text), e.maxBytes)])
}

// wide counts the parts that may match thousands of runes: Unicode classes, and ranges that end
// beyond ASCII. In a case-insensitive expression a range counts as foldedRange, because the parser
// visits each of its runes.
func wide(text string) int {
	n, each := strings.Count(text, `\p`)+strings.Count(text, `\P`), 1
	for _, group := range strings.Split(text, "(?")[1:] {
		if flags := len(group) - len(strings.TrimLeft(group, "imsU")); strings.Contains(group[:flags], "i") {
			each = foldedRange
		}
	}
	for _, end := range strings.Split(text, "-")[1:] {
		if end != "" && (end[0] == '\\' || end[0] >= utf8.RuneSelf) {
			n += each
		}
	}
	return n
}

// instructions returns an upper bound of the length of the compiled program, in which large classes
// count as more. A repeated part counts as often as the compiler copies it. The parser bounds the
// product of nested repetitions and the depth.
func instructions(re *syntax.Regexp) int {
	n := 0
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	switch re.Op {
	case syntax.OpConcat:
		return max(n, 1)
	case syntax.OpLiteral:
		return max(len(re.Rune), 1)
	case syntax.OpCharClass:
		return 1 + len(re.Rune)/runesPerInstruction
	case syntax.OpAlternate:
		return n + len(re.Sub)
	case syntax.OpCapture, syntax.OpStar, syntax.OpPlus, syntax.OpQuest:
		return n + 2
	case syntax.OpRepeat:
		if re.Max < 0 {
			return max(re.Min, 1)*n + 2
		}
		return re.Min*n + (re.Max-re.Min)*(n+1) + 1
	default:
		return 1
	}
}
