package watch

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
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

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/watch/decoder"
)

// Cluster is the access to the Kubernetes API: caches for events, a client for consistent reads.
type Cluster struct {
	Namespaces []string             // at least one; metav1.NamespaceAll for all
	Lease      types.NamespacedName // the Lease this replica needs; without a name: none
	caches     []cache.Cache        // one for each of namespaces
	keeper     app.Keeper
	Watches    *Group
	Client     client.Client
	Clientset  kubernetes.Interface
	Log        *zap.Logger
}

// NewCluster makes the caches and the clients. Without namespaces, it watches all of them.
func NewCluster(cfg *rest.Config, namespaces []string, src *Source, conn *Connection, log *zap.Logger) (*Cluster, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.DisableCompression = true // to inflate a list costs more than to read it
	cfg, err := kubeapi.Bounded(cfg)
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return transport{Transport{RoundTripper: rt}, conn}
	})
	scheme, mapper, err := Kinds()
	if err != nil {
		return nil, err
	}
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	requests, err := decoder.NewClient(cfg, scheme)
	if err != nil {
		return nil, err
	}
	k := &Cluster{Namespaces: namespaces, Watches: conn.Watches, Log: log, keeper: src.keeper}
	src.expect(k.Kinds(), namespaces)
	for _, ns := range namespaces {
		c, err := cache.New(cfg, cache.Options{
			Scheme:            scheme,
			Mapper:            mapper,
			DefaultNamespaces: map[string]cache.Config{ns: {}},
			DefaultTransform:  src.Transform,
			SyncPeriod:        new(time.Duration(0)), // never
			NewInformer:       conn.informers(src, ns, requests),
			// Cached objects are never changed here.
			DefaultUnsafeDisableDeepCopy: new(true),
			DefaultWatchErrorHandler:     conn.restarted,
		})
		if err != nil {
			return nil, fmt.Errorf("create the informer cache of %s: %w", kubeapi.NamespaceText(ns), err)
		}
		k.caches = append(k.caches, c)
	}
	if k.Client, err = client.New(cfg, client.Options{Scheme: scheme, Mapper: mapper}); err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	if k.Clientset, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	return k, nil
}

// Kinds are those whose objects make the states of apps, in the order in which they are delivered:
// what a Service needs is there before it.
func (k *Cluster) Kinds() []string {
	if k.keeper.PodConditions {
		return []string{KindRevision, KindPod, KindService}
	}
	return []string{KindRevision, KindService}
}

// informers makes the informers of a namespace's cache, which feed the source, with requests of their
// own in place of the cache's, and without an index: Shown is what is read. They announce the version
// of each list: up to it, earlier states may have been skipped.
func (c *Connection) informers(src *Source, namespace string, requests *decoder.Client) func(toolscache.ListerWatcher, runtime.Object, time.Duration, toolscache.Indexers) toolscache.SharedIndexInformer {
	return func(_ toolscache.ListerWatcher, example runtime.Object, resync time.Duration, _ toolscache.Indexers) toolscache.SharedIndexInformer {
		kind, selector, handler := KindRevision, labels.Everything(), src.Revisions()
		if _, ok := example.(*kservice.Service); ok {
			kind, selector, handler = KindService, managedSelector(), src.Services()
		}
		opts := src.joining(kind, namespace)
		opts.Retried = c.retried
		informer := toolscache.NewSharedIndexInformer(c.Watches.Add(requests.ListWatch(kind, resourceOf(kind).Resource, namespace, selector), opts),
			example, resync, toolscache.Indexers{})
		if _, err := informer.AddEventHandler(handler); err != nil {
			src.log.DPanic("register with a new informer", zap.Error(err)) // only one that has ended refuses
		}
		return informer
	}
}

// Kinds are those that are read. They are known: without discovery there is one thing less that can
// be missing when the API server is.
func Kinds() (*runtime.Scheme, meta.RESTMapper, error) {
	scheme := runtime.NewScheme()
	if err := kservice.AddToScheme(scheme); err != nil {
		return nil, nil, err
	}
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, nil, err
	}
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{kservice.GroupVersion()})
	mapper.Add(kservice.GroupVersion().WithKind(KindService), meta.RESTScopeNamespace)
	mapper.Add(kservice.GroupVersion().WithKind(KindRevision), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind(KindPod), meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	return scheme, mapper, nil
}

// Run runs the caches until ctx is done and all have ended.
func (k *Cluster) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range k.caches {
		group.Go(func() error { return c.Start(ctx) })
	}
	return group.Wait()
}

// Sync starts the informers and waits until each has delivered what exists. They list side by side;
// those of pods count only if states depend on them.
func (k *Cluster) Sync(ctx context.Context, s *Source) error {
	for _, c := range k.caches {
		for _, object := range []client.Object{&kservice.Revision{}, &kservice.Service{}} {
			if _, err := c.GetInformer(ctx, object, cache.BlockUntilSynced(false)); err != nil {
				return fmt.Errorf("start the informer: %w", err)
			}
		}
	}
	return s.awaitLists(ctx)
}
