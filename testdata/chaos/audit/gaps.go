package audit

import (
	"slices"
	"sort"
	"time"
)

// margin is how far the clocks of those who wrote an Input may be apart.
const margin = 2 * time.Second

// gaps answers whether a time span touches a gap.
type gaps struct {
	sorted []Gap
	until  []time.Time // the latest end of sorted[:i+1]
}

func newGaps(all []Gap) gaps {
	g := gaps{sorted: slices.SortedFunc(slices.Values(all), func(a, b Gap) int { return a.From.Compare(b.From) })}
	var latest time.Time
	for _, gap := range g.sorted {
		if gap.To.After(latest) {
			latest = gap.To
		}
		g.until = append(g.until, latest)
	}
	return g
}

// unseen reports whether some of what happened in a time span may rightly have no
// event.
func (w *walk) unseen(from, to time.Time) bool {
	return w.gaps.overlap(from, to) || w.affected && w.comparisons.overlap(from, to)
}

// overlap tells whether any gap has a moment in common with the span.
func (g gaps) overlap(from, to time.Time) bool {
	n := sort.Search(len(g.sorted), func(i int) bool { return g.sorted[i].From.After(to) })
	return n > 0 && !g.until[n-1].Before(from)
}
