package appsvc

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// The keys that Flyte's clients sort apps by. Flyte calls the status status_phase.
const (
	byName    = "name"
	byCreated = "created_at"
	byStatus  = "status_phase"
)

// maxOrderedName bounds what a token has of an app's name: names are compared by this many bytes,
// and then by their Knative Services.
const maxOrderedName = 256

// order is how a list is sorted. The apps that are equal by it, and those of an empty order,
// are in the order of their Knative Services, by namespace and name.
type order []sortKey

type sortKey struct {
	by         string
	descending bool
}

// readOrder reads the order of a request. Flyte's command line sends sort_by; sort_by_fields, which
// replaces it, counts if there are both.
func readOrder(p *kservice.Problems, r *appv1.CommonListRequest) (o order) {
	fields := r.GetSortByFields()
	path := func(i int) string { return fmt.Sprintf("request.sortByFields[%d]", i) }
	if by := r.GetSortBy(); by != nil && len(fields) == 0 { //nolint:staticcheck // deprecated, and sent all the same
		fields, path = []*appv1.Sort{by}, func(int) string { return "request.sortBy" }
	}
	for i, field := range fields {
		by := field.GetKey()
		if by == "status" {
			by = byStatus
		}
		switch {
		case !slices.Contains([]string{byName, byCreated, byStatus}, by):
			p.AddValue(path(i)+".key", field.GetKey(), byName+", "+byCreated+" or "+byStatus)
		case slices.ContainsFunc(o, func(k sortKey) bool { return k.by == by }):
			p.AddValue(path(i)+".key", field.GetKey(), "each key once")
		case field.GetDirection() != appv1.Sort_ASCENDING && field.GetDirection() != appv1.Sort_DESCENDING:
			p.AddValue(path(i)+".direction", field.GetDirection().String(), "ASCENDING or DESCENDING")
		default:
			o = append(o, sortKey{by, field.GetDirection() == appv1.Sort_DESCENDING})
		}
	}
	return o
}

// place is where an app stands in an order. It has only what the order compares.
type place struct {
	Namespace string `json:"s"`
	Name      string `json:"n"`
	App       []byte `json:"a,omitempty"` // the name of the app, cut
	Created   int64  `json:"c,omitempty"` // Unix time in seconds
	Status    string `json:"p,omitempty"`
}

func (o order) place(svc *app.CachedService) place {
	at := place{Namespace: svc.Namespace, Name: svc.Name}
	for _, key := range o {
		switch key.by {
		case byName:
			at.App = []byte(svc.ID.Name[:min(len(svc.ID.Name), maxOrderedName)])
		case byCreated:
			at.Created = svc.CreationTimestamp.Unix()
		case byStatus:
			at.Status = statusOf(svc)
		}
	}
	return at
}

func (o order) compare(a, b place) int {
	for _, key := range o {
		c := 0
		switch key.by {
		case byName:
			c = slices.Compare(a.App, b.App)
		case byCreated:
			c = cmp.Compare(a.Created, b.Created)
		case byStatus:
			c = cmp.Compare(a.Status, b.Status)
		}
		if key.descending {
			c = -c
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
