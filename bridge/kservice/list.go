package kservice

import "cmp"

// Compare orders the Services of a list by namespace and name, as Kubernetes does.
func Compare(a, b *Service) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Listed reports whether a Service is on the list of a project and a domain, empty meaning any.
// Lists select by label; the id of the app is in an annotation, so the two may differ.
func Listed(svc *Service, project, domain string) bool {
	return svc.Labels[LabelManaged] == labelTrue &&
		(project == "" || svc.Labels[LabelProject] == project) && (domain == "" || svc.Labels[LabelDomain] == domain)
}
