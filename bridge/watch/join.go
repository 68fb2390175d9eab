package watch

import (
	"context"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// The state of an app is joined from a Knative Service, a Revision and pods. Each kind has an
// informer of its own. While all of them watch, they may be moments apart. An informer that lists
// has a gap behind it: its list shows at once everything that changed meanwhile. Joined one by one,
// such lists would give states that the cluster never had. So, in each namespace:
//
//   - The objects of a list take effect together, when the informer has delivered the last of them.
//   - What a list changed is held until no informer lists or is without its watch. Then each app has
//     its net difference, as one change.
//   - What a watch delivers takes effect at once, with the last known value of the other kinds. Only
//     a deletion of a Revision or a pod is held while Knative Services are listed: its app may be
//     gone too.
//   - While Knative Services are listed, the wait has no limit: only they show that an app is there.
//     Lists of Revisions and pods that are missing then are waited for until JoinTime is over.

// JoinTime is how long a change that a list showed waits for the lists of Revisions and pods. After
// that it is joined with what was known of them before. A list of Knative Services is waited for
// however long it takes: after a few lists in a row client-go pauses for up to a minute.
const JoinTime = 10 * time.Second

// Phase is where an informer is with its lists and watches.
type Phase int

// The phases of an informer.
const (
	PhaseWatching    Phase = iota // it has delivered its last list, and its watch goes on
	PhaseInterrupted              // its watch has ended, or has not shown yet that it goes on
	PhaseListing                  // a list is needed, or under way, or being delivered
)

// markName begins the names of objects that no API server has: the marks of the ends of lists. The
// number of the list follows.
const markName = "*end of list* "

// mark makes the mark of the list that was received last.
func (s *Source) mark(kind, namespace, version string) runtime.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, ResourceVersion: version}
	s.mu.Lock()
	if _, i := s.member(kind, namespace); i != nil {
		meta.Name = markName + strconv.Itoa(i.lists)
	}
	s.mu.Unlock()
	switch kind {
	case KindService:
		return &kservice.Service{ObjectMeta: meta}
	case KindRevision:
		return &kservice.Revision{ObjectMeta: meta}
	default:
		return &corev1.Pod{ObjectMeta: meta}
	}
}

// joining are the options of the ListerWatcher of an informer that feeds the source.
func (s *Source) joining(kind, namespace string) Options {
	return Options{
		Kind: kind, Namespace: namespace,
		Mark:   func(version string) runtime.Object { return s.mark(kind, namespace, version) },
		Listed: func(version string) { s.Listed(kind, namespace, version) },
		Phase:  func(phase Phase) { s.Phase(kind, namespace, phase) },
	}
}

// join joins what the informers of one namespace, or of all, deliver.
type join struct {
	informers map[string]*member // by kind
	held      map[subjects.AppID]app.Observation
	overdue   bool        // JoinTime is over: nothing is held until the lists are complete, or Services are listed
	stop      func() bool // ends the timer of JoinTime; nil while it does not run
}

// member is one informer of a join.
type member struct {
	phase    Phase
	known    bool     // it has delivered a list
	lists    int      // that were received
	version  string   // of the last of them
	again    bool     // another list is needed or under way since the last was received
	applying bool     // the objects of a list take effect
	deferred []func() // the callbacks since a list was received; nil: all is delivered
}

// lists reports whether the informer of a kind lists.
func (j *join) lists(kind string) bool {
	i := j.informers[kind]
	return i != nil && i.phase == PhaseListing
}

func (j *join) complete() bool {
	for _, i := range j.informers {
		if i.phase != PhaseWatching {
			return false
		}
	}
	return true
}

func (j *join) known() bool {
	for _, i := range j.informers {
		if !i.known {
			return false
		}
	}
	return true
}

// origin names the kind of the object that changes an app. The zero value stands for a timer.
type origin struct {
	kind    string
	deleted bool
}

// holds reports whether a change waits for the lists of the other kinds.
func (j *join) holds(id subjects.AppID, from origin, seen app.Observation) bool {
	applying := from.kind != "" && j.informers[from.kind] != nil && j.informers[from.kind].applying
	if j.complete() || j.overdue && !applying {
		return false
	}
	if seen.Relisted {
		return true
	}
	if from.kind == KindService {
		return false
	}
	_, held := j.held[id]
	return held || from.deleted && j.lists(KindService)
}

// joinOf is the join of the apps of a namespace, nil if no informer feeds the source. mu must be
// locked.
func (s *Source) joinOf(namespace string) *join {
	if j := s.joins[namespace]; j != nil {
		return j
	}
	return s.joins[metav1.NamespaceAll]
}

// expect makes the join of each namespace. Until the informers of the kinds have delivered their
// first lists, it is incomplete.
func (s *Source) expect(kinds, namespaces []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ns := range namespaces {
		j := &join{informers: map[string]*member{}, held: map[subjects.AppID]app.Observation{}}
		for _, kind := range kinds {
			j.informers[kind] = &member{phase: PhaseListing}
		}
		s.joins[ns] = j
	}
}

// member is an informer that the source joins, nil for any other. mu must be locked.
func (s *Source) member(kind, namespace string) (*join, *member) {
	j := s.joins[namespace]
	if j == nil {
		return nil, nil
	}
	return j, j.informers[kind]
}

// Phase notes where an informer is. Only the mark of the end of a list ends the phase Listing.
func (s *Source) Phase(kind, namespace string, phase Phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, i := s.member(kind, namespace)
	if i == nil {
		return
	}
	i.again = i.again || phase == PhaseListing
	if phase == PhaseListing && kind == KindService {
		j.overdue = false
		j.endTimer()
	}
	if i.phase != PhaseListing {
		i.phase = phase
		s.settle(j)
	}
}

// Listed notes that an informer is about to deliver the result of a list.
func (s *Source) Listed(kind, namespace, version string) {
	s.Shown.Listed(kind, version)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, i := s.member(kind, namespace); i != nil {
		i.phase, i.again = PhaseListing, false
		i.lists++
		i.version = version
		i.deferred = append([]func(){}, i.deferred...)
	}
}

// deliver runs the effect of a callback, now or at the end of the list. mu must be locked.
func (s *Source) deliver(kind string, at types.NamespacedName, effect func()) {
	j := s.joinOf(at.Namespace)
	list, isMark := strings.CutPrefix(at.Name, markName)
	switch {
	case isMark:
		s.listEnds(kind, at.Namespace, list)
	case j != nil && j.informers[kind] != nil && j.informers[kind].deferred != nil:
		j.informers[kind].deferred = append(j.informers[kind].deferred, effect)
	default:
		effect()
	}
}

// listEnds lets the objects of a list take effect, unless another was received since. mu must be
// locked.
func (s *Source) listEnds(kind, namespace, list string) {
	j, i := s.member(kind, namespace)
	if i == nil || i.deferred == nil || list != strconv.Itoa(i.lists) {
		return
	}
	effects := i.deferred
	i.deferred, i.applying = nil, true
	for _, effect := range effects {
		effect()
	}
	i.applying, i.known = false, true
	s.Shown.completed(kind, namespace, i.version)
	if !i.again {
		i.phase = PhaseWatching
	}
	s.settle(j)
}

// change updates an app because of an object of a namespace, or because time has passed: now, or
// once the lists are complete. mu must be locked.
func (s *Source) change(id subjects.AppID, namespace string, from origin, seen app.Observation) {
	j := s.joinOf(namespace)
	if j == nil {
		s.update(id, seen)
		return
	}
	if had, held := j.held[id]; held { // the net difference is of both
		seen.Relisted = true
		seen.FinalStateUnknown = seen.FinalStateUnknown || had.FinalStateUnknown
	}
	if !j.holds(id, from, seen) {
		delete(j.held, id)
		s.update(id, seen)
		return
	}
	seen.Relisted = true
	j.held[id] = seen
	s.limitWait(j)
}

// limitWait starts JoinTime if something is held for lists of Revisions or pods alone. mu must be
// locked.
func (s *Source) limitWait(j *join) {
	if len(j.held) > 0 && j.stop == nil && !j.overdue && j.known() && !j.lists(KindService) && !s.standIns.closed {
		j.stop = s.standIns.after(JoinTime, func() { s.joinLate(j) })
	}
}

// release updates an app that is held, before a later version of its Knative Service does. mu must be
// locked.
func (s *Source) release(id subjects.AppID, namespace string) {
	if j := s.joinOf(namespace); j != nil {
		if seen, held := j.held[id]; held {
			delete(j.held, id)
			s.update(id, seen)
		}
	}
}

// settle updates the apps that are held, unless they still have to wait. One that is gone does not
// depend on other kinds. mu must be locked.
func (s *Source) settle(j *join) {
	complete := j.complete()
	s.updateHeld(j, func(id subjects.AppID) bool { return complete || j.overdue || s.claims.winner(id) == nil })
	if complete {
		j.overdue = false
		j.endTimer()
	}
	s.limitWait(j)
}

func (j *join) endTimer() {
	if j.stop != nil {
		j.stop()
		j.stop = nil
	}
}

// joinLate ends the wait for lists.
func (s *Source) joinLate(j *join) {
	s.mu.Lock()
	defer s.Shown.notify()
	defer s.mu.Unlock()
	if j.stop == nil {
		return // it ended just before
	}
	j.stop, j.overdue = nil, !j.complete()
	s.settle(j)
}

// Settle ends the wait of all apps: a consistent list was reached without those that are missing.
func (s *Source) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settleAll()
}

func (s *Source) settleAll() {
	for _, j := range s.joins {
		s.updateHeld(j, func(subjects.AppID) bool { return true })
	}
}

// updateHeld updates the apps that are held and due. mu must be locked.
func (s *Source) updateHeld(j *join, due func(subjects.AppID) bool) {
	for id, seen := range j.held {
		if due(id) {
			delete(j.held, id)
			s.update(id, seen)
		}
	}
	if len(j.held) == 0 { // a map keeps the memory of what was in it: at a start, of all apps
		j.held = map[subjects.AppID]app.Observation{}
	}
}

// awaitLists waits until each informer has delivered a list.
func (s *Source) awaitLists(ctx context.Context) error {
	for {
		changed := s.Shown.Changes()
		if s.known() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *Source) known() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.joins {
		if !j.known() {
			return false
		}
	}
	return true
}
