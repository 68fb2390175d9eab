package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// gapLog keeps the times in which no bridge may have seen everything. Only
// what happens to the bridges themselves and to their view of Kubernetes makes
// such a gap; nothing that happens to NATS or to what it stores does.
type gapLog struct {
	w *world

	mu  sync.Mutex
	all []*gap
}

// gap is one of them.
type gap struct {
	log *gapLog
	audit.Gap
	// What the bridge that led had observed and not published goes with it, if
	// another process leads after the gap: which one led, and since when there
	// were such changes.
	leader *process
	oldest time.Time
}

// open begins a gap.
func (l *gapLog) open(ctx context.Context, why string) *gap {
	now := time.Now()
	g := &gap{log: l, Gap: audit.Gap{From: now, Why: why}, oldest: now}
	for _, b := range l.w.bridges {
		p, s := b.running(), b.look(ctx)
		if !s.answered {
			s = b.lastSeen()
		}
		if s.leads() {
			g.leader = p
			if oldest := s.oldest(); oldest.Before(g.oldest) {
				g.oldest = oldest
			}
		}
	}
	return l.add(g)
}

// openSince begins a gap that was noticed late.
func (l *gapLog) openSince(from time.Time, why string) *gap {
	return l.add(&gap{log: l, Gap: audit.Gap{From: from, Why: why}, oldest: from})
}

func (l *gapLog) add(g *gap) *gap {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, g)
	return g
}

// heal says that what made the gap is over. It ends when the bridge that leads
// is ready, has told everything that had happened by then, and tells what
// happened after that of Knative Services and of Revisions: only this shows
// that its informers see again.
func (g *gap) heal() {
	w := g.log.w
	healed := w.history.Seen()
	w.spawn(func(ctx context.Context) {
		for testenv.Pause(ctx, sampleInterval) == nil {
			leader, _ := w.leading(ctx)
			if leader == nil {
				continue
			}
			p, now := leader.running(), w.history.Seen()
			if services, revisions := w.events.versions(); services <= healed || revisions <= healed {
				continue
			}
			if w.toldUpTo(ctx, now) == nil {
				g.end(p)
				return
			}
		}
	})
}

func (g *gap) end(leader *process) {
	g.log.mu.Lock()
	defer g.log.mu.Unlock()
	if !g.To.IsZero() {
		return
	}
	g.To = time.Now()
	if leader != g.leader {
		g.From = g.oldest
	}
}

// toldUpTo waits until every app's newest event is as new as the cluster was
// at a revision.
func (w *world) toldUpTo(ctx context.Context, revision int64) error {
	changes := w.changes()
	then := truthAt(changes, revision)
	for {
		if len(behind(then, truthAt(changes, int64(^uint64(0)>>1)), w.events.apps())) == 0 {
			return nil
		}
		if err := testenv.Pause(ctx, sampleInterval); err != nil {
			return err
		}
		changes = w.changes()
	}
}

// unended names the gaps that have not ended.
func (l *gapLog) unended() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var whys []string
	for _, g := range l.all {
		if g.To.IsZero() {
			whys = append(whys, g.Why)
		}
	}
	return whys
}

// list is all gaps; one that has not ended lasts until now.
func (l *gapLog) list() []audit.Gap {
	l.mu.Lock()
	defer l.mu.Unlock()
	gaps := make([]audit.Gap, len(l.all))
	for i, g := range l.all {
		gaps[i] = g.Gap
		if g.To.IsZero() {
			gaps[i].From, gaps[i].To = g.oldest, time.Now()
		}
	}
	return gaps
}

// length is how long there was a gap, overlaps counted once.
func length(gaps []audit.Gap) time.Duration {
	gaps = slices.SortedFunc(slices.Values(gaps), func(a, b audit.Gap) int { return a.From.Compare(b.From) })
	var total time.Duration
	var reached time.Time
	for _, g := range gaps {
		if g.From.Before(reached) {
			g.From = reached
		}
		if g.To.After(g.From) {
			total += g.To.Sub(g.From)
			reached = g.To
		}
	}
	return total
}

func (l *gapLog) String() string {
	gaps := l.list()
	return fmt.Sprintf("%d, together %s", len(gaps), length(gaps).Round(100*time.Millisecond))
}
