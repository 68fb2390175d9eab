package kservice

import (
	"slices"
)

// ListKey is where a Service stands in a list: organization, project, domain and
// name of its app, then its own namespace and name.
type ListKey [6]string

// Compare is negative when k comes before other.
func (k ListKey) Compare(other ListKey) int { return slices.Compare(k[:], other[:]) }

// KeyOf is the place of a Service in a list. The error is that of ID.
func KeyOf(svc *Service) (ListKey, error) {
	id, err := ID(svc)
	if err != nil {
		return ListKey{}, err
	}
	return ListKey{Org(svc), id.Project, id.Domain, id.Name, svc.Namespace, svc.Name}, nil
}

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
// order of their keys. Selected is by
// label, while the id comes from the annotation, so the two may differ; Services
// without a good id are left out. The caller holds the Services to a namespace.
func List(services []*Service, project, domain string) []*Service {
	type listed struct {
		svc *Service
		key ListKey
	}
	want := ListLabels(project, domain)
	var found []listed
	for _, svc := range services {
		if !hasLabels(svc.Labels, want) {
			continue
		}
		if key, err := KeyOf(svc); err == nil {
			found = append(found, listed{svc, key})
		}
	}
	slices.SortStableFunc(found, func(a, b listed) int { return a.key.Compare(b.key) })
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
