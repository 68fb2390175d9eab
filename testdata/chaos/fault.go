package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// part is a part of the world that a fault has to itself while it lasts.
type part string

const (
	bridgesPart part = "bridges"
	linksPart   part = "NATS links"
	natsPart    part = "NATS servers"
	apiPart     part = "API server"
	apiLinkPart part = "API links"
	storagePart part = "storage"
)

// everything is for a fault that needs a world in which nothing else is wrong.
var everything = []part{bridgesPart, linksPart, natsPart, apiPart, apiLinkPart, storagePart}

// fault is something that happens to the world.
type fault struct {
	name    string
	weight  int
	parts   []part
	takes   time.Duration                           // at least
	blinds  bool                                    // it makes a gap
	mute    bool                                    // no part reports it
	loaded  bool                                    // it needs apps that change all the time
	allowed func(*world) bool                       // nil: always
	play    func(context.Context, *injection) error // does it and undoes it
}

// injection is one time that a fault happens.
type injection struct {
	*world
	rng *rand.Rand
	end time.Time // it should be over by then
}

// say tells what happens now, and counts it.
func (i *injection) say(format string, args ...any) {
	i.out.now("%3d %s", i.countFault(), fmt.Sprintf(format, args...))
}

// note tells more.
func (i *injection) note(format string, args ...any) {
	i.out.now("    (%s)", fmt.Sprintf(format, args...))
}

// between draws a length of time, of those that end in time.
func (i *injection) between(least, most time.Duration) time.Duration {
	most = max(least, min(most, time.Until(i.end)-undo))
	return least + time.Duration(i.rng.Int64N(int64(most-least)+1))
}

const (
	breath = 2 * time.Second // between faults
	undo   = 2 * time.Second // what starting something again takes
	// A hand-over after a crash takes as long as the Lease.
	recovery = 20 * time.Second
	// What is in a gap proves little, so this much of the time may be.
	mostBlind = 0.4
)

// torment lets faults happen for a time, now and then one before another is
// over, and returns when all are over. Mostly it lets the bridges recover
// before the next one: a world in which nobody ever leads shows nothing.
func (w *world) torment(ctx context.Context, rng *rand.Rand, faults []fault, lasting time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begin, end := time.Now(), time.Now().Add(lasting)
	busy := &claims{held: map[part]bool{}}
	uses := map[string]int{}
	var playing sync.WaitGroup
	defer playing.Wait()
	for testenv.Pause(ctx, time.Duration(rng.Int64N(int64(breath)))) == nil {
		hasty := rng.IntN(4) == 0
		if !hasty {
			rest, stop := context.WithDeadline(ctx, end)
			_ = poll(rest, recovery, w.recovered) // if not, then not
			stop()
		}
		f, ok := choose(rng, faults, uses, func(f fault) bool {
			return time.Now().Add(f.takes).Before(end) && (f.allowed == nil || f.allowed(w)) && busy.free(f.parts) &&
				(!f.blinds || length(w.gaps.list()) <= time.Duration(mostBlind*float64(time.Since(begin))))
		})
		if !ok {
			if time.Now().After(end) {
				break
			}
			continue // something is still being repaired
		}
		uses[f.name]++
		busy.take(f.parts)
		in := &injection{world: w, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), end: end}
		over, ended := make(chan struct{}), w.plants.begin(in)
		playing.Go(func() {
			defer close(over)
			defer ended()
			defer busy.give(f.parts)
			if err := f.play(ctx, in); err != nil && !errors.Is(err, context.Canceled) {
				cancel(fmt.Errorf("%s: %w", f.name, err))
			}
		})
		if rng.IntN(3) == 0 {
			continue // the next one may come before this one is over
		}
		select {
		case <-over:
		case <-ctx.Done():
		}
	}
	playing.Wait()
	return context.Cause(ctx)
}

// recovered says why there is still something of a fault, "" if there is not.
func (w *world) recovered(ctx context.Context) string {
	if late := append(w.gaps.unended(), w.comparisons.unended()...); len(late) > 0 {
		return "not caught up after: " + few(late)
	}
	return w.led(ctx)
}

// choose draws one of the faults that may happen, by weight, and one that has
// happened already much less often than one that has not: also a short run is to
// have many kinds.
func choose(rng *rand.Rand, faults []fault, uses map[string]int, may func(fault) bool) (fault, bool) {
	allowed := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !may(f) })
	weight := func(f fault) int {
		n := 1 + uses[f.name]
		return max(1, 100_000*f.weight/(n*n*n))
	}
	total := 0
	for _, f := range allowed {
		total += weight(f)
	}
	if total == 0 {
		return fault{}, false
	}
	at := rng.IntN(total)
	for _, f := range allowed {
		if at -= weight(f); at < 0 {
			return f, true
		}
	}
	return fault{}, false
}

// claims are the parts that faults have to themselves at the moment.
type claims struct {
	mu   sync.Mutex
	held map[part]bool
}

func (c *claims) free(parts []part) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(parts, func(p part) bool { return c.held[p] })
}

func (c *claims) take(parts []part) { c.set(parts, true) }
func (c *claims) give(parts []part) { c.set(parts, false) }

func (c *claims) set(parts []part, held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range parts {
		c.held[p] = held
	}
}

func (w *world) countFault() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults++
	return w.faults
}
