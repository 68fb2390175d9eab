package bridge

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/kservice"
)

// informers makes the cache's informers. They tell the source the version of
// every list they take: what a list shows, up to its version, may have skipped
// states that were there before it.
func (s *source) informers(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	tell := func(version string) { s.listed(kindRevision, version) }
	if _, ok := example.(*kservice.Revision); !ok {
		tell = s.serviceTeller()
	}
	told := &listTeller{
		ListerWatcherWithContext: toolscache.ToListerWatcherWithContext(lw),
		tell:                     tell,
		failed:                   func(error) { s.metrics.watchErrors.Inc() },
	}
	return toolscache.NewSharedIndexInformer(told, example, resync, indexers)
}

// serviceTeller is what an informer of Knative Services tells its lists.
func (s *source) serviceTeller() func(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := len(s.serviceLists)
	s.serviceLists = append(s.serviceLists, "")
	return func(version string) {
		s.listed(kindService, version)
		s.mu.Lock()
		defer s.mu.Unlock()
		// Of a later list, what the watch showed before it may still be on its way.
		if s.serviceLists[at] == "" {
			s.serviceLists[at] = version
		}
	}
}

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

// listTeller tells the version of each list before the informer uses it, also
// of a list that comes as the start of a watch. Requests that only fail because
// the API server is away it makes again itself: the reflector's own pauses grow to a
// minute, and states that come and go in them would never be seen.
type listTeller struct {
	toolscache.ListerWatcherWithContext
	tell   func(version string)
	failed func(error) // is called for each failure that is tried again
}

// untilAnswered makes a request until the API server answers it in one way or
// another. failed hears of each failure that is tried again.
func untilAnswered(ctx context.Context, request func() error, failed func(error)) error {
	return retry(ctx, func() error {
		if err := request(); err != nil {
			if isAway(err) {
				return err
			}
			return permanent(err)
		}
		return nil
	}, func(err error, _ time.Duration) { failed(err) })
}

// isAway tells whether an error is for want of an API server, not its answer.
func isAway(err error) bool {
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		return false // which the reflector knows how to go on from
	}
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err) || apierrors.IsInternalError(err)
}

// List and Watch are what client-go used before it had contexts; the
// interface still asks for them.
func (t *listTeller) List(opts metav1.ListOptions) (runtime.Object, error) {
	return t.ListWithContext(context.Background(), opts)
}

func (t *listTeller) Watch(opts metav1.ListOptions) (watch.Interface, error) {
	return t.WatchWithContext(context.Background(), opts)
}

func (t *listTeller) ListWithContext(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	var list runtime.Object
	if err := untilAnswered(ctx, func() (err error) {
		list, err = t.ListerWatcherWithContext.ListWithContext(ctx, opts)
		return err
	}, t.failed); err != nil {
		return nil, err
	}
	if of, err := meta.ListAccessor(list); err == nil {
		t.tell(of.GetResourceVersion())
	}
	return list, nil
}

func (t *listTeller) WatchWithContext(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	var w watch.Interface
	err := untilAnswered(ctx, func() (err error) {
		w, err = t.ListerWatcherWithContext.WatchWithContext(ctx, opts)
		return err
	}, t.failed)
	if err != nil || opts.SendInitialEvents == nil || !*opts.SendInitialEvents {
		return w, err
	}
	told := &toldWatch{Interface: w, tell: t.tell, events: make(chan watch.Event), stopped: make(chan struct{})}
	go told.run()
	return told, nil
}

// toldWatch is a watch that begins with a list. The goroutine ends when the
// watch does, which Stop sees to.
type toldWatch struct {
	watch.Interface
	tell    func(version string)
	events  chan watch.Event
	once    sync.Once
	stopped chan struct{}
}

func (w *toldWatch) ResultChan() <-chan watch.Event { return w.events }

func (w *toldWatch) Stop() {
	w.once.Do(func() { close(w.stopped) })
	w.Interface.Stop()
}

func (w *toldWatch) run() {
	defer close(w.events)
	for event := range w.Interface.ResultChan() {
		if event.Type == watch.Bookmark {
			if of, err := meta.Accessor(event.Object); err == nil && of.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
				w.tell(of.GetResourceVersion())
			}
		}
		select {
		case w.events <- event:
		case <-w.stopped:
			return
		}
	}
}
