package bridge

import (
	"context"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
)

// listing is what one consistent list of the API server showed.
type listing struct {
	kind, namespace string
	version         string
	items           map[types.NamespacedName]listed
	more            bool // it is one page, and another follows
}

// listed is what is kept of an object of a list.
type listed struct {
	UID             types.UID
	ResourceVersion string
}

func (l listing) covers(namespace string) bool {
	return l.namespace == metav1.NamespaceAll || l.namespace == namespace
}

// list reads uid and version of everything that is watched, consistently
// (resourceVersion unset): the API server asks etcd how far it is. No more than
// one page of metadata is in memory at one time.
func (k *kube) list(ctx context.Context) ([]listing, error) {
	var listings []listing
	for _, ns := range k.namespaces {
		for _, kind := range []string{kindRevision, kindService} {
			l := listing{kind: kind, namespace: ns, items: map[types.NamespacedName]listed{}}
			if err := k.pages(ctx, kind, ns, func(page listing) error {
				maps.Copy(l.items, page.items)
				l.version = page.version
				return nil
			}); err != nil {
				return nil, err
			}
			listings = append(listings, l)
		}
	}
	return listings, nil
}

// pages calls each with every page of a consistent list of the objects that are watched.
func (k *kube) pages(ctx context.Context, kind, namespace string, each func(page listing) error) error {
	refused := error(nil)
	err := kubeapi.EachPage(ctx, k.client, func() *metav1.PartialObjectMetadataList { return metadataList(kind) },
		func(page *metav1.PartialObjectMetadataList) error {
			refused = each(listingOf(kind, namespace, page))
			return refused
		}, watched(kind, namespace)...)
	if err != nil && refused == nil {
		return listError(kind, namespace, err)
	}
	return err
}

// object reads an object by a consistent list, which has its version.
func (k *kube) object(ctx context.Context, kind string, key types.NamespacedName) (listing, error) {
	list := metadataList(kind)
	opts := append(watched(kind, key.Namespace), client.Limit(kubeapi.PageSize), client.MatchingFields{metav1.ObjectNameField: key.Name})
	if err := kubeapi.List(ctx, k.client, list, opts...); err != nil {
		return listing{}, listError(kind, key.Namespace, err)
	}
	return listingOf(kind, key.Namespace, list), nil
}

func listError(kind, namespace string, err error) error {
	return fmt.Errorf("list %ss in %s: %w", kind, kubeapi.NamespaceText(namespace), err)
}

func listingOf(kind, namespace string, list *metav1.PartialObjectMetadataList) listing {
	l := listing{kind: kind, namespace: namespace, version: list.ResourceVersion, more: list.Continue != "", items: make(map[types.NamespacedName]listed, len(list.Items))}
	for i := range list.Items {
		item := &list.Items[i]
		l.items[client.ObjectKeyFromObject(item)] = listed{item.UID, item.ResourceVersion}
	}
	return l
}

// watched are the options of a list of the objects of a kind and a namespace that are watched.
func watched(kind, namespace string) []client.ListOption {
	opts := []client.ListOption{client.InNamespace(namespace)}
	if kind == kindService {
		opts = append(opts, client.MatchingLabelsSelector{Selector: managedSelector()})
	}
	return opts
}

func metadataList(kind string) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kservice.GroupVersion().WithKind(kind + "List"))
	return list
}

// serviceVersion is the version of the consistent list of Knative Services.
func serviceVersion(listings []listing) (version string) {
	for _, l := range listings {
		if l.kind == kindService {
			version = earlier(version, l.version)
		}
	}
	return version
}

// earlier is the older of two resourceVersions; empty stands for none.
func earlier(a, b string) string {
	if a == "" || app.CompareVersions(b, a) < 0 {
		return b
	}
	return a
}

// version is the version of the cluster's Knative Services, read consistently.
func (k *kube) version(ctx context.Context) (string, error) {
	list := metadataList(kindService)
	if err := kubeapi.List(ctx, k.client, list, client.InNamespace(k.namespaces[0]), client.Limit(1)); err != nil {
		return "", fmt.Errorf("read the cluster's version: %w", err)
	}
	return list.ResourceVersion, nil
}
