package watch

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// claims are the Knative Services that claim to be an app.
type claims map[subjects.AppID]map[types.NamespacedName]*kservice.Service

func (c claims) add(id subjects.AppID, key types.NamespacedName, svc *kservice.Service) {
	if c[id] == nil {
		c[id] = map[types.NamespacedName]*kservice.Service{}
	}
	c[id][key] = svc
}

func (c claims) remove(id subjects.AppID, key types.NamespacedName) {
	delete(c[id], key)
	if len(c[id]) == 0 {
		delete(c, id)
	}
}

// winner is the Knative Service that is the app where several claim to be: the one with the
// canonical name, else the oldest. It is nil if there is no claim.
func (c claims) winner(id subjects.AppID) (best *kservice.Service) {
	canonical := ""
	for _, svc := range c[id] {
		if best == nil {
			best = svc
			continue
		}
		if canonical == "" {
			canonical = kservice.Name(id)
		}
		if wins(svc, best, canonical) {
			best = svc
		}
	}
	return best
}

func wins(a, b *kservice.Service, canonical string) bool {
	if (a.Name == canonical) != (b.Name == canonical) {
		return a.Name == canonical
	}
	return cmp.Or(
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
	) < 0
}
