package watch

import (
	"fmt"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

func errConflict(id subjects.AppID, winner *app.Service) error {
	return fmt.Errorf("app %s is already Knative Service %s/%s", id, winner.Namespace, winner.Name)
}

// reject counts and logs an object that is not published, once per version. mu must be locked.
func (s *Source) reject(key types.NamespacedName, svc *app.Service, reason string, err error) {
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
