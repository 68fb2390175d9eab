package audit

import (
	"strings"

	"github.com/appbridge/appbridge/subjects"
)

// skipped judges the states from up to (not including) to, which lie between
// what was told last and e; e is nil after the last event.
func (w *walk) skipped(from, to int, e *event) {
	if from >= to {
		return
	}
	note := ""
	if e != nil && (e.flag(subjects.HeaderSynthesized) || e.kind == subjects.Deleted && e.flag(subjects.HeaderFinalStateUnknown)) {
		if w.unseen(w.states[from].at.Add(-margin), e.Stored) {
			required := w.requiredDelete(from, to, e)
			for i := from; i < to; i++ {
				if i == required {
					w.taken[i] = false
					w.miss(i, e, "another object follows without it")
				} else {
					w.excuse(i)
				}
			}
			return
		}
		note = "synthesized without a known gap"
	}
	if e != nil {
		if required := w.requiredDelete(from, to, e); required >= 0 {
			w.taken[required] = false
		}
	}
	w.judge(from, to, e, note)
}

// requiredDelete is the delete that is owed over any gap, because the app is
// another object after it; -1 if there is none.
func (w *walk) requiredDelete(from, to int, e *event) int {
	if !w.exists() || e.kind == subjects.Deleted || e.uid() == w.last.uid() {
		return -1
	}
	for i := from; i < to; i++ {
		if w.states[i].gone && w.states[i].uid == w.last.uid() {
			return i
		}
	}
	return -1
}

// judge looks at skipped states one by one: those whose event a rollback took
// are excused, updates that e says it stands for are merged, whole lives inside
// a gap are excused, all else is lost.
func (w *walk) judge(from, to int, e *event, note string) {
	credit := 0
	if e != nil {
		credit = e.merged()
	}
	required := -1
	if e != nil {
		required = w.requiredDelete(from, to, e)
	}
	hidden := func(i int) bool { return e != nil && w.states[i].swallowed && i != required }
	update := func(i int) {
		switch {
		case w.states[i].shown:
		case hidden(i):
			w.excuse(i)
		case w.taken[i]:
			w.report.Taken++
		case credit > 0 && w.states[i].uid == e.uid():
			credit--
			w.report.Merged++
		default:
			w.miss(i, e, note)
		}
	}
	span := func(first, last int, excused bool) {
		for i := first; i <= last; i++ {
			if excused || hidden(i) {
				w.excuse(i)
			} else {
				w.miss(i, e, note)
			}
		}
	}

	i := from
	if w.pos >= 0 && !w.states[w.pos].gone {
		for ; i < to && !w.states[i].gone; i++ {
			update(i)
		}
		if i < to {
			if back := w.back(i, to, e); back > i && w.inGap(i, back) {
				// Gone and back within a gap: the same object, as if nothing was.
				last := min(back, to-1)
				span(i, last, true)
				for i = last + 1; i < to && !w.states[i].gone; i++ {
					update(i)
				}
			} else {
				span(i, i, false)
				i++
			}
		}
	}
	for i < to {
		end := i
		for end < to && !w.states[end].gone {
			end++
		}
		if end == to { // the life that e is of, or the last
			span(i, i, false)
			for i++; i < to; i++ {
				update(i)
			}
			return
		}
		// Of a life whose beginning was taken nothing is owed: it came and went.
		// Nor of one that a watch did not begin with.
		span(i, end, w.taken[i] || hidden(i) || w.inGap(i, end))
		i = end + 1
	}
}

// back is the state with which the object that goes at i is back, so that e
// tells of the same object; 0 if it is not.
func (w *walk) back(gone, to int, e *event) int {
	if e == nil || !w.exists() || e.kind == subjects.Created || e.uid() != w.states[gone].uid {
		return 0
	}
	for i := min(to, len(w.states)-1); i > gone; i-- {
		if !w.states[i].gone && w.states[i-1].gone {
			if w.states[i].uid == e.uid() {
				return i
			}
			return 0
		}
	}
	return 0
}

// inGap tells whether a gap may have hidden what began at one state and ended
// at another.
func (w *walk) inGap(first, last int) bool {
	return w.unseen(w.states[first].at.Add(-margin), w.states[last].at.Add(margin))
}

func (w *walk) excuse(i int) {
	switch {
	case w.states[i].shown:
	case w.taken[i]:
		w.report.Taken++
	default:
		w.report.Excused++
	}
}

// miss reports a state without an event, unless one tells it elsewhere.
func (w *walk) miss(i int, e *event, note string) {
	s := &w.states[i]
	if s.shown {
		return
	}
	if w.taken[i] {
		w.report.Taken++
		return
	}
	what := []string{"no event tells the " + s.String()}
	if note != "" {
		what = append(what, note)
	}
	if e == nil {
		what = append(what, "the last event is "+w.lastText())
		w.lost(nil, "%s", strings.Join(what, "; "))
		return
	}
	what = append(what, "the event before is "+w.lastText())
	w.lost(e, "%s", strings.Join(what, "; "))
}
