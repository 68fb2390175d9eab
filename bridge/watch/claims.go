package watch

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// claims are the Knative Services that claim to be an app.
type claims map[subjects.AppID][]*app.Service

// add adds a Knative Service in place of what it was before.
func (c claims) add(id subjects.AppID, svc *app.Service) {
	key := svc.Key()
	if at := slices.IndexFunc(c[id], func(had *app.Service) bool { return had.Key() == key }); at >= 0 {
		c[id][at] = svc
		return
	}
	c[id] = append(c[id], svc)
}

func (c claims) remove(id subjects.AppID, key types.NamespacedName) {
	c[id] = slices.DeleteFunc(c[id], func(had *app.Service) bool { return had.Key() == key })
	if len(c[id]) == 0 {
		delete(c, id)
	}
}

// winner is the Knative Service that is the app where several claim to be: the one with the
// canonical name, else the oldest. It is nil if there is no claim.
func (c claims) winner(id subjects.AppID) (best *app.Service) {
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

func wins(a, b *app.Service, canonical string) bool {
	if (a.Name == canonical) != (b.Name == canonical) {
		return a.Name == canonical
	}
	return cmp.Or(
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
	) < 0
}
