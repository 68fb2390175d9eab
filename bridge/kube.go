package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/watch"
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

// kube is the bridge's view of the Kubernetes API: caches for the events and one
// plain client for the few consistent reads.
type kube struct {
	namespaces []string             // at least one; metav1.NamespaceAll for all
	lease      types.NamespacedName // the Lease this replica needs; without a name: none
	caches     []cache.Cache        // one for each of namespaces
	watches    *watch.Group
	client     client.Client
	clientset  kubernetes.Interface
	log        *zap.Logger
}

func newKube(cfg *rest.Config, namespaces []string, src *source, seen *reachability, log *zap.Logger, m *metrics) (*kube, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1                  // no client-side rate limit: pages of a list follow each other
	cfg.DisableCompression = true // to inflate a list costs more than to read it
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return transport{watch.Transport{RoundTripper: rt}, seen}
	})
	scheme, mapper, err := kinds()
	if err != nil {
		return nil, err
	}
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	never := time.Duration(0)
	var caches []cache.Cache
	for _, ns := range namespaces {
		c, err := cache.New(cfg, cache.Options{
			Scheme:            scheme,
			Mapper:            mapper,
			DefaultNamespaces: map[string]cache.Config{ns: {}},
			DefaultTransform:  kservice.Trim,
			SyncPeriod:        &never,
			ByObject: map[client.Object]cache.ByObject{
				&kservice.Service{}: {Label: managedSelector()},
			},
			NewInformer: src.informers(seen.watches, ns),
			// Cached objects are never changed here.
			DefaultUnsafeDisableDeepCopy: new(true),
			DefaultWatchErrorHandler: func(ctx context.Context, r *toolscache.Reflector, err error) {
				toolscache.DefaultWatchErrorHandler(ctx, r, err)
				m.watchErrors.Inc()
			},
		})
		if err != nil {
			return nil, fmt.Errorf("create the informer cache of %s: %w", namespaceText(ns), err)
		}
		caches = append(caches, c)
	}
	cl, err := client.New(cfg, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	clientset, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	return &kube{namespaces: namespaces, caches: caches, watches: seen.watches, client: cl, clientset: clientset, log: log}, nil
}

// kinds are those that are read. They are known: without discovery there is one
// thing less that can be missing when the API server is.
func kinds() (*runtime.Scheme, meta.RESTMapper, error) {
	scheme := runtime.NewScheme()
	if err := kservice.AddToScheme(scheme); err != nil {
		return nil, nil, err
	}
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, nil, err
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{kservice.GroupVersion()})
	mapper.Add(kservice.GroupVersion().WithKind(kindService), meta.RESTScopeNamespace)
	mapper.Add(kservice.GroupVersion().WithKind(kindRevision), meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	return scheme, mapper, nil
}

// identify waits for the API server, checks that this program may do what it
// needs, and returns the cluster's identity: the uid of kube-system. status
// is told what is being waited for. What will not get better by waiting
// comes back as an error.
func (k *kube) identify(ctx context.Context, status func(string)) (types.UID, error) {
	var uid types.UID
	var doubt patience
	report := waitLog{log: k.log}
	err := retry(ctx, func() error {
		var err error
		if uid, err = k.probe(ctx); err == nil {
			return nil
		}
		status(err.Error())
		return doubt.bear(err)
	}, func(err error, _ time.Duration) { report.warn("waiting for Kubernetes", err) })
	return uid, err
}

// patience is for answers that waiting will not change, should they be meant.
type patience struct {
	since time.Time // of the first such answer in a row
}

// bear returns err, permanent once answers of its kind have come for
// kubePatience.
func (p *patience) bear(err error) error {
	if !final(err) {
		p.since = time.Time{}
		return err
	}
	if p.since.IsZero() {
		p.since = time.Now()
	}
	if time.Since(p.since) < kubePatience {
		return err
	}
	return permanent(err)
}

// final tells whether waiting will not help against an error of probe.
func final(err error) bool {
	return errors.As(err, new(*deniedError)) || apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
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
				return "", explain(err, fmt.Sprintf("list on %s in %s", resource, namespaceText(ns)))
			}
			if err := k.may(ctx, ns, resource, "", "watch"); err != nil {
				return "", err
			}
		}
	}
	if l := k.lease; l.Name != "" {
		// A create has no name yet when it is authorized.
		for _, need := range []struct{ verb, name string }{{"get", l.Name}, {"create", ""}, {"update", l.Name}} {
			if err := k.may(ctx, l.Namespace, schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, need.name, need.verb); err != nil {
				return "", err
			}
		}
	}
	return k.uid(ctx)
}

// uid is the cluster's identity.
func (k *kube) uid(ctx context.Context) (types.UID, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeTimeout)
	defer cancel()
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

func metadataList(kind string) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kservice.GroupVersion().WithKind(kind + "List"))
	return list
}

// run runs the caches until ctx is done and all have ended.
func (k *kube) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range k.caches {
		group.Go(func() error { return c.Start(ctx) })
	}
	return group.Wait()
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
		var synced []toolscache.InformerSynced
		for _, c := range k.caches {
			informer, err := c.GetInformer(ctx, w.object, cache.BlockUntilSynced(false))
			if err != nil {
				return fmt.Errorf("start the informer: %w", err)
			}
			registration, err := informer.AddEventHandler(w.handler)
			if err != nil {
				return fmt.Errorf("register with the informer: %w", err)
			}
			synced = append(synced, registration.HasSynced)
		}
		if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
			return context.Cause(ctx)
		}
	}
	return nil
}
