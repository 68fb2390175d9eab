package bridge

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
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
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/watch"
)

// kube is the bridge's access to the Kubernetes API: caches for the events and one
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

func newKube(cfg *rest.Config, namespaces []string, src *source, conn *connection, log *zap.Logger) (*kube, error) {
	cfg = kubeapi.Unlimited(cfg)
	cfg.DisableCompression = true // to inflate a list costs more than to read it
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return transport{watch.Transport{RoundTripper: rt}, conn}
	})
	scheme, mapper, err := kinds()
	if err != nil {
		return nil, err
	}
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	k := &kube{namespaces: namespaces, watches: conn.watches, log: log}
	for _, ns := range namespaces {
		c, err := cache.New(cfg, cache.Options{
			Scheme:            scheme,
			Mapper:            mapper,
			DefaultNamespaces: map[string]cache.Config{ns: {}},
			DefaultTransform:  kservice.Trim,
			SyncPeriod:        new(time.Duration(0)), // never
			ByObject: map[client.Object]cache.ByObject{
				&kservice.Service{}: {Label: managedSelector()},
			},
			NewInformer: conn.informers(src.shown, ns),
			// Cached objects are never changed here.
			DefaultUnsafeDisableDeepCopy: new(true),
			DefaultWatchErrorHandler: func(ctx context.Context, r *toolscache.Reflector, err error) {
				toolscache.DefaultWatchErrorHandler(ctx, r, err)
				conn.metrics.watchErrors.Inc()
			},
		})
		if err != nil {
			return nil, fmt.Errorf("create the informer cache of %s: %w", kubeapi.NamespaceText(ns), err)
		}
		k.caches = append(k.caches, c)
	}
	if k.client, err = client.New(cfg, client.Options{Scheme: scheme, Mapper: mapper}); err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	if k.clientset, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	return k, nil
}

// informers makes the informers of a namespace's cache. They announce the version of every list they
// take: what a list shows, up to its version, may have skipped states that were there before it.
func (c *connection) informers(s *shown, namespace string) func(toolscache.ListerWatcher, runtime.Object, time.Duration, toolscache.Indexers) toolscache.SharedIndexInformer {
	return func(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		kind := kindRevision
		if _, ok := example.(*kservice.Revision); !ok {
			kind = kindService
		}
		return toolscache.NewSharedIndexInformer(c.watches.Add(lw, watch.Options{
			Kind: kind, Namespace: namespace,
			Listed:  func(version string) { s.listed(kind, version) },
			Retried: func(error) { c.metrics.watchErrors.Inc() },
		}), example, resync, indexers)
	}
}

func managedSelector() labels.Selector {
	return labels.SelectorFromSet(labels.Set{kservice.LabelManaged: "true"})
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

// run runs the caches until ctx is done and all have ended.
func (k *kube) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range k.caches {
		group.Go(func() error { return c.Start(ctx) })
	}
	return group.Wait()
}

// sync registers the source's handlers and waits until the informers have
// delivered everything that exists.
func (k *kube) sync(ctx context.Context, s *source) error {
	for _, w := range []struct {
		object  client.Object
		handler toolscache.ResourceEventHandler
	}{
		// Revisions first: with their counts known, the Services that follow
		// are settled once.
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

// relist has the informer of a kind and a namespace, as in namespaces, list again, consistently: it
// emits what it has missed. It does nothing while that is under way. cause is one of package watch.
func (k *kube) relist(kind, namespace, cause string) { k.watches.Relist(kind, namespace, cause) }
