package watch

import (
	"cmp"
	"fmt"
	"slices"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// claims are the Knative Services that claim to be an app.
type claims map[subjects.AppID][]*app.CachedService

// add adds a Knative Service in place of what it was before.
func (c claims) add(id subjects.AppID, svc *app.CachedService) {
	key := svc.Key()
	if at := slices.IndexFunc(c[id], func(had *app.CachedService) bool { return had.Key() == key }); at >= 0 {
		c[id][at] = svc
		return
	}
	c[id] = append(c[id], svc)
}

func (c claims) remove(id subjects.AppID, key types.NamespacedName) {
	c[id] = slices.DeleteFunc(c[id], func(had *app.CachedService) bool { return had.Key() == key })
	if len(c[id]) == 0 {
		delete(c, id)
	}
}

// winner is the Knative Service that is the app where several claim to be: the one with the
// canonical name, else the oldest. It is nil if there is no claim.
func (c claims) winner(id subjects.AppID) *app.CachedService {
	switch len(c[id]) {
	case 0:
		return nil
	case 1: // most have no other
		return c[id][0]
	}
	canonical := kservice.Name(id)
	return slices.MinFunc(c[id], func(a, b *app.CachedService) int {
		switch {
		case a.Name == b.Name:
		case a.Name == canonical:
			return -1
		case b.Name == canonical:
			return 1
		}
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), kservice.Compare(a.Key(), b.Key()))
	})
}

func errConflict(id subjects.AppID, winner *app.CachedService) error {
	return fmt.Errorf("app %s is already Knative Service %s/%s", id, winner.Namespace, winner.Name)
}

// reject counts and logs an object that is not published, once per version. mu must be locked.
func (s *Source) reject(key types.NamespacedName, svc *app.CachedService, reason string, err error) {
	seen := string(svc.UID) + "/" + svc.ResourceVersion + "/" + reason
	if s.reported[key] == seen {
		return
	}
	s.reported[key] = seen
	s.rejected(reason)
	s.log.Warn("Knative Service is rejected",
		zap.Stringer("service", key), zap.String("resourceVersion", svc.ResourceVersion),
		zap.String("reason", reason), zap.Error(err))
}
