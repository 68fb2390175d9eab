package watch

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
)

// managedSelector selects what Flyte manages. A Service that loses the label leaves the watch, and
// so counts as deleted; one that gets it back is created.
func managedSelector() labels.Selector {
	return labels.SelectorFromSet(labels.Set{kservice.LabelManaged: "true"})
}

// deleteService handles a Service that was deleted, or that lost the label of managedSelector: the
// API server reports both as a deletion.
func (s *Source) deleteService(svc *app.CachedService, unknown bool) {
	key := svc.Key()
	gone := app.Observation{Relisted: unknown, FinalStateUnknown: unknown, ChangedAt: svc.LastChange}
	if !unknown {
		// A tombstone's object is the last one cached: its version is not that of the deletion.
		gone.DeletedVersion = svc.ResourceVersion
	}
	old := s.Shown.service(key)
	if old != nil && !unknown {
		s.release(old.ID, key.Namespace)
	}
	s.Shown.removeService(key, svc, gone.DeletedVersion)
	delete(s.reported, key)
	if old != nil && old.IsApp() {
		s.claims.remove(old.ID, key)
		s.change(old.ID, key.Namespace, origin{kind: KindService, deleted: true}, gone)
	}
}
