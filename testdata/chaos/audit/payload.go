package audit

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// payload checks that an upsert shows the state at i, with the Revision that it
// names. It returns the object, and that Revision's state; nil what there is
// not.
func (w *walk) payload(e *event, i int) (*kservice.Service, *revisionState) {
	svc, err := w.states[i].service()
	if err != nil {
		w.drift(e, "the truth is unreadable: %v", err)
		return nil, nil
	}
	w.same(e, subjects.HeaderGeneration, strconv.FormatInt(svc.Generation, 10))
	w.same(e, subjects.HeaderNamespace, svc.Namespace)
	changedAt := ""
	if at := kservice.LastChange(svc); !at.IsZero() {
		changedAt = at.UTC().Format(time.RFC3339Nano)
	}
	w.same(e, subjects.CETime, changedAt)
	revision, err := w.revisionState(e, svc, i)
	if err != nil {
		w.drift(e, "%v", err)
		return nil, nil
	}
	var rev *kservice.Revision
	if revision != nil {
		rev = revision.revision
	}
	want, err := w.convert(svc, rev)
	if err != nil {
		w.drift(e, "%v", err)
		return nil, nil
	}
	w.says(e, svc, want)
	e.full = want
	if want = without(want, e.get(subjects.HeaderTruncated)); !sameApp(e.app, want, e.get(subjects.CEDataContentType)) {
		w.drift(e, "the App is not that of the state: %s", difference(e.app, want))
	}
	return svc, revision
}

// convert is the App of a state, with nothing left out.
func (w *walk) convert(svc *kservice.Service, rev *kservice.Revision) (*appv1.App, error) {
	want, err := kservice.ConvertCounting(svc, rev, w.in.App)
	if err != nil {
		return nil, fmt.Errorf("the state has no App: %w", err)
	}
	return want, nil
}

// without is an App without the fields that a header says were left out.
func without(app *appv1.App, truncated string) *appv1.App {
	cut := list(truncated)
	if app == nil || !slices.Contains(cut, subjects.TruncatedSpec) && !slices.Contains(cut, subjects.TruncatedStatus) {
		return app
	}
	app = proto.CloneOf(app)
	if slices.Contains(cut, subjects.TruncatedSpec) {
		app.Spec = nil
	}
	if slices.Contains(cut, subjects.TruncatedStatus) {
		app.Status = nil
	}
	return app
}

// named is the Revision that gives a Service its replicas.
func (w *walk) named(svc *kservice.Service) *revisions {
	return w.truth.revisions[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Status.LatestReadyRevisionName}]
}

// revisionState finds the Revision that an event of the state at i says it was
// made with.
func (w *walk) revisionState(e *event, svc *kservice.Service, i int) (*revisionState, error) {
	name, version := e.get(subjects.HeaderRevision), e.get(subjects.HeaderRevisionResourceVersion)
	ready := svc.Status.LatestReadyRevisionName
	known := w.named(svc)
	shown := w.revisions[ready]
	switch {
	case name == "" && version != "":
		return nil, errors.New("a version of no Revision")
	case name == "" && ready == "":
		return nil, nil
	case name == "":
		// It may not have been seen yet, or any more.
		if shown > 0 && !known.deletedAfter(shown) {
			return nil, fmt.Errorf("names no Revision, although %s@%d was named before and not deleted", ready, shown)
		}
		if shown == 0 && w.present(known, i, e) {
			return nil, fmt.Errorf("names no Revision, although %s was there all the time that the bridge may have looked", ready)
		}
		if shown > 0 {
			w.absent[ready] = max(w.absent[ready], known.deletionAfter(shown))
		}
		return nil, nil
	case name != ready && !w.standsIn(e, name, ready, i):
		return nil, fmt.Errorf("names Revision %q, the state %q", name, ready)
	case name != ready:
		known, shown = w.truth.revisions[types.NamespacedName{Namespace: svc.Namespace, Name: name}], w.revisions[name]
	}
	if known == nil {
		return nil, fmt.Errorf("the cluster never had Revision %s", name)
	}
	at := known.find(version)
	if at < 0 || known.states[at].revision == nil {
		return nil, fmt.Errorf("the cluster never had Revision %s@%s", name, version)
	}
	found := &known.states[at]
	if found.number < shown {
		w.reordered(e, "shows Revision %s@%s, after %d was shown", name, version, shown)
	} else if found.number < w.absent[name] {
		w.reordered(e, "shows Revision %s@%s, after an event showed that it was deleted at %d", name, version, w.absent[name])
	}
	w.revisions[name] = max(shown, found.number)
	return found, nil
}

// standsIn reports whether the count of a Revision may stand while the one that
// the state at i names is not known yet: an earlier state of the same object
// named it. A label that was taken off and put back may not have been seen.
func (w *walk) standsIn(e *event, name, ready string, i int) bool {
	for before := i - 1; ready != "" && before >= 0; before-- {
		s := &w.states[before]
		switch {
		case s.uid != w.states[i].uid, s.gone && !s.swallowed && !w.unseen(s.at.Add(-margin), e.Stored):
			return false
		case !s.gone && s.ready() == name:
			return true
		}
	}
	return false
}

// replicaSteps checks that no replica count between two neighbouring events is
// missing. Of the second, revision is what it shows, nil for none.
func (w *walk) replicaSteps(e *event, i int, svc *kservice.Service, revision *revisionState) {
	name, version := e.get(subjects.HeaderRevision), number(w.good.get(subjects.HeaderRevisionResourceVersion))
	ready := svc.Status.LatestReadyRevisionName
	if w.good.kind == subjects.Deleted || w.good.get(subjects.HeaderRevision) != ready || ready == "" || stopped(w.good.app) || kservice.Stopped(svc) {
		return // what was seen of the Revision in between is not known
	}
	var owed []*revisionState
	known := w.named(svc)
	for s := known.after(version); s < len(known.states); s++ {
		next := &known.states[s]
		if name != "" && next.number > revision.number {
			break
		}
		counts := s > 0 && known.counts(s) && next.number > w.counted[ready]
		own := name == "" && next.revision == nil && i == w.pos
		if counts && !own && !w.counts[[2]string{ready, next.version}] {
			owed = append(owed, next)
		}
		if name == "" && next.revision == nil {
			break // it may have been made anew, which was not seen yet
		}
	}
	for _, s := range owed[min(e.merged(), len(owed)):] {
		if s.swallowed || w.unseen(owed[0].at.Add(-margin), e.Stored) {
			w.report.Excused++
			continue
		}
		w.lost(e, "no event tells the %d replicas of Revision %s@%s, seen %s; the event before is %s", s.replicas, ready, s.version, clock(s.at), w.lastText())
	}
}

// credit checks that an event does not claim to stand for more updates than
// there can have been since the one before.
func (w *walk) credit(e *event, i int) {
	if e.merged() == 0 || w.pos < 0 || w.last != w.good {
		return
	}
	most := i - w.pos - 1
	if e.flag(subjects.HeaderSynthesized) {
		most++
	}
	counted := map[string]bool{}
	for s := w.pos; s <= i; s++ {
		if w.states[s].gone {
			continue
		}
		name := w.states[s].ready()
		if counted[name] || name == "" {
			continue
		}
		counted[name] = true
		from, to := uint64(0), ^uint64(0)
		if r := revisionOf(w.good); r[0] == name {
			from = number(r[1])
		}
		if r := revisionOf(e); r[0] == name {
			to = number(r[1])
		}
		most += w.truth.revisions[types.NamespacedName{Namespace: w.states[s].object.GetNamespace(), Name: name}].changed(from, to)
	}
	most += w.podChanges
	if e.merged() > most {
		w.drift(e, "claims to stand for %d updates, there were at most %d since sequence %d", e.merged(), most, w.good.Sequence)
	}
}

func stopped(app *appv1.App) bool {
	for _, c := range app.GetStatus().GetConditions() {
		if c.GetDeploymentStatus() == appv1.Status_DEPLOYMENT_STATUS_STOPPED {
			return true
		}
	}
	return false
}

// removal checks a delete: it carries what the event before told.
func (w *walk) removal(e *event, i int) {
	if e.get(subjects.HeaderDeletedResourceVersion) == "" && !w.states[i].moved &&
		!e.flag(subjects.HeaderSynthesized) && !e.flag(subjects.HeaderFinalStateUnknown) {
		w.drift(e, "an observed delete without %s", subjects.HeaderDeletedResourceVersion)
	}
	if !w.exists() {
		return
	}
	w.afterItsEnd(e, &w.states[i])
	for _, name := range []string{subjects.HeaderUID, subjects.HeaderResourceVersion, subjects.HeaderGeneration, subjects.HeaderNamespace} {
		w.same(e, name, w.last.get(name))
	}
	for _, name := range []string{subjects.HeaderRevision, subjects.HeaderRevisionResourceVersion} {
		w.same(e, name, "")
	}
	if w.last.get(subjects.CETime) != "" && e.get(subjects.CETime) == "" {
		w.drift(e, "header %s is missing", subjects.CETime)
	}
	if w.last.app == nil {
		return
	}
	truncated, form := e.get(subjects.HeaderTruncated), e.get(subjects.CEDataContentType)
	want := without(w.last.app, truncated)
	if whole := without(w.last.full, truncated); whole != nil && sameApp(e.app, whole, form) {
		return // the bridge knew what the event before had no room for
	}
	if !sameApp(e.app, want, form) {
		w.drift(e, "the App is not that of the event before, sequence %d: %s", w.last.Sequence, difference(e.app, want))
	}
}

// difference says what two Apps have.
func difference(got, want *appv1.App) string {
	text := func(app *appv1.App) string {
		if s := app.GetStatus(); s != nil && onlyReplicas(got, want) {
			return fmt.Sprintf("%d replicas", s.GetCurrentReplicas())
		}
		data, err := protojson.Marshal(app)
		if err != nil {
			return err.Error()
		}
		return string(data)
	}
	return "got " + text(got) + ", want " + text(want)
}
