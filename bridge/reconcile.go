package bridge

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// reconcileInput is what reconcile compares. The zero value of any field but app and watched is none.
type reconcileInput struct {
	// records is what was published of each app, as stream and bucket show it; a nil record says that
	// nothing was.
	records map[subjects.AppID]*record
	// current is the state of each app in the cluster.
	current map[subjects.AppID]state
	// confirmed are states that are known to be published: they are not converted to be compared.
	confirmed map[subjects.AppID]state
	// awaits reports whether the Revision that gives an app's count is not observed yet.
	awaits func(subjects.AppID) bool

	// pending is what the session before has not published. Its changes are published instead of the
	// difference where they lead from the record to the current state.
	pending map[subjects.AppID]pending
	// sameStream is true if the stream of that session is the one that the records are of.
	sameStream bool
	// lost reports whether the stream has lost an acknowledged sequence.
	lost func(sequence uint64) bool

	app     kservice.Config
	watched func(namespace string) bool
}

// reconcileResult is what has to be published so that the stream shows what the cluster has.
type reconcileResult struct {
	changes []owed                                // the differences, ordered by app
	pending map[subjects.AppID][]*change          // the pending changes that are still to be published
	records map[subjects.AppID]*record            // where the record that the changes follow is another one
	standIn map[subjects.AppID]*kservice.Revision // gives the published count until the app's Revision is observed
	// unwatched are published apps in namespaces that are not watched: their state is not known, so
	// they are left alone.
	unwatched []subjects.AppID
}

// owed is a change that reconcile found.
type owed struct {
	app    subjects.AppID
	change *change
}

// record is what the changes of an app follow.
func (r reconcileResult) record(in reconcileInput, id subjects.AppID) *record {
	if other, ok := r.records[id]; ok {
		return other
	}
	return in.records[id]
}

// reconcile compares what was published with what the cluster has. It has no side effects.
//
//	record          current         owed
//	none, deleted   a state         created
//	a state         the same        nothing
//	a state         another         updated
//	a state         another object  deleted, created
//	a state         none            deleted, unless its namespace is not watched
//	damaged         a state         created
//	damaged         none            nothing
func reconcile(in reconcileInput) reconcileResult {
	result := reconcileResult{
		pending: map[subjects.AppID][]*change{}, records: map[subjects.AppID]*record{}, standIn: map[subjects.AppID]*kservice.Revision{},
	}
	removed := in.removedEvents(result.records)
	in.lostCreates(result)
	for id, p := range in.pending {
		r, ok := removed[id]
		if !ok {
			r = result.record(in, id)
		}
		var now *state
		if st, there := in.current[id]; there {
			now = &st
		}
		if changes, follow := p.following(r, now, in.lost); follow {
			result.pending[id] = changes
			if ok {
				result.records[id] = r
			}
		}
	}
	ids := make(map[subjects.AppID]struct{}, len(in.current))
	for id := range in.records {
		ids[id] = struct{}{}
	}
	for id := range in.current {
		ids[id] = struct{}{}
	}
	for _, id := range slices.SortedFunc(maps.Keys(ids), compareApps) {
		if result.pending[id] == nil {
			in.compare(id, &result)
		}
	}
	return result
}

// removedEvents adds to records where the event stood that was removed from the stream before it was
// projected, as the session before knows. So the id of the app's next event differs from that of the
// removed one, while what is owed is what the bucket lacks. It returns the records of the removed
// events, which pending changes follow. An app without a record does not count: its last event is read
// before its next.
func (in reconcileInput) removedEvents(records map[subjects.AppID]*record) map[subjects.AppID]*record {
	removed := map[subjects.AppID]*record{}
	if !in.sameStream {
		return removed
	}
	for id, p := range in.pending {
		r, read := in.records[id]
		known := p.record.previous()
		if read && !r.isDamaged() && r.previous() < known && !in.lost(known) {
			records[id], removed[id] = r.movedTo(known), p.record
		}
	}
	return removed
}

// lostCreates takes apps whose only event the stream lost for not published if they have a state: they
// are created again. Without a state, what the entry shows is deleted.
func (in reconcileInput) lostCreates(result reconcileResult) {
	for id := range in.records {
		r := result.record(in, id)
		if r == nil || !r.eventLost {
			continue
		}
		if _, there := in.current[id]; !there && !in.pending[id].hasState() {
			continue
		}
		result.records[id] = nil
		if r.foreign > 0 {
			result.records[id] = (*record)(nil).behind(r.foreign)
		}
	}
}

// compare adds the difference of one app.
func (in reconcileInput) compare(id subjects.AppID, result *reconcileResult) {
	r := result.record(in, id)
	now, there := in.current[id]
	if there && in.awaits != nil && in.awaits(id) && !now.standsIn() {
		if rev := lastCount(now.service, r); rev != nil {
			now.revision, result.standIn[id] = rev, rev
		}
	}
	owe := func(changes ...*change) {
		for _, c := range changes {
			c.synthesized = true
			result.changes = append(result.changes, owed{id, c})
		}
	}
	switch {
	case there && !r.exists():
		owe(newUpsert(now, true))
	case there && r.uid != string(now.service.UID):
		owe(missedDelete(), newUpsert(now, true))
	case there && in.confirmed[id] == now:
	case there && !isPublished(now, r, in.app):
		owe(newUpsert(now, false))
	case !there && r.exists() && !in.watched(r.namespace):
		result.unwatched = append(result.unwatched, id)
	case !there && r.exists():
		owe(missedDelete())
	}
}

func compareApps(a, b subjects.AppID) int {
	return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
}

// isPublished reports whether r is the state now: the same version, giving the
// same App. The second can differ alone, by another base domain, an upgrade
// or another replica count.
func isPublished(now state, r *record, cfg kservice.Config) bool {
	if now.service.ResourceVersion != r.resourceVersion {
		return false
	}
	app, err := now.app(cfg)
	if err != nil {
		return false
	}
	if r.leftOut(subjects.TruncatedSpec) {
		app = proto.CloneOf(app)
		app.Spec = nil
	}
	if r.leftOut(subjects.TruncatedStatus) {
		// The replica count is in it, so the Revision that gave it has to be the same.
		if now.revision != nil && (now.revision.Name != r.revision || now.revision.ResourceVersion != r.revisionVersion) {
			return false
		}
		app = proto.CloneOf(app)
		app.Status = nil
	}
	return sameApp(r.app, app, r.contentType)
}

// sameApp compares two Apps in the form one of them was published in: JSON
// keeps no unknown fields.
func sameApp(a, b *appv1.App, contentType string) bool {
	x, _, err := appv1.Encode(a, contentType)
	if err != nil {
		return false
	}
	y, _, err := appv1.Encode(b, contentType)
	return err == nil && bytes.Equal(x, y)
}

// watching returns a function that reports whether a namespace is watched.
func watching(namespaces []string) func(string) bool {
	return func(namespace string) bool {
		return slices.Contains(namespaces, namespace) || slices.Contains(namespaces, metav1.NamespaceAll)
	}
}
