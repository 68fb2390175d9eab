package audit

import (
	"time"

	"github.com/appbridge/appbridge/subjects"
)

// A state is joined from a Service, a Revision and pods, and each has a watch of its own. Those may
// be apart by moments, so the cluster need not have had a state as a whole. But each part existed,
// none steps back, and what is absent was absent when the bridge looked.

const (
	// patience is how much later than a bridge the truth may have been shown something.
	patience = 2 * margin
	// lag is how far one watch may be behind another outside a gap.
	lag = 10 * time.Second
	// joinTime is how long a bridge waits for lists of Revisions and pods that come apart.
	joinTime = 10 * time.Second
)

// present reports whether a Revision was there whenever a bridge may have looked before it published
// an event of the state at i.
func (w *walk) present(r *revisions, i int, e *event) bool {
	if r == nil {
		return false
	}
	since, there := w.gaps.since(w.states[i].at.Add(-lag), e.Stored), false
	for s := range r.states {
		state := &r.states[s]
		switch {
		case state.swallowed:
			return false
		case !state.at.After(since):
			there = state.revision != nil
		case state.revision == nil && !state.at.After(e.Stored.Add(patience)):
			return false
		}
	}
	return there
}

// since is the beginning of the gaps that a time span touches, or of the span, and of the lag before.
func (g gaps) since(from, to time.Time) time.Time {
	for earlier := true; earlier; {
		earlier = false
		for _, gap := range g.sorted {
			if begin := gap.From.Add(-lag); !gap.From.After(to) && !gap.To.Before(from) && begin.Before(from) {
				from, earlier = begin, true
			}
		}
	}
	return from
}

// deletionAfter is the version of the first deletion after a version, 0 without.
func (r *revisions) deletionAfter(version uint64) uint64 {
	for _, s := range r.states[r.after(version):] {
		if s.revision == nil {
			return s.number
		}
	}
	return 0
}

// afterItsEnd looks at the events before a delete that a list showed. Over a gap the net difference of
// an app that is gone is the delete: another list that came a moment before must not have shown that
// its Revision or its pods are gone, or changed.
func (w *walk) afterItsEnd(e *event, end *state) {
	if !e.flag(subjects.HeaderFinalStateUnknown) || w.affected {
		return
	}
	for n := len(w.trail) - 1; n > 0; n-- { // the newest of the trail is e itself
		m, before := w.trail[n-1].e, w.trail[n-1].last
		partsAlone := before != nil && m.kind == subjects.Updated && m.uid() == before.uid() && m.version() == before.version()
		if !partsAlone || !m.flag(subjects.HeaderSynthesized) || m.uid() != end.uid || !m.Stored.After(end.at.Add(patience)) || e.Stored.Sub(m.Stored) > joinTime-time.Second {
			return
		}
		w.reordered(m, "its Revision or its pods changed after it was gone (%s): another list showed the delete", end)
	}
}
