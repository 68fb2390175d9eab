package pods

import (
	"context"

	"github.com/go-logr/logr"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// podInformer is an informer on the pods of one stream. It only makes changes known early:
// decisions are made on consistent reads.
type podInformer struct {
	informer cache.SharedIndexInformer
	changed  chan struct{} // holds one token after a change
}

func (s *appLog) newPodInformer() *podInformer {
	narrow := func(o *metav1.ListOptions) { o.LabelSelector = s.selector() }
	if s.q.Replica != "" {
		narrow = func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", s.q.Replica).String()
		}
	}
	w := &podInformer{
		informer: cache.NewSharedIndexInformer(
			cache.NewFilteredListWatchFromClient(s.src.core.RESTClient(), "pods", s.namespace, narrow), &corev1.Pod{}, 0, nil),
		changed: make(chan struct{}, 1),
	}
	// None of these fails before the informer runs.
	_ = w.informer.SetTransform(func(object any) (any, error) {
		if m, err := meta.Accessor(object); err == nil {
			m.SetManagedFields(nil)
		}
		return object, nil
	})
	_ = w.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		s.src.metrics.failures.Inc()
		s.src.log.Debug("the watch of pods failed", zap.String("namespace", s.namespace), zap.String("service", s.service), zap.Error(err))
	})
	_, _ = w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { w.signal() },
		UpdateFunc: func(any, any) { w.signal() },
		DeleteFunc: func(any) { w.signal() },
	})
	return w
}

// run returns when ctx is done and the informer has stopped. client-go's own log is discarded:
// it would have a line for each stream, and the error handler logs the same errors.
func (w *podInformer) run(ctx context.Context) {
	w.informer.RunWithContext(klog.NewContext(ctx, logr.Discard()))
}

func (w *podInformer) signal() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// pods returns the pods in the informer's cache.
func (w *podInformer) pods() []*corev1.Pod {
	pods, _ := listers.NewPodLister(w.informer.GetIndexer()).List(labels.Everything()) // never fails
	return pods
}
