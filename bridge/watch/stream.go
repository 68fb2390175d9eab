package watch

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// silentSteps is in how many steps silence is counted.
const silentSteps = 6

// stream is one open watch. Stop ends it and waits for its goroutine.
type stream struct {
	owner  *listerWatcher
	inner  watch.Interface
	cancel context.CancelCauseFunc // of the request
	events chan watch.Event

	// Of a watch that begins with a list: consistent if Relist wanted it.
	lists, consistent bool

	relist chan struct{} // closed by gone: end with 410 Gone
	gone   func()
	stop   chan struct{} // closed by Stop: end
	stopBy sync.Once
	ended  chan struct{} // closed once the goroutine has ended
}

func (l *listerWatcher) newStream(lists bool) *stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lists && l.began.IsZero() {
		l.began = time.Now()
	}
	relist := make(chan struct{})
	return &stream{
		owner: l, lists: lists, consistent: lists && l.relist, events: make(chan watch.Event),
		relist: relist, gone: sync.OnceFunc(func() { close(relist) }), stop: make(chan struct{}), ended: make(chan struct{}),
	}
}

// attach starts a stream. One that began before Relist was called ends at once.
func (l *listerWatcher) attach(s *stream) {
	l.mu.Lock()
	l.stream = s
	if l.relist && !s.consistent {
		s.gone()
	}
	l.mu.Unlock()
	go s.run()
}

func (l *listerWatcher) detach(s *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stream == s {
		l.stream = nil
	}
}

func (s *stream) ResultChan() <-chan watch.Event { return s.events }

func (s *stream) Stop() {
	s.stopBy.Do(func() { close(s.stop) })
	<-s.ended
}

// limit is how long it may be without a message.
func (s *stream) limit() time.Duration {
	if s.lists {
		return s.owner.group.limits.NoProgress
	}
	return s.owner.group.limits.NoBookmark
}

func (s *stream) run() {
	defer close(s.ended)
	defer close(s.events)
	defer s.owner.opts.Phase(PhaseInterrupted)
	defer s.owner.detach(s)
	defer s.cancel(nil)
	defer s.inner.Stop()
	list, bookmarks, resumed := initialList{under: s.lists}, false, s.lists
	silent, tick := 0, time.NewTicker(s.limit()/silentSteps)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-s.relist:
			s.send(failure(apierrors.NewResourceExpired("the informer has to list again")))
			return
		case event, ok := <-s.inner.ResultChan():
			if !ok {
				s.finish(list)
				return
			}
			s.owner.message()
			if list.progress(event) {
				silent = 0
			}
			ended := list.ended(event)
			switch {
			case ended:
				s.listed(event)
				silent = 0
				tick.Reset(s.owner.group.limits.NoBookmark / silentSteps)
			case event.Type == watch.Error:
				s.failed(event)
			case !resumed:
				resumed = true
				s.owner.opts.Phase(PhaseWatching)
			}
			bookmarks = bookmarks || !ended && event.Type == watch.Bookmark
			if !s.send(event) || ended && !s.mark(event) {
				return
			}
		case <-tick.C:
			if silent++; silent < silentSteps {
				continue
			}
			if list.under {
				s.send(failure(s.owner.abandon(list.String())))
			} else {
				s.owner.silent(bookmarks)
			}
			return // the reflector opens another one
		}
	}
}

// finish is for a watch that the API server has ended. One that never ends its list but itself,
// again and again, is no better than one that is silent.
func (s *stream) finish(list initialList) {
	s.owner.mu.Lock()
	began := s.owner.began
	s.owner.mu.Unlock()
	if list.under && time.Since(began) > s.owner.group.limits.NoProgress {
		s.send(failure(s.owner.abandon(list.String() + ", and the watch has ended")))
	}
}

// listed announces the list that the stream began with.
func (s *stream) listed(end watch.Event) {
	l := s.owner
	l.mu.Lock()
	l.began = time.Time{}
	if s.consistent {
		l.relist = false
	}
	l.mu.Unlock()
	if of, err := meta.Accessor(end.Object); err == nil {
		l.opts.Listed(of.GetResourceVersion())
	}
}

// mark sends the mark of the list that the stream began with.
func (s *stream) mark(end watch.Event) bool {
	of, err := meta.Accessor(end.Object)
	if s.owner.opts.Mark == nil || err != nil {
		return true
	}
	return s.send(watch.Event{Type: watch.Deleted, Object: s.owner.opts.Mark(of.GetResourceVersion())})
}

// failed looks at an error that ends the watch: after an expired version a list follows.
func (s *stream) failed(event watch.Event) {
	if err := apierrors.FromObject(event.Object); apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		s.owner.opts.Phase(PhaseListing)
	}
}

func (s *stream) send(event watch.Event) bool {
	select {
	case s.events <- event:
		return true
	case <-s.stop:
		return false
	}
}

func failure(err *apierrors.StatusError) watch.Event {
	return watch.Event{Type: watch.Error, Object: &err.ErrStatus}
}

// initialList is the progress of the list that a watch began with.
type initialList struct {
	under   bool // it has not ended
	past    bool // all its objects were received
	objects int
}

func (l *initialList) progress(event watch.Event) bool {
	switch {
	case !l.under:
		return true
	case event.Type == watch.Added && !l.past:
		l.objects++
		return true
	default:
		l.past = true
		return false
	}
}

func (l *initialList) ended(event watch.Event) bool {
	if !l.under || event.Type != watch.Bookmark {
		return false
	}
	of, err := meta.Accessor(event.Object)
	if err != nil || of.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
		return false
	}
	l.under = false
	return true
}

func (l *initialList) String() string {
	return fmt.Sprintf("the bookmark that ends the list has not come after %d objects", l.objects)
}
