package bridge

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// connect compares what is with what was published, puts the differences into
// q and lets everything that happens from now on follow them. Where before, the
// queue of the session before, if any, still holds the changes that led to the
// present, these are taken instead: a new session loses no state that was seen.
// owe is called for each change and returns what to call once it is published.
// reset ends the session if an object's version steps back. published are states that are known to
// be what their records show.
func connect(s *source, q, before *queue, records map[subjects.AppID]*record, published map[subjects.AppID]state, lost []subjects.LostRange, app kservice.Config, watched func(string) bool,
	owe func() func(), reset context.CancelCauseFunc,
) (differences, carried int, unwatched []subjects.AppID) {
	s.connect(func(v view) sink {
		var removed map[subjects.AppID]*record
		if before != nil && before.streamID == q.streamID {
			removed = before.advance(records, lost)
		}
		for id, r := range records {
			if _, there := v.states()[id]; r != nil && r.eventLost && (there || before.begins(id)) {
				// The app is created again. Without a state of it, what the entry shows is deleted.
				if foreign := r.foreign; foreign > 0 {
					records[id] = (*record)(nil).behind(foreign)
				} else {
					delete(records, id)
				}
				r = records[id]
			}
			q.load(id, r)
		}
		waiting := before.remains(func(id subjects.AppID) *record {
			if r := removed[id]; r != nil {
				return r
			}
			return records[id]
		}, v.states(), lost)
		for id := range waiting {
			if r := removed[id]; r != nil {
				q.load(id, r)
			}
		}
		for id, r := range records {
			if waiting[id] == nil {
				v.standIn(id, lastCount(v.states()[id].service, r))
			}
		}
		var changes []owed
		changes, unwatched = reconcileKnowing(published, records, v.states(), app, watched)
		changes = slices.DeleteFunc(changes, func(o owed) bool { return waiting[o.app] != nil })
		for _, o := range changes {
			o.change.resynced = owe()
			o.change.size = 0 // its object is kept here in any case
			q.add(o.app, o.change)
		}
		for id, seen := range waiting {
			for _, c := range seen {
				c.resynced = owe()
			}
			q.carry(id, seen)
			carried += len(seen)
		}
		differences = len(changes)
		return q.add
	}, reset)
	return differences, carried, unwatched
}

// lastCount is the Revision that gave the count of a record, nil if it gave none, if it is of
// another object than svc, or if it is the one that svc names.
func lastCount(svc *kservice.Service, r *record) *kservice.Revision {
	if svc == nil || !r.exists() || r.uid != string(svc.UID) || r.revision == "" || r.revision == svc.Status.LatestReadyRevisionName {
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
