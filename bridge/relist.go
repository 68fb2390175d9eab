package bridge

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/watch"
)

// informers makes the informers of a namespace's cache. They announce to the source
// the version of every list they take: what a list shows, up to its version, may
// have skipped states that were there before it.
func (s *source) informers(watches *watch.Group, namespace string) func(toolscache.ListerWatcher, runtime.Object, time.Duration, toolscache.Indexers) toolscache.SharedIndexInformer {
	return func(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		kind := kindRevision
		if _, ok := example.(*kservice.Revision); !ok {
			kind = kindService
		}
		return toolscache.NewSharedIndexInformer(watches.Add(lw, watch.Options{
			Kind: kind, Namespace: namespace,
			Listed:  func(version string) { s.listed(kind, version) },
			Retried: func(error) { s.metrics.watchErrors.Inc() },
		}), example, resync, indexers)
	}
}

// relist has the informer of a kind and a namespace, as in namespaces, list again,
// consistently: it emits what it has missed. It does nothing while that is under
// way. why is a cause of package watch.
func (k *kube) relist(kind, namespace, why string) { k.watches.Relist(kind, namespace, why) }

// listed notes that an informer is about to show the result of a list.
func (s *source) listed(kind, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists[kind] = later(s.lists[kind], version)
}

// relisted tells whether a version was shown by a list, not by a watch. Of what
// a watch shows while a list is under way it may say so wrongly, which marks
// an event that need not be marked. mu must be held.
func (s *source) relisted(kind, version string) bool {
	return s.lists[kind] != "" && order(version, s.lists[kind]) <= 0
}
