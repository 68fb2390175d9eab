package bridge

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

func (s *source) unclaim(id subjects.AppID, key types.NamespacedName) {
	delete(s.claims[id], key)
	if len(s.claims[id]) == 0 {
		delete(s.claims, id)
	}
}

// winner picks the object that is the app where several claim to be: the one
// with the canonical name, else the oldest. The others are reported.
func (s *source) winner(id subjects.AppID) *kservice.Service {
	claims := s.claims[id]
	if len(claims) == 1 {
		for _, svc := range claims {
			return svc
		}
	}
	var best *kservice.Service
	canonical := kservice.Name(id)
	for _, svc := range claims {
		if best == nil || wins(svc, best, canonical) {
			best = svc
		}
	}
	for key, svc := range claims {
		if svc != best {
			s.reject(key, svc, reasonConflict, errConflict(id, best))
		}
	}
	return best
}

func wins(a, b *kservice.Service, canonical string) bool {
	if (a.Name == canonical) != (b.Name == canonical) {
		return a.Name == canonical
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	if a.Namespace != b.Namespace {
		return a.Namespace < b.Namespace
	}
	return a.Name < b.Name
}
