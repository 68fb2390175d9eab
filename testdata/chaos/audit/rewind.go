package audit

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/appbridge/appbridge/subjects"
)

// lossOf reports whether a rollback took a message, and which one.
func (a *audit) lossOf(m *Message) (*Loss, bool) {
	for i := range a.in.Losses {
		if l := &a.in.Losses[i]; m.Epoch <= l.Epoch && l.Contains(m.Sequence) {
			return l, true
		}
	}
	return nil, false
}

// removed reports whether a bridge named a message as removed before it was
// projected.
func (a *audit) removed(m *Message) bool {
	return slices.ContainsFunc(a.in.Removed, func(r subjects.LostRange) bool { return r.Contains(m.Sequence) })
}

// reuse finds sequences with two meanings.
type reuse struct {
	*audit
	first map[uint64]*Message
}

func newReuse(a *audit) reuse { return reuse{a, map[uint64]*Message{}} }

// check takes the next message of the stream.
func (r reuse) check(m *Message) (Problem, bool) {
	had := r.first[m.Sequence]
	if had != nil && sameMessage(had, m) {
		return Problem{}, false
	}
	r.first[m.Sequence] = m
	if r.in.Subjects.IsLost(m.Subject) {
		return Problem{}, false // a filler means that there is nothing
	}
	if had != nil {
		if l, lost := r.lossOf(had); lost && l.Unseen {
			return Problem{}, false
		}
		return Problem{m.Subject, m.Sequence, fmt.Sprintf("another message had this sequence before, on %s (%s)", had.Subject, had.Header.Get(subjects.HeaderMsgID))}, true
	}
	for _, l := range r.in.Losses {
		if m.Epoch > l.Epoch && l.Contains(m.Sequence) && !l.Unseen {
			return Problem{m.Subject, m.Sequence, fmt.Sprintf("a new message inside the lost range %s", l.LostRange)}, true
		}
	}
	return Problem{}, false
}

func sameMessage(a, b *Message) bool {
	return a.Subject == b.Subject && bytes.Equal(a.Data, b.Data) && reflect.DeepEqual(a.Header, b.Header)
}

// mark is where a walk stood before an event.
type mark struct {
	e          *event
	pos        int
	good, last *event
	repeat     uint64
}

// step takes the app's next event.
//
// Where more than one continuation is right, the one with the fewest problems
// counts: the bridge may or may not have known of an event that was removed.
func (w *walk) step(e *event) {
	w.rewindLost(e.Epoch)
	others := w.otherWays(e)
	if len(others) == 0 {
		w.take(e)
		return
	}
	best := w.fork()
	best.take(e)
	for _, way := range others {
		if way.take(e); len(way.report.Problems()) < len(best.report.Problems()) {
			best = way
		}
	}
	*w = *best
}

// rewindLost goes back to the newest event that survived, before one of an
// epoch. What the others showed is excused unless it is the app's last state.
func (w *walk) rewindLost(epoch int) {
	for ; w.passed < len(w.unread) && w.unread[w.passed].epoch < epoch; w.passed++ {
		w.takenUnread(w.unread[w.passed])
	}
	for n := len(w.trail); n > 0 && w.trail[n-1].e.lost && w.trail[n-1].e.Epoch < epoch; n = len(w.trail) {
		if w.undone == nil {
			w.undone = w.fork()
		}
		e := w.trail[n-1].e
		w.rewound, _ = w.lossOf(e.Message)
		w.takenBack(e, w.trail[n-1].pos)
		w.back1()
	}
}

// unread are the messages at the end of a loss that were acknowledged, and lost before the Input's
// reader had them. They may have been of any app.
type unread struct {
	epoch, count int
	until        time.Time // nothing that they showed happened later
}

// unreadEnds are those of all losses, by epoch.
func (a *audit) unreadEnds() []unread {
	var ends []unread
	for _, l := range a.in.Losses {
		var read *Message // the newest one before what was not read
		for i := range a.in.Events {
			if m := &a.in.Events[i]; m.Epoch <= l.Epoch && m.Sequence <= l.To && (read == nil || m.Sequence > read.Sequence) {
				read = m
			}
		}
		if read != nil && read.Sequence < l.To {
			ends = append(ends, unread{l.Epoch, int(l.To - max(read.Sequence, l.From-1)), read.Stored.Add(margin)})
		}
	}
	slices.SortStableFunc(ends, func(a, b unread) int { return cmp.Compare(a.epoch, b.epoch) })
	return ends
}

// takenUnread excuses the states after the newest that was shown whose events may be among those
// that nobody read. An app without an event that was read and lost may have been the app of some of
// them, too.
func (w *walk) takenUnread(u unread) {
	for i, n := w.pos+1, 0; i < len(w.states) && n < u.count && w.states[i].at.Before(u.until); i, n = i+1, n+1 {
		w.taken[i], w.affected = true, true
	}
}

// takenBack notes what a lost event showed: every state after the one
// before it, and every replica count of its Revision.
func (w *walk) takenBack(e *event, before int) {
	for i := before + 1; i <= w.pos; i++ {
		w.taken[i] = true
	}
	if r := revisionOf(e); r[0] != "" {
		w.counted[r[0]] = max(w.counted[r[0]], number(r[1]))
	}
}

// back1 goes back to where the walk stood before the newest event.
func (w *walk) back1() {
	m := w.trail[len(w.trail)-1]
	w.trail = w.trail[:len(w.trail)-1]
	w.pos, w.good, w.last, w.repeat = m.pos, m.good, m.last, m.repeat
	w.podStep = 0
}

// otherWays are the places beside the present one from which the next event may
// rightly go on.
func (w *walk) otherWays(e *event) []*walk {
	var ways []*walk
	if w.last != nil && w.removed(w.last.Message) {
		// From what the bucket shows, at the sequence of either.
		way := w.fork()
		for n := len(way.trail); n > 0 && way.removed(way.trail[n-1].e.Message); n = len(way.trail) {
			way.linked = append(way.linked, way.trail[n-1].e.Sequence)
			way.back1()
		}
		ways = append(ways, way)
	}
	if w.rewound != nil && w.last != nil && w.last.Sequence < w.rewound.First {
		// From nothing: the stream no longer has the event that survived, and the
		// bucket may have shown one that did not.
		way := w.fork()
		key, _ := e.key()
		for i := way.pos + 1; i < w.index[key]; i++ {
			if way.taken[i] = true; w.states[i].gone {
				break // nor is the end owed of what nobody knows
			}
		}
		way.last, way.repeat = nil, 0
		if way.pos >= 0 && !w.states[way.pos].gone {
			way.pos-- // it may be told again
		}
		ways = append(ways, way)
	}
	if w.undone != nil && e.kind == subjects.Deleted {
		if way := w.lostEnd(e); way != nil {
			ways = append(ways, way)
		}
	}
	return ways
}

// lostEnd is the walk at the lost event that a delete refers to, nil if it refers to none: the
// bucket still showed that event, the stream no longer had any of the app, and the cluster did not
// have the app.
func (w *walk) lostEnd(e *event) *walk {
	way := w.undone.fork()
	way.rewound, way.undone = w.rewound, nil
	previous := e.get(subjects.HeaderPreviousSequence)
	for n := len(way.trail); n > 0 && way.last != nil && way.last.lost; n = len(way.trail) {
		if strconv.FormatUint(way.last.Sequence, 10) == previous {
			return way
		}
		way.takenBack(way.trail[n-1].e, way.trail[n-1].pos)
		way.back1()
	}
	return nil
}

// fork is a walk that goes its own way from here.
func (w *walk) fork() *walk {
	f := *w
	f.revisions, f.counted, f.taken = maps.Clone(w.revisions), maps.Clone(w.counted), slices.Clone(w.taken)
	f.absent = maps.Clone(w.absent)
	f.trail, f.linked = slices.Clone(w.trail), slices.Clone(w.linked)
	f.report = w.report.Plus(Report{})
	return &f
}
