package kservice

import (
	"cmp"
	"slices"
)

// List selects the Services of a project and a domain, empty meaning any, in the
// order of their own namespaces and names, as Kubernetes lists them. Selected is by
// label, while the id comes from the annotation, so the two may differ; Services
// without a good id are left out. The caller holds the Services to a namespace.
func List(services []*Service, project, domain string) []*Service {
	var found []*Service
	for _, svc := range services {
		if _, err := ID(svc); err == nil && Listed(svc, project, domain) {
			found = append(found, svc)
		}
	}
	slices.SortStableFunc(found, Compare)
	return found
}

// Compare is the order of a list, by namespace and name.
func Compare(a, b *Service) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Listed reports whether a Service is on the list of a project and a domain, empty meaning any.
func Listed(svc *Service, project, domain string) bool {
	return svc.Labels[LabelManaged] == labelTrue &&
		(project == "" || svc.Labels[LabelProject] == project) && (domain == "" || svc.Labels[LabelDomain] == domain)
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
