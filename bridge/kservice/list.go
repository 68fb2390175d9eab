package kservice

import (
	"cmp"
	"slices"
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
// order of their own namespaces and names, as Kubernetes lists them. Selected is by
// label, while the id comes from the annotation, so the two may differ; Services
// without a good id are left out. The caller holds the Services to a namespace.
func List(services []*Service, project, domain string) []*Service {
	want := ListLabels(project, domain)
	var found []*Service
	for _, svc := range services {
		if !hasLabels(svc.Labels, want) {
			continue
		}
		if _, err := ID(svc); err == nil {
			found = append(found, svc)
		}
	}
	slices.SortStableFunc(found, func(a, b *Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return found
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
