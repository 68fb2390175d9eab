package bridge

import (
	"context"
	"fmt"
	"iter"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// listing is what one consistent list of the API server showed.
type listing struct {
	kind, namespace string
	version         string
	items           map[types.NamespacedName]listed
}

// listed is what is kept of an object of a list.
type listed struct {
	UID             types.UID
	ResourceVersion string
}

func (l listing) covers(namespace string) bool {
	return l.namespace == metav1.NamespaceAll || l.namespace == namespace
}

// listPage is how many objects one request of a list asks for.
const listPage = 500

// list reads uid and version of everything that is watched, consistently
// (resourceVersion unset): the API server asks etcd how far it is. No more than
// one page of metadata is in memory at one time.
func (k *kube) list(ctx context.Context) ([]listing, error) {
	var listings []listing
	for _, ns := range k.namespaces {
		for _, kind := range []string{kindRevision, kindService} {
			l := listing{kind: kind, namespace: ns, items: map[types.NamespacedName]listed{}}
			for next := ""; ; {
				p, err := k.page(ctx, kind, ns, "", next)
				if err != nil {
					return nil, err
				}
				maps.Copy(l.items, p.items)
				l.version = p.version // every page is of the first one's version
				if next = p.next; next == "" {
					break
				}
			}
			listings = append(listings, l)
		}
	}
	return listings, nil
}

// page is one page of a consistent list.
type page struct {
	version, next string
	items         map[types.NamespacedName]listed
}

// page reads one page of a consistent list of the objects that are watched; next is
// what the page before it ended with. A name confines the list to one object.
func (k *kube) page(ctx context.Context, kind, namespace, name, next string) (page, error) {
	opts := []client.ListOption{client.InNamespace(namespace), client.Limit(listPage), client.Continue(next)}
	if kind == kindService {
		opts = append(opts, client.MatchingLabelsSelector{Selector: managedSelector()})
	}
	if name != "" {
		opts = append(opts, client.MatchingFields{metav1.ObjectNameField: name})
	}
	ctx, cancel := context.WithTimeout(ctx, kubeTimeout)
	defer cancel()
	list := metadataList(kind)
	if err := k.client.List(ctx, list, opts...); err != nil {
		return page{}, fmt.Errorf("list %ss in %s: %w", kind, namespaceText(namespace), err)
	}
	p := page{version: list.ResourceVersion, next: list.Continue, items: make(map[types.NamespacedName]listed, len(list.Items))}
	for i := range list.Items {
		item := &list.Items[i]
		p.items[client.ObjectKeyFromObject(item)] = listed{item.UID, item.ResourceVersion}
	}
	return p, nil
}

func (s *source) known(kind string, key types.NamespacedName) (types.UID, string, bool) {
	if kind == kindRevision {
		if r := s.revisions[key]; r != nil {
			return r.UID, r.ResourceVersion, true
		}
		return "", "", false
	}
	if o := s.objects[key]; o != nil {
		return o.service.UID, o.service.ResourceVersion, true
	}
	return "", "", false
}

// versions yields every known object of a kind with its version.
func (s *source) versions(kind string) iter.Seq2[types.NamespacedName, string] {
	return func(yield func(types.NamespacedName, string) bool) {
		if kind == kindRevision {
			for key, r := range s.revisions {
				if !yield(key, r.ResourceVersion) {
					return
				}
			}
			return
		}
		for key, o := range s.objects {
			if !yield(key, o.service.ResourceVersion) {
				return
			}
		}
	}
}

// serviceVersion is the version of the consistent list of Knative Services.
func serviceVersion(listings []listing) (version string) {
	for _, l := range listings {
		if l.kind == kindService && (version == "" || order(l.version, version) < 0) {
			version = l.version
		}
	}
	return version
}
