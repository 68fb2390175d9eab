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

// owed is a change that a comparison of the cluster with what was published found.
type owed struct {
	app    subjects.AppID
	change *change
}

// reconcile compares what was published with what is, and returns the
// difference, ordered by app. unwatched lists the published apps of
// namespaces that are not watched: nothing is known of them, so they are left
// alone.
func reconcile(records map[subjects.AppID]*record, current map[subjects.AppID]state, app kservice.Config, watched func(namespace string) bool) (changes []owed, unwatched []subjects.AppID) {
	return reconcileKnowing(nil, records, current, app, watched)
}

// reconcileKnowing is reconcile where some states are known to be published, as their records say.
func reconcileKnowing(published map[subjects.AppID]state, records map[subjects.AppID]*record, current map[subjects.AppID]state, app kservice.Config, watched func(namespace string) bool) (changes []owed, unwatched []subjects.AppID) {
	ids := make(map[subjects.AppID]struct{}, len(current))
	for id := range records {
		ids[id] = struct{}{}
	}
	for id := range current {
		ids[id] = struct{}{}
	}
	for _, id := range slices.SortedFunc(maps.Keys(ids), compareApps) {
		r := records[id]
		now, there := current[id]
		switch {
		case there && !r.exists():
			changes = append(changes, owed{id, synthesized(newUpsert(now, true))})
		case there && r.uid != string(now.service.UID):
			changes = append(changes, owed{id, missedDelete()}, owed{id, synthesized(newUpsert(now, true))})
		case there && published[id] == now:
		case there && !isPublished(now, r, app):
			changes = append(changes, owed{id, synthesized(newUpsert(now, false))})
		case !there && r.exists() && !watched(r.namespace):
			unwatched = append(unwatched, id)
		case !there && r.exists():
			changes = append(changes, owed{id, missedDelete()})
		}
	}
	return changes, unwatched
}

func compareApps(a, b subjects.AppID) int {
	return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
}

func synthesized(c *change) *change {
	c.synthesized = true
	return c
}

// isPublished tells whether r is the state now: the same version, giving the
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

// watching tells which namespaces a bridge watches.
func watching(namespaces []string) func(string) bool {
	return func(namespace string) bool {
		return slices.Contains(namespaces, namespace) || slices.Contains(namespaces, metav1.NamespaceAll)
	}
}
