package kservice

import (
	"cmp"
	"slices"

	"github.com/appbridge/appbridge/subjects"
)

// ListLabels are the labels that a listed Service has. An empty project or
// domain means any.
func ListLabels(project, domain string) map[string]string {
	want := map[string]string{LabelManaged: labelTrue}
	if project != "" {
		want[LabelProject] = project
	}
	if domain != "" {
		want[LabelDomain] = domain
	}
	return want
}

// List selects the Services of a project and a domain, empty meaning any, in the
// order of organization, project, domain and name of their apps. Selected is by
// label, while the id comes from the annotation, so the two may differ; Services
// without a good id are left out. The caller holds the Services to a namespace.
func List(services []*Service, project, domain string) []*Service {
	type listed struct {
		svc *Service
		org string
		id  subjects.AppID
	}
	want := ListLabels(project, domain)
	var found []listed
	for _, svc := range services {
		if !hasLabels(svc.Labels, want) {
			continue
		}
		if id, err := ID(svc); err == nil {
			found = append(found, listed{svc: svc, org: Org(svc), id: id})
		}
	}
	slices.SortStableFunc(found, func(a, b listed) int {
		return cmp.Or(
			cmp.Compare(a.org, b.org),
			cmp.Compare(a.id.Project, b.id.Project),
			cmp.Compare(a.id.Domain, b.id.Domain),
			cmp.Compare(a.id.Name, b.id.Name),
			cmp.Compare(a.svc.Namespace, b.svc.Namespace),
			cmp.Compare(a.svc.Name, b.svc.Name),
		)
	})
	out := make([]*Service, len(found))
	for i := range found {
		out[i] = found[i].svc
	}
	return out
}

// hasLabels reports whether labels holds every entry of want.
func hasLabels(labels, want map[string]string) bool {
	for key, value := range want {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}
