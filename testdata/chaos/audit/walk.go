package audit

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// walk goes through the events of one app beside what became of it.
type walk struct {
	*audit
	*history
	report Report

	pos    int    // the newest state that was told, -1 before the first
	good   *event // that told it
	last   *event // the app's newest event, right or wrong
	repeat uint64 // the sequence of a repetition of last, 0 without
	// revisions are the newest versions of Revisions that events named.
	revisions map[string]uint64
	// absent are the deletions of Revisions that events showed.
	absent map[string]uint64
	// counts are the versions of Revisions that have an event of their own: one
	// that tells a state that another has told.
	counts map[[2]string]bool
	// podStep is how many changes of the app's pods came before what the events say of them.
	podStep int
	// podChanges is how many changes there were: updates that merged may have been of them.
	podChanges int

	// Of what rollbacks took, and of what was removed before it was projected:
	trail    []mark            // where the walk stood before each event
	taken    []bool            // by state: a lost event showed it
	counted  map[string]uint64 // the newest version of each Revision that a lost event showed
	rewound  *Loss             // the walk is back at what survived this
	passed   int               // how many of the unread ends of losses it is behind
	undone   *walk             // as it stood before it went back
	affected bool              // some event is lost or was removed
	linked   []uint64          // sequences that the next event may refer to instead of last's
}

func newWalk(a *audit, h *history) *walk {
	return &walk{
		audit: a, history: h, pos: -1, revisions: map[string]uint64{}, absent: map[string]uint64{}, counts: map[[2]string]bool{},
		taken: make([]bool, len(h.states)), counted: map[string]uint64{},
	}
}

// survey notes what the events tell, in whatever order they do.
func (w *walk) survey(events []*event) {
	w.podChanges = w.allPodChanges()
	told := make(map[stateKey]bool, len(events))
	for _, e := range events {
		w.affected = w.affected || e.lost || w.removed(e.Message)
		key, named := e.key()
		if !named {
			continue
		}
		if told[key] {
			w.counts[revisionOf(e)] = true
		}
		told[key] = true
		if i, known := w.index[key]; known && !e.lost {
			w.states[i].shown = true
		}
	}
}

func (w *walk) problem(to *[]Problem, e *event, format string, args ...any) {
	p := Problem{App: w.id.String(), What: fmt.Sprintf(format, args...)}
	if e != nil {
		p.Sequence = e.Sequence
		p.What = e.String() + ": " + p.What
	}
	*to = append(*to, p)
}

func (w *walk) lost(e *event, format string, args ...any) {
	w.problem(&w.report.Lost, e, format, args...)
}

func (w *walk) duplicated(e *event, format string, args ...any) {
	w.problem(&w.report.Duplicated, e, format, args...)
}

func (w *walk) reordered(e *event, format string, args ...any) {
	w.problem(&w.report.Reordered, e, format, args...)
}

func (w *walk) drift(e *event, format string, args ...any) {
	w.problem(&w.report.Drift, e, format, args...)
}

// exists tells whether the app is there by what the stream says.
func (w *walk) exists() bool { return w.last != nil && w.last.kind != subjects.Deleted }

// take goes on with an event.
func (w *walk) take(e *event) {
	w.trail = append(w.trail, mark{e, w.pos, w.good, w.last, w.repeat})
	if e.repeated != 0 {
		w.duplicated(e, "sequence %d has the same message id %s", e.repeated, e.get(subjects.HeaderMsgID))
		w.repeat = e.Sequence
		return
	}
	w.chain(e)
	w.headers(e)
	if err := e.decode(w.last); err != nil {
		w.drift(e, "%v", err)
	} else {
		w.oldApp(e)
		w.place(e)
	}
	w.last, w.repeat = e, 0
	w.linked = nil
	w.rewound, w.undone = nil, nil
}

// place finds the state that an event tells.
func (w *walk) place(e *event) {
	key, named := e.key()
	i, known := w.index[key]
	if !named {
		if !w.exists() {
			w.reordered(e, "follows %s", w.lastText())
			return
		}
		for i = w.pos + 1; i < len(w.states) && !known; i++ {
			known = w.states[i].gone && w.states[i].uid == e.uid()
		}
		i--
	}
	switch {
	case !known && named:
		w.drift(e, "the cluster never was in this state")
	case !known:
		w.drift(e, "the cluster did not delete it after what was told last (%s)", w.lastText())
	case i < w.pos:
		w.reordered(e, "is older than what was told before: sequence %d told %s", w.good.Sequence, &w.states[w.pos])
	case i == w.pos:
		w.again(e)
	default:
		w.forward(e, i)
	}
}

// again takes an event that tells the state told last: another replica count,
// or the same thing twice.
func (w *walk) again(e *event) {
	switch {
	case e.kind == subjects.Deleted:
		w.duplicated(e, "sequence %d told this delete", w.good.Sequence)
		return
	case !w.exists():
		w.reordered(e, "follows %s", w.lastText())
		return
	case sameApp(e.app, w.good.app, e.get(subjects.CEDataContentType)) && claim(e) == claim(w.good) && !w.thereAndBack(e) && w.undone == nil:
		w.duplicated(e, "sequence %d told the same state and App", w.good.Sequence)
		return
	case e.kind != subjects.Updated:
		w.reordered(e, "follows %s", w.lastText())
		return
	}
	before := len(w.report.Drift)
	svc, revision := w.payload(e, w.pos)
	if len(w.report.Drift) == before && !onlyReplicas(e.app, w.good.app) && onlyReplicas(w.good.app, w.good.app) {
		w.drift(e, "differs from sequence %d in more than replicas and pods", w.good.Sequence)
	}
	if svc != nil && w.last == w.good {
		w.replicaSteps(e, w.pos, svc, revision)
	}
	w.good = e
}

// thereAndBack tells whether an event may show the same App as the one before:
// it stands for replica counts in between, that only merged away.
func (w *walk) thereAndBack(e *event) bool {
	return e.merged() > 0 && (w.podChanges > 0 || e.get(subjects.HeaderRevision) == "" || revisionOf(e) != revisionOf(w.good))
}

// forward takes an event that tells a newer state than the last.
func (w *walk) forward(e *event, i int) {
	if w.exists() == (e.kind == subjects.Created) {
		w.reordered(e, "follows %s", w.lastText())
	}
	w.skipped(w.pos+1, i, e)
	w.credit(e, i)
	if e.kind == subjects.Deleted {
		w.removal(e, i)
	} else if svc, revision := w.payload(e, i); svc != nil && i == w.pos+1 && w.last != nil && w.last == w.good {
		w.replicaSteps(e, i, svc, revision)
	}
	w.pos, w.good = i, e
}

func (w *walk) lastText() string {
	if w.last == nil {
		return "nothing"
	}
	return fmt.Sprintf("%s (sequence %d)", w.last, w.last.Sequence)
}

// oldApp checks that an update carries the App of the event before.
func (w *walk) oldApp(e *event) {
	switch {
	case e.kind != subjects.Updated || w.last == nil || w.last.app == nil || !w.exists():
	case slices.Contains(list(e.get(subjects.HeaderTruncated)), subjects.TruncatedOldApp):
		if e.old != nil {
			w.drift(e, "carries old_app although %s says that it does not", subjects.HeaderTruncated)
		}
	case !sameApp(e.old, w.last.app, e.get(subjects.CEDataContentType)) && (w.last.full == nil || !sameApp(e.old, w.last.full, e.get(subjects.CEDataContentType))):
		w.drift(e, "old_app is not the App of the event before, sequence %d", w.last.Sequence)
	}
}

// onlyReplicas tells whether two Apps differ in nothing but replicas and what pods say.
func onlyReplicas(a, b *appv1.App) bool {
	if a.GetStatus() == nil || b.GetStatus() == nil {
		return false
	}
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.Status.CurrentReplicas = b.GetStatus().GetCurrentReplicas()
	withoutPods(a)
	withoutPods(b)
	return proto.Equal(a, b)
}

func revisionOf(e *event) [2]string {
	return [2]string{e.get(subjects.HeaderRevision), e.get(subjects.HeaderRevisionResourceVersion)}
}

// end looks at what is left after the last event.
func (w *walk) end() {
	w.rewindLost(math.MaxInt)
	if last := len(w.states) - 1; last > w.pos && (w.exists() || !w.states[last].gone) {
		w.taken[last] = false // it is owed all the same
	}
	w.skipped(w.pos+1, len(w.states), nil)
	if w.pos < 0 || w.pos != len(w.states)-1 || w.states[w.pos].gone || w.last != w.good {
		return
	}
	svc, err := w.states[w.pos].service()
	if err != nil {
		return // payload has said so
	}
	want, err := w.convert(svc, w.named(svc).last())
	if w.in.PodConditions {
		SetPodCondition(want, svc, PodConditionOf(svc, w.podsAt(svc, len(w.truth.pods[svc.Name]))))
	}
	want = without(want, w.good.get(subjects.HeaderTruncated))
	if err == nil && !sameApp(w.good.app, want, w.good.get(subjects.CEDataContentType)) {
		w.drift(w.good, "the last App of the stream is not the cluster's: %s", difference(w.good.app, want))
	}
}
