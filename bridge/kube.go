package bridge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
)

const (
	// kubePatience is how long an answer that will not change by itself (a
	// refused identity, a missing CRD) is doubted: an API server that has
	// just started gives some of them for a moment.
	kubePatience = 5 * time.Second
	kubeTimeout  = 15 * time.Second
)

func managedSelector() labels.Selector {
	return labels.SelectorFromSet(labels.Set{kservice.LabelManaged: "true"})
}

// kube is the bridge's view of the Kubernetes API: one cache for the events
// and one plain client for the few consistent reads.
type kube struct {
	namespaces []string // at least one; metav1.NamespaceAll for all
	cache      cache.Cache
	client     client.Client
	log        *zap.Logger
}

func newKube(cfg *rest.Config, namespaces []string, log *zap.Logger, onWatchError func(error)) (*kube, error) {
	scheme := runtime.NewScheme()
	if err := kservice.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, err
	}
	// The kinds are known: without discovery there is one thing less that can
	// be missing when the API server is.
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{kservice.GroupVersion()})
	mapper.Add(kservice.GroupVersion().WithKind(kindService), meta.RESTScopeNamespace)
	mapper.Add(kservice.GroupVersion().WithKind(kindRevision), meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)

	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	watched := map[string]cache.Config{}
	for _, ns := range namespaces {
		watched[ns] = cache.Config{}
	}
	never := time.Duration(0)
	c, err := cache.New(cfg, cache.Options{
		Scheme:            scheme,
		Mapper:            mapper,
		DefaultNamespaces: watched,
		DefaultTransform:  kservice.Trim,
		SyncPeriod:        &never,
		ByObject: map[client.Object]cache.ByObject{
			&kservice.Service{}: {Label: managedSelector()},
		},
		// Cached objects are never changed here.
		DefaultUnsafeDisableDeepCopy: new(true),
		DefaultWatchErrorHandler: func(ctx context.Context, r *toolscache.Reflector, err error) {
			toolscache.DefaultWatchErrorHandler(ctx, r, err)
			onWatchError(err)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("create the informer cache: %w", err)
	}
	cl, err := client.New(cfg, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	return &kube{namespaces: namespaces, cache: c, client: cl, log: log}, nil
}

// identify waits for the API server, checks that this program may read what
// it needs, and returns the cluster's identity: the uid of kube-system. status
// is told what is being waited for. What will not get better by waiting
// comes back as an error.
func (k *kube) identify(ctx context.Context, status func(string)) (types.UID, error) {
	var uid types.UID
	var since time.Time
	err := retry(ctx, func() error {
		var err error
		if uid, err = k.probe(ctx); err == nil {
			return nil
		}
		status(err.Error())
		if !final(err) {
			since = time.Time{}
			return err
		}
		if since.IsZero() {
			since = time.Now()
		}
		if time.Since(since) < kubePatience {
			return err
		}
		return permanent(err)
	}, func(err error, next time.Duration) {
		k.log.Warn("waiting for Kubernetes", zap.Error(err), zap.Duration("retryIn", next))
	})
	return uid, err
}

// final tells whether waiting will not help against an error of probe.
func final(err error) bool {
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
}

func (k *kube) probe(ctx context.Context) (types.UID, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeTimeout)
	defer cancel()
	for _, ns := range k.namespaces {
		for _, kind := range []string{kindService, kindRevision} {
			resource := schema.GroupResource{Group: kservice.GroupVersion().Group, Resource: strings.ToLower(kind) + "s"}
			list := metadataList(kind)
			err := k.client.List(ctx, list, client.InNamespace(ns), client.Limit(1))
			switch {
			case err == nil:
			case apierrors.IsNotFound(err):
				return "", fmt.Errorf("kubernetes has no %s/%s: install the CRDs of Knative Serving: %w", resource, kservice.GroupVersion().Version, err)
			default:
				return "", explain(err, fmt.Sprintf("list, watch on %s in %s", resource, namespaceText(ns)))
			}
		}
	}
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
	if err := k.client.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, ns); err != nil {
		return "", explain(err, "get on namespace "+metav1.NamespaceSystem+" (its uid is the cluster's identity)")
	}
	return ns.UID, nil
}

func namespaceText(ns string) string {
	if ns == metav1.NamespaceAll {
		return "all namespaces"
	}
	return "namespace " + ns
}

func explain(err error, verb string) error {
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("kubernetes does not accept the credentials of --kubeconfig: %w", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("kubernetes forbids what appbridge needs, %s: grant it by RBAC: %w", verb, err)
	default:
		return fmt.Errorf("kubernetes is not reachable: %w", err)
	}
}

func metadataList(kind string) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kservice.GroupVersion().WithKind(kind + "List"))
	return list
}

// watch registers the source's handlers and waits until the informers have
// delivered everything that exists.
func (k *kube) watch(ctx context.Context, s *source) error {
	for _, w := range []struct {
		object  client.Object
		handler toolscache.ResourceEventHandler
	}{
		// Revisions first: with their counts known, the Services that follow
		// need no second look.
		{&kservice.Revision{}, s.revisionHandler()},
		{&kservice.Service{}, s.serviceHandler()},
	} {
		informer, err := k.cache.GetInformer(ctx, w.object, cache.BlockUntilSynced(true))
		if err != nil {
			return fmt.Errorf("start the informer: %w", err)
		}
		registration, err := informer.AddEventHandler(w.handler)
		if err != nil {
			return fmt.Errorf("register with the informer: %w", err)
		}
		if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// listing is what one consistent list of the API server showed.
type listing struct {
	scope   versionScope
	version string
	items   map[types.NamespacedName]metav1.PartialObjectMetadata
}

// list reads the metadata of everything that is watched, consistently
// (resourceVersion unset): the API server asks etcd how far it is.
func (k *kube) list(ctx context.Context) ([]listing, error) {
	var listings []listing
	for _, ns := range k.namespaces {
		for _, kind := range []string{kindRevision, kindService} {
			opts := []client.ListOption{client.InNamespace(ns)}
			if kind == kindService {
				opts = append(opts, client.MatchingLabelsSelector{Selector: managedSelector()})
			}
			list := metadataList(kind)
			if err := k.client.List(ctx, list, opts...); err != nil {
				return nil, fmt.Errorf("list %ss in %s: %w", kind, namespaceText(ns), err)
			}
			l := listing{
				scope:   versionScope{kind, ns},
				version: list.ResourceVersion,
				items:   make(map[types.NamespacedName]metav1.PartialObjectMetadata, len(list.Items)),
			}
			for i := range list.Items {
				l.items[client.ObjectKeyFromObject(&list.Items[i])] = list.Items[i]
			}
			listings = append(listings, l)
		}
	}
	return listings, nil
}

// reach waits until the handlers have seen everything up to the listings.
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

// behind says what the source does not know yet of a listing, "" if nothing:
// either a later version was seen, or both show the same. mu must be held.
func (s *source) behind(l listing) string {
	for scope, newest := range s.newest {
		if scope.kind == l.scope.kind && (l.scope.namespace == metav1.NamespaceAll || scope.namespace == l.scope.namespace) &&
			order(newest, l.version) >= 0 {
			return ""
		}
	}
	for key, item := range l.items {
		uid, version, ok := s.known(l.scope.kind, key)
		if !ok || uid != item.UID || order(version, item.ResourceVersion) < 0 {
			return l.scope.kind + " " + key.String()
		}
	}
	// What is known but not listed was deleted before the list.
	for key := range s.keys(l.scope.kind) {
		if _, listed := l.items[key]; !listed && (l.scope.namespace == metav1.NamespaceAll || key.Namespace == l.scope.namespace) {
			return l.scope.kind + " " + key.String() + " is gone"
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

func (s *source) keys(kind string) func(yield func(types.NamespacedName) bool) {
	return func(yield func(types.NamespacedName) bool) {
		if kind == kindRevision {
			for key := range s.revisions {
				if !yield(key) {
					return
				}
			}
			return
		}
		for key := range s.objects {
			if !yield(key) {
				return
			}
		}
	}
}

// serviceVersion is the version of the consistent list of Knative Services.
func serviceVersion(listings []listing) (version string) {
	for _, l := range listings {
		if l.scope.kind == kindService && (version == "" || order(l.version, version) < 0) {
			version = l.version
		}
	}
	return version
}

var errStepBack = errors.New("an object's version stepped back")

func joinNamespaces(namespaces []string) string { return strings.Join(namespaces, ",") }
