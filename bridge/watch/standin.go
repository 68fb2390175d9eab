package watch

import (
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// At a rollout the watch of Knative Services may be ahead of that of Revisions: a Service names a
// Revision whose count is not known yet. The app was not scaled to zero then. Its last count stands
// until the named Revision is known, for StandInTime at most: the Revision that gave the last count
// stands in for the named one.

// StandInTime is how long a Revision stands in for the one that a Service names. After that the
// app's count is what is known of the named Revision, 0 if nothing is.
const StandInTime = 5 * time.Second

// counting is the Revision that gives the count of an app whose Service is svc now and whose last
// state is was, if it had one. mu must be locked.
func (s *Source) counting(id subjects.AppID, svc *app.CachedService, was app.State, had bool) *kservice.Revision {
	name, named := svc.LatestReadyRevisionName, s.Shown.revisionOf(svc)
	if name == "" || named.Known() || svc.Stopped {
		s.standIns.end(id)
		return named
	}
	if had && was.Service.UID != svc.UID {
		s.standIns.end(id) // that was for another object
		had = false
	}
	if !s.standIns.runs(id) {
		if had && was.Service.LatestReadyRevisionName == name {
			return named // it is gone, or was awaited for long enough
		}
		s.standIns.start(id, StandInTime, func(t *appTimer) { s.overdue(id, t) })
	}
	if had && app.Replicas(was) != 0 && was.Revision.Name != name {
		return was.Revision
	}
	return named
}

func (s *Source) overdue(id subjects.AppID, t *appTimer) {
	s.mu.Lock()
	defer s.Shown.notify()
	defer s.mu.Unlock()
	if !s.standIns.expire(id, t) {
		return
	}
	st, ok := s.current[id]
	if !ok {
		return
	}
	if j := s.joinOf(st.Service.Namespace); j != nil && j.lists(KindRevision) {
		s.standIns.start(id, StandInTime, func(t *appTimer) { s.overdue(id, t) })
		return // only a complete list shows that it is missing
	}
	if st.StandsIn() {
		s.log.Warn("the Revision of a Knative Service was not observed in time; its replicas count as 0",
			zap.Stringer("app", id), zap.String("revision", st.Service.LatestReadyRevisionName), zap.Duration("waited", StandInTime))
	}
	s.change(id, st.Service.Namespace, origin{}, app.Observation{})
}

// Close stops the timers of the source.
func (s *Source) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.standIns.close()
	s.settling.close()
	for _, j := range s.joins {
		j.endTimer()
	}
}
