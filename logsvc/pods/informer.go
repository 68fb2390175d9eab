package pods

import (
	"context"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
)

// newPodInformer returns an informer on the pods of one stream. It only makes changes known early:
// decisions are made on consistent reads. changed holds one token after a change.
func (s *appLog) newPodInformer() (informer cache.SharedIndexInformer, changed <-chan struct{}) {
	narrow := func(o *metav1.ListOptions) { o.LabelSelector = s.selector() }
	if s.q.Replica != "" {
		narrow = func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", s.q.Replica).String()
		}
	}
	informer = cache.NewSharedIndexInformer(
		cache.NewFilteredListWatchFromClient(s.src.core.RESTClient(), "pods", s.namespace, narrow), &corev1.Pod{}, 0, nil)
	// None of these fails before the informer runs.
	_ = informer.SetTransform(crcache.TransformStripManagedFields())
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		s.src.metrics.failures.Inc()
		s.src.log.Debug("the watch of pods failed", zap.String("namespace", s.namespace), zap.String("service", s.service), zap.Error(err))
	})
	token := make(chan struct{}, 1)
	signal := func() {
		select {
		case token <- struct{}{}:
		default:
		}
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { signal() },
		UpdateFunc: func(any, any) { signal() },
		DeleteFunc: func(any) { signal() },
	})
	return informer, token
}

// podsOf returns the pods in the cache of an informer.
func podsOf(informer cache.SharedIndexInformer) []*corev1.Pod {
	pods, _ := listers.NewPodLister(informer.GetIndexer()).List(labels.Everything()) // never fails
	return pods
}
