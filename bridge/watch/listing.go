package watch

import (
	"context"
	"fmt"
	"maps"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
)

// Listing is what one consistent list of the API server has.
type Listing struct {
	Kind, Namespace string
	Version         string
	Items           map[types.NamespacedName]Listed
	More            bool // it is one page, and another follows
}

// Listed is what is kept of an object of a list.
type Listed struct {
	UID             types.UID
	ResourceVersion string
}

func (l Listing) covers(namespace string) bool {
	return l.Namespace == metav1.NamespaceAll || l.Namespace == namespace
}

// List reads uid and version of everything that is watched, consistently (resourceVersion unset):
// the API server asks etcd how far it is. Of a kind and a namespace, no more than one page of
// metadata is in memory at one time.
func (k *Cluster) List(ctx context.Context) ([]Listing, error) {
	var listings []Listing
	for _, ns := range k.Namespaces {
		for _, kind := range k.Kinds() {
			listings = append(listings, Listing{Kind: kind, Namespace: ns, Items: map[types.NamespacedName]Listed{}})
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(len(k.Kinds())) // those of a namespace
	for i := range listings {
		l := &listings[i]
		group.Go(func() error {
			return k.Pages(ctx, l.Kind, l.Namespace, func(page Listing) error {
				maps.Copy(l.Items, page.Items)
				l.Version = page.Version
				return nil
			})
		})
	}
	return listings, group.Wait()
}

// Pages calls each with every page of a consistent list of the objects that are watched.
func (k *Cluster) Pages(ctx context.Context, kind, namespace string, each func(page Listing) error) error {
	refused := error(nil)
	err := kubeapi.EachPage(ctx, k.Client, func() *metav1.PartialObjectMetadataList { return metadataList(kind) },
		func(page *metav1.PartialObjectMetadataList) error {
			refused = each(listingOf(kind, namespace, page))
			return refused
		}, watched(kind, namespace)...)
	if err != nil && refused == nil {
		return listError(kind, namespace, err)
	}
	return err
}

// Object reads an object by a consistent list, which has its version.
func (k *Cluster) Object(ctx context.Context, kind string, key types.NamespacedName) (Listing, error) {
	list := metadataList(kind)
	opts := append(watched(kind, key.Namespace), client.Limit(kubeapi.PageSize), client.MatchingFields{metav1.ObjectNameField: key.Name})
	if err := kubeapi.List(ctx, k.Client, list, opts...); err != nil {
		return Listing{}, listError(kind, key.Namespace, err)
	}
	return listingOf(kind, key.Namespace, list), nil
}

func listError(kind, namespace string, err error) error {
	return fmt.Errorf("list %ss in %s: %w", kind, kubeapi.NamespaceText(namespace), err)
}

func listingOf(kind, namespace string, list *metav1.PartialObjectMetadataList) Listing {
	l := Listing{Kind: kind, Namespace: namespace, Version: list.ResourceVersion, More: list.Continue != "", Items: make(map[types.NamespacedName]Listed, len(list.Items))}
	for i := range list.Items {
		item := &list.Items[i]
		l.Items[client.ObjectKeyFromObject(item)] = Listed{item.UID, item.ResourceVersion}
	}
	return l
}

// watched are the options of a list of the objects of a kind and a namespace that are watched.
func watched(kind, namespace string) []client.ListOption {
	opts := []client.ListOption{client.InNamespace(namespace)}
	switch kind {
	case KindService:
		opts = append(opts, client.MatchingLabelsSelector{Selector: managedSelector()})
	case KindPod:
		opts = append(opts, client.HasLabels{kservice.LabelService})
	}
	return opts
}

func metadataList(kind string) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(groupVersionOf(kind).WithKind(kind + "List"))
	return list
}

// ServiceVersion is the version of the consistent list of Knative Services.
func ServiceVersion(listings []Listing) (version string) {
	for _, l := range listings {
		if l.Kind == KindService {
			version = earlier(version, l.Version)
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

// Version is the version of the cluster's Knative Services, read consistently.
func (k *Cluster) Version(ctx context.Context) (string, error) {
	list := metadataList(KindService)
	if err := kubeapi.List(ctx, k.Client, list, client.InNamespace(k.Namespaces[0]), client.Limit(1)); err != nil {
		return "", fmt.Errorf("read the cluster's version: %w", err)
	}
	return list.ResourceVersion, nil
}
