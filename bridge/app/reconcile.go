package app

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// Input is what Reconcile compares. The zero value of any field but Watched is none.
type Input struct {
	// Records is what stream and bucket have of each app; a nil record: nothing was published.
	Records map[subjects.AppID]*Record
	// Current is the state of each app in the cluster.
	Current map[subjects.AppID]State
	// Confirmed are states that are known to be published: they are not converted to be compared.
	Confirmed map[subjects.AppID]State
	// Awaits reports whether the Revision that gives an app's count is not observed yet.
	Awaits func(subjects.AppID) bool

	// Pending is what the session before has not published. Its changes are published instead of
	// the difference where they lead from the record to the current state.
	Pending map[subjects.AppID]Pending
	// SameStream is true if the stream of that session is the one that the records are of.
	SameStream bool
	// Lost reports whether the stream has lost an acknowledged sequence.
	Lost func(sequence uint64) bool

	Watched func(namespace string) bool
}

// Result is what has to be published so that the stream has what the cluster has.
type Result struct {
	Changes []Owed                                // the differences, ordered by app
	Pending map[subjects.AppID][]*Change          // the pending changes that are still to be published
	records map[subjects.AppID]*Record            // where the record that the changes follow is another one
	StandIn map[subjects.AppID]*kservice.Revision // gives the published count until the app's Revision is observed
	// Unwatched are published apps in namespaces that are not watched: their state is unknown.
	Unwatched []subjects.AppID
}

// Owed is a change that reconcile found.
type Owed struct {
	App    subjects.AppID
	Change *Change
}

// Record is what the changes of an app follow.
func (r Result) Record(in Input, id subjects.AppID) *Record {
	if other, ok := r.records[id]; ok {
		return other
	}
	return in.Records[id]
}

// Reconcile compares what was published with what the cluster has. It has no side effects.
//
//	record          current         owed
//	none, deleted   a state         created
//	a state         the same        nothing
//	a state         another         updated
//	a state         another object  deleted, created
//	a state         none            deleted, unless its namespace is not watched
//	damaged         a state         created
//	damaged         none            nothing
func Reconcile(in Input) Result {
	result := Result{
		Pending: map[subjects.AppID][]*Change{}, records: map[subjects.AppID]*Record{}, StandIn: map[subjects.AppID]*kservice.Revision{},
	}
	removed := in.removedEvents(result.records)
	in.lostCreates(result)
	for id, p := range in.Pending {
		r, ok := removed[id]
		if !ok {
			r = result.Record(in, id)
		}
		var now *State
		if st, there := in.Current[id]; there {
			now = &st
		}
		if changes, follow := p.following(r, now, in.Lost); follow {
			result.Pending[id] = changes
			if ok {
				result.records[id] = r
			}
		}
	}
	ids := slices.AppendSeq(slices.Collect(maps.Keys(in.Records)), maps.Keys(in.Current))
	slices.SortFunc(ids, compareApps)
	for _, id := range slices.Compact(ids) {
		if result.Pending[id] == nil {
			in.compare(id, &result)
		}
	}
	return result
}

// removedEvents adds to records where the event stood that was removed from the stream before it
// was projected, as the session before knows. So the id of the app's next event differs from that
// of the removed one, while what is owed is what the bucket lacks. It returns the records of the
// removed events, which pending changes follow. An app without a record does not count: its last
// event is read before its next.
func (in Input) removedEvents(records map[subjects.AppID]*Record) map[subjects.AppID]*Record {
	removed := map[subjects.AppID]*Record{}
	if !in.SameStream {
		return removed
	}
	for id, p := range in.Pending {
		r, read := in.Records[id]
		known := p.Record.Previous()
		if read && !r.IsDamaged() && r.Previous() < known && !in.Lost(known) {
			records[id], removed[id] = r.MovedTo(known), p.Record
		}
	}
	return removed
}

// lostCreates takes apps whose only event the stream lost for not published if they have a state:
// they are created again. Without a state, what the entry has is deleted.
func (in Input) lostCreates(result Result) {
	for id := range in.Records {
		r := result.Record(in, id)
		if r == nil || !r.EventLost {
			continue
		}
		if _, there := in.Current[id]; !there && !in.Pending[id].hasState() {
			continue
		}
		result.records[id] = nil
		if r.Foreign > 0 {
			result.records[id] = (*Record)(nil).Behind(r.Foreign)
		}
	}
}

func (in Input) compare(id subjects.AppID, result *Result) {
	r := result.Record(in, id)
	now, there := in.Current[id]
	if there && in.Awaits != nil && in.Awaits(id) && !now.StandsIn() {
		if rev := lastCount(now.Service, r); rev != nil {
			now.Revision, result.StandIn[id] = rev, rev
		}
	}
	owe := func(changes ...*Change) {
		for _, c := range changes {
			c.Synthesized = true
			result.Changes = append(result.Changes, Owed{id, c})
		}
	}
	switch {
	case there && !r.Exists():
		owe(NewUpsert(now, true))
	case there && r.UID != string(now.Service.UID):
		owe(MissedDelete(), NewUpsert(now, true))
	case there && in.Confirmed[id] == now:
	case there && !IsPublished(now, r):
		owe(NewUpsert(now, false))
	case !there && r.Exists() && !in.Watched(r.Namespace):
		result.Unwatched = append(result.Unwatched, id)
	case !there && r.Exists():
		owe(MissedDelete())
	}
}

func compareApps(a, b subjects.AppID) int {
	return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
}

// IsPublished reports whether r is the state now: the same version, giving the same App. The second
// can differ alone, by another base domain, an upgrade or another replica count.
func IsPublished(now State, r *Record) bool {
	if now.Service.ResourceVersion != r.ResourceVersion || now.Pods.Revision != r.reasonRevision {
		return false // the Revision of what pods say is not in the App
	}
	app, err := now.App()
	for _, field := range strings.Split(r.Truncated, ",") {
		if err == nil {
			app, err = app.Without(field)
		}
	}
	if err != nil {
		return false
	}
	// The replica count is in the status, so without that the Revision that gave it has to be the same.
	if r.Lacks(subjects.TruncatedStatus) && now.Revision != nil && (now.Revision.Name != r.Revision || now.Revision.ResourceVersion != r.revisionVersion) {
		return false
	}
	return SameApp(r.App, app, r.ContentType)
}

// Watching returns a function that reports whether a namespace is watched.
func Watching(namespaces []string) func(string) bool {
	return func(namespace string) bool {
		return slices.Contains(namespaces, namespace) || slices.Contains(namespaces, metav1.NamespaceAll)
	}
}
