package plan

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// Step is what is owed for an app so that the stream has what the cluster has.
type Step struct {
	Publish []*app.Change // what to publish, oldest first
	Pending bool          // they are pending changes, and not the difference
	// After is the record that the app's next event follows.
	After *app.Record
	// StandIn gives the published count until the app's Revision is observed.
	StandIn *kservice.Revision
	// Unwatched: the app is published, and its namespace is not watched, so its state is unknown.
	Unwatched bool
}

// Next returns what is owed for an app.
//
//	published       cluster         owed
//	none, deleted   a state         created
//	a state         the same        nothing
//	a state         another         updated
//	a state         another object  deleted, created
//	a state         none            deleted, unless its namespace is not watched
//	damaged         a state         created
//	damaged         none            nothing
//
// Pending changes are owed instead of the difference where they lead from what was published to the
// present state.
func Next(w *World, f Facts) Step {
	s := Step{After: f.Record}
	follow, removed := f.removedEvent(w)
	if removed {
		s.After = f.Record.MovedTo(follow.Previous())
	}
	if f.createLost(s.After) {
		s.After = nil
		if foreign := f.Record.Foreign; foreign > 0 {
			s.After = s.After.Behind(foreign)
		}
	}
	if !removed {
		follow = s.After
	}
	if changes, ok := f.Pending.following(follow, f.Cluster, w.Lost); ok {
		s.After, s.Publish, s.Pending = follow, changes, true
		return s
	}
	f.compare(w, &s)
	return s
}

// removedEvent returns the record of an event that was removed from the stream before it was projected, as the
// bridge knows that published it. So the id of the app's next event differs from that of the removed
// one, while what is owed is what the bucket lacks. An app without a record does not count: its last
// event is read before its next.
func (f Facts) removedEvent(w *World) (r *app.Record, removed bool) {
	known := f.Pending.Record.Previous()
	if w.SameStream && f.Known && !f.Record.IsDamaged() && f.Record.Previous() < known && !w.Lost(known) {
		return f.Pending.Record, true
	}
	return nil, false
}

// createLost reports whether the stream lost the app's only event, and the app has a state: it is created
// again. Without a state, what the entry has is deleted.
func (f Facts) createLost(r *app.Record) bool {
	return f.Known && r != nil && r.EventLost && (f.Cluster != nil || f.Pending.hasState())
}

// compare finds the difference between what was published and what the cluster has.
func (f Facts) compare(w *World, s *Step) {
	r, there := s.After, f.Cluster != nil
	var now app.State
	if there {
		now = *f.Cluster
	}
	if there && f.Awaits && !now.StandsIn() {
		if rev := lastCount(now.Service, r); rev != nil {
			now.Revision, s.StandIn = rev, rev
		}
	}
	switch {
	case there && !r.Exists():
		s.owe(app.NewUpsert(now, true))
	case there && r.UID != string(now.Service.UID):
		s.owe(app.MissedDelete(), app.NewUpsert(now, true))
	case there && f.Confirmed == now:
	case there && !Shows(r, now):
		s.owe(app.NewUpsert(now, false))
	case !there && r.Exists() && !w.Watched(r.Namespace):
		s.Unwatched = true
	case !there && r.Exists():
		s.owe(app.MissedDelete())
	}
}

func (s *Step) owe(changes ...*app.Change) {
	for _, c := range changes {
		c.Synthesized = true
	}
	s.Publish = changes
}

// Shows reports whether a record is of the state now: the same version, giving the same App. The second
// can differ alone, by another base domain, an upgrade or another replica count.
func Shows(r *app.Record, now app.State) bool {
	if now.Service.ResourceVersion != r.ResourceVersion || now.Pods.Revision != r.ReasonRevision {
		return false // the Revision of what pods say is not in the App
	}
	encoded, err := now.App()
	for _, field := range strings.Split(r.Truncated, ",") {
		if err == nil {
			encoded, err = encoded.Without(field)
		}
	}
	if err != nil {
		return false
	}
	// The replica count is in the status, so without that the Revision that gave it has to be the same.
	if r.Lacks(subjects.TruncatedStatus) && now.Revision != nil && (now.Revision.Name != r.Revision || now.Revision.ResourceVersion != r.RevisionVersion) {
		return false
	}
	return app.SameApp(r.App, encoded, r.ContentType)
}

// lastCount is the Revision that gave the count of a record, nil if it gave none, if it is of
// another object than svc, or if it is the one that svc names.
func lastCount(svc *app.CachedService, r *app.Record) *kservice.Revision {
	if !r.Exists() || r.UID != string(svc.UID) || r.Revision == "" || r.Revision == svc.LatestReadyRevisionName {
		return nil
	}
	count := int32(r.App.Replicas())
	if count == 0 {
		return nil
	}
	return &kservice.Revision{
		ObjectMeta: metav1.ObjectMeta{Name: r.Revision, Namespace: svc.Namespace, ResourceVersion: r.RevisionVersion},
		Status:     kservice.RevisionStatus{ActualReplicas: &count},
	}
}

// Fit is how a change follows an app's last event.
type Fit int

// How a change follows.
const (
	FitNext    Fit = iota // its event is the app's next one
	FitShown              // the app's last event shows it already
	FitNothing            // there is nothing to publish
	FitGap                // the deleted event of another object comes first
)

// Follows reports how a change follows the record of the app's last event. read: the record was just read from
// the stream, so it may show the change.
func Follows(r *app.Record, c *app.Change, read bool) Fit {
	switch {
	case c.Remove && !r.Exists():
		return FitNothing
	case c.Remove || !r.Exists():
		return FitNext
	case r.UID != string(c.State.Service.UID):
		return FitGap
	case read && Shows(r, c.State):
		return FitShown
	}
	return FitNext
}

// Differs is a cheap comparison of what was published with the state now; nil: the cluster does not have
// the app. It finds no difference between two Apps of one version.
func Differs(r *app.Record, now *app.State, watched func(namespace string) bool) bool {
	switch {
	case now == nil:
		return r.Exists() && watched(r.Namespace)
	case !r.Exists():
		return true
	}
	svc := now.Service
	return r.UID != string(svc.UID) || r.ResourceVersion != svc.ResourceVersion || int32(r.App.Replicas()) != app.Replicas(*now)
}
