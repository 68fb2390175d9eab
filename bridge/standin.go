package bridge

import (
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// At a rollout the watch of Knative Services may be ahead of that of Revisions: a Service names a
// Revision whose count is not known yet. Nobody scaled the app to zero then. Its last count stands
// until the named Revision is known, for standInTime at most: the Revision that gave the last count
// stands in for the named one.

// standInTime is how long a Revision stands in for the one that a Service names. After that the
// app's count is what is known of the named Revision, 0 if nothing is.
const standInTime = 5 * time.Second

// awaited is a Revision that a Service names and that is not known yet.
type awaited struct {
	stop func() bool // stops the timer that ends the wait
}

// afterFunc calls do once d is over, unless stop is called before.
type afterFunc func(d time.Duration, do func()) (stop func() bool)

func afterTime(d time.Duration, do func()) (stop func() bool) { return time.AfterFunc(d, do).Stop }

// never is the afterFunc of a source that is read at one instant.
func never(time.Duration, func()) (stop func() bool) { return func() bool { return false } }

// counting is the Revision that gives the count of an app whose Service is svc now and whose last
// state is was, if it had one. mu must be held.
func (s *source) counting(id subjects.AppID, svc *kservice.Service, was state, had bool) *kservice.Revision {
	name, named := svc.Status.LatestReadyRevisionName, s.revisionOf(svc)
	if name == "" || named.Known() || kservice.Stopped(svc) {
		s.arrive(id)
		return named
	}
	if had && was.service.UID != svc.UID {
		s.arrive(id) // that was for another object
		had = false
	}
	if s.awaits[id] == nil {
		if had && was.service.Status.LatestReadyRevisionName == name {
			return named // it is gone, or was waited for long enough
		}
		s.await(id)
	}
	if had && replicas(was) != 0 && was.revision.Name != name {
		return was.revision
	}
	return named
}

// await starts the time for which another Revision may stand in. mu must be held.
func (s *source) await(id subjects.AppID) {
	if s.closed {
		return
	}
	a := &awaited{}
	s.awaits[id] = a
	a.stop = s.after(standInTime, func() { s.overdue(id, a) })
}

// arrive ends the wait of an app, if there is one. mu must be held.
func (s *source) arrive(id subjects.AppID) {
	if a := s.awaits[id]; a != nil {
		a.stop()
		delete(s.awaits, id)
	}
}

// overdue ends a wait whose time is over.
func (s *source) overdue(id subjects.AppID, a *awaited) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awaits[id] != a {
		return // it was over just before
	}
	delete(s.awaits, id)
	if st, ok := s.current[id]; ok && st.standsIn() {
		s.log.Warn("the Revision that a Knative Service names was not shown in time: its replicas count as 0",
			zap.Stringer("app", id), zap.String("revision", st.service.Status.LatestReadyRevisionName), zap.Duration("waited", standInTime))
	}
	s.settle(id, observation{})
	s.notify()
}

// close stops the timers. Nothing stands in for anything after that.
func (s *source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for id := range s.awaits {
		s.arrive(id)
	}
}

// standIn lets the count that was published last stand for an app whose Revision is waited for
// since this process started: then only the record has a count. mu must be held.
func (s *source) standIn(id subjects.AppID, r *record) {
	now, there := s.current[id]
	if !there || s.awaits[id] == nil || now.standsIn() {
		return
	}
	if rev := lastCount(now.service, r); rev != nil {
		now.revision = rev
		s.current[id] = now
	}
}

// lastCount is the Revision that gave the count of a record, nil if it gave none, if it is of
// another object than svc, or if it is the one that svc names.
func lastCount(svc *kservice.Service, r *record) *kservice.Revision {
	if !r.exists() || r.uid != string(svc.UID) || r.revision == "" || r.revision == svc.Status.LatestReadyRevisionName {
		return nil
	}
	count := int32(r.app.GetStatus().GetCurrentReplicas())
	if count == 0 {
		return nil
	}
	return &kservice.Revision{
		ObjectMeta: metav1.ObjectMeta{Name: r.revision, Namespace: svc.Namespace, ResourceVersion: r.revisionVersion},
		Status:     kservice.RevisionStatus{ActualReplicas: &count},
	}
}

// shownRevision is the newest version of the Revision that gives an app's count. The app's state
// has only one where the count is another. mu must be held.
func (s *source) shownRevision(id subjects.AppID, now state) *kservice.Revision {
	if s.awaits[id] != nil && now.standsIn() {
		return now.revision
	}
	return s.revisionOf(now.service)
}
