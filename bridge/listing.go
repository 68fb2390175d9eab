package bridge

import (
	"context"
	"fmt"
	"iter"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// listing is what one consistent list of the API server showed.
type listing struct {
	kind, namespace string
	version         string
	items           map[types.NamespacedName]metav1.PartialObjectMetadata
}

func (l listing) covers(namespace string) bool {
	return l.namespace == metav1.NamespaceAll || l.namespace == namespace
}

// listPage is how many objects one request of a list asks for.
const listPage = 500

// list reads the metadata of everything that is watched, consistently
// (resourceVersion unset): the API server asks etcd how far it is.
func (k *kube) list(ctx context.Context) ([]listing, error) {
	var listings []listing
	for _, ns := range k.namespaces {
		for _, kind := range []string{kindRevision, kindService} {
			l := listing{kind: kind, namespace: ns, items: map[types.NamespacedName]metav1.PartialObjectMetadata{}}
			opts := []client.ListOption{client.InNamespace(ns), client.Limit(listPage)}
			if kind == kindService {
				opts = append(opts, client.MatchingLabelsSelector{Selector: managedSelector()})
			}
			for page := metadataList(kind); ; {
				try, cancel := context.WithTimeout(ctx, kubeTimeout)
				err := k.client.List(try, page, append(opts, client.Continue(page.Continue))...)
				cancel()
				if err != nil {
					return nil, fmt.Errorf("list %ss in %s: %w", kind, namespaceText(ns), err)
				}
				for i := range page.Items {
					l.items[client.ObjectKeyFromObject(&page.Items[i])] = page.Items[i]
				}
				l.version = page.ResourceVersion // every page is of the first one's version
				if page.Continue == "" {
					break
				}
			}
			listings = append(listings, l)
		}
	}
	return listings, nil
}

// reach waits until the handlers have seen everything up to the listings.
// noteDeletes must have been called before the listings were made.
func (s *source) reach(ctx context.Context, listings []listing) error {
	for _, l := range listings {
		for {
			s.mu.Lock()
			behind := s.behind(l)
			changed := s.nextChange()
			s.mu.Unlock()
			if behind == "" {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return fmt.Errorf("wait for the informer to reach version %s (%s): %w", l.version, behind, context.Cause(ctx))
			}
		}
	}
	return nil
}

// behind says what the source has not seen yet of a listing, "" if nothing. It
// goes by each object: while an informer lists anew, a high version of one
// object says nothing about another. mu must be held.
func (s *source) behind(l listing) string {
	for key, item := range l.items {
		uid, version, ok := s.known(l.kind, key)
		deletion, deleted := s.deleted[incarnation{l.kind, item.UID}]
		switch {
		case deleted && (deletion == "" || order(deletion, item.ResourceVersion) > 0):
		case !ok, uid != item.UID && order(version, l.version) <= 0, uid == item.UID && order(version, item.ResourceVersion) < 0:
			return l.kind + " " + key.String()
		}
	}
	// What is known, not listed and no newer than the list was deleted before it.
	for key, version := range s.versions(l.kind) {
		if _, listed := l.items[key]; !listed && l.covers(key.Namespace) && order(version, l.version) <= 0 {
			return l.kind + " " + key.String() + " is gone"
		}
	}
	return ""
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
