package watch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// listerWatcher is what one informer lists and watches through.
//
// Requests that only fail because the API server is unavailable it makes again itself: the
// reflector's own pauses grow to a minute, and states that come and go in them would never be seen.
type listerWatcher struct {
	inner toolscache.ListerWatcherWithContext
	group *Group
	opts  Options
	log   *zap.Logger

	mu     sync.Mutex
	relist bool                    // the next list has to be consistent
	paging bool                    // the pages of a consistent list are being read
	marks  bool                    // a plain list is to be marked
	cancel context.CancelCauseFunc // ends the plain list that is under way
	stream *stream                 // the watch that is open
	began  time.Time               // when a list was first tried; zero once it is there

	last    time.Time // of the last message, or of the first request
	suspect time.Time // since when the watch is; zero while it is not
	quiet   bool      // it was opened again because of silence, and has had no message since
}

// listAgain ends the informer's watch, or the list that is under way, and has the next list be
// consistent. It does nothing while such a list is pending.
func (l *listerWatcher) listAgain(cause string) {
	l.opts.Phase(PhaseListing)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.relist {
		return
	}
	l.relist = true
	l.group.reopened.WithLabelValues(cause).Inc()
	l.log.Warn(msgRelist, zap.String("cause", cause))
	if l.cancel != nil {
		l.cancel(errRelist)
	}
	if l.stream != nil {
		l.stream.gone()
	}
}

// List makes a plain list.
func (l *listerWatcher) List(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	l.requested()
	l.opts.Phase(PhaseListing)
	var list runtime.Object
	err := untilAnswered(ctx, func() (err error) {
		list, err = l.list(ctx, opts)
		return err
	}, l.opts.Retried)
	if err != nil {
		return nil, err
	}
	l.message()
	if of, err := meta.ListAccessor(list); err == nil {
		l.opts.Listed(of.GetResourceVersion())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marks = l.opts.Mark != nil
	return list, nil
}

// mark is a watch of which the mark of the plain list before comes and nothing else, nil if it has
// come. The watch itself follows: the list takes effect also where no watch is to be had.
func (l *listerWatcher) mark(version string) watch.Interface {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.marks {
		return nil
	}
	l.marks = false
	events := make(chan watch.Event, 1)
	events <- watch.Event{Type: watch.Deleted, Object: l.opts.Mark(version)}
	close(events)
	return watch.NewProxyWatcher(events)
}

// list is one try, which ends when nothing of the answer comes for too long.
func (l *listerWatcher) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	consistent, err := l.begin(cancel, opts.Continue != "")
	if err != nil {
		return nil, err
	}
	defer l.end()
	if opts.Continue == "" && (consistent || opts.ResourceVersion == "0" && l.group.listsPlainly()) {
		opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
	}
	bytes := &atomic.Int64{}
	stop := l.group.await(bytes, cancel)
	list, err := l.inner.ListWithContext(context.WithValue(ctx, progressKey{}, bytes), opts)
	stop()
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, ErrNoProgress) || errors.Is(cause, errRelist) {
			err = fmt.Errorf("list: %w", cause)
			if errors.Is(cause, ErrNoProgress) {
				l.group.reopened.WithLabelValues(CauseInitialList).Inc()
				l.log.Warn(msgListAgain, zap.Duration("after", l.group.limits.NoProgress), zap.Error(err))
			}
		}
		return nil, err
	}
	if of, err := meta.ListAccessor(list); err == nil && of.GetContinue() == "" {
		if err := l.group.confirmed(ctx); err != nil {
			return nil, err
		}
		l.satisfied(consistent)
	}
	return list, nil
}

// begin notes how to end the request of a list, and reports whether the list is to be consistent. A
// list that began before Relist was called has expired: its pager lists again from the start.
func (l *listerWatcher) begin(cancel context.CancelCauseFunc, page bool) (consistent bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !page {
		l.paging = l.relist
	} else if l.relist && !l.paging {
		return false, apierrors.NewResourceExpired(errRelist.Error())
	}
	l.cancel = cancel
	if l.began.IsZero() {
		l.began = time.Now()
	}
	return l.relist, nil
}

func (l *listerWatcher) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel = nil
}

func (l *listerWatcher) satisfied(consistent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began = time.Time{} // also where a list by watch was refused
	if consistent {
		l.relist, l.paging = false, false
	}
}

// errPlainList has the reflector fall back to a plain list.
var errPlainList = errors.New("this API server did not end a list by watch lately: plain lists are used")

// Watch opens a watch, which may begin with a list.
func (l *listerWatcher) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	lists := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	if lists {
		l.opts.Phase(PhaseListing)
	} else if mark := l.mark(opts.ResourceVersion); mark != nil {
		return mark, nil
	}
	if lists && l.group.listsPlainly() {
		return nil, errPlainList
	}
	l.requested()
	var s *stream
	err := untilAnswered(ctx, func() (err error) {
		s, err = l.open(ctx, opts, lists)
		return err
	}, l.opts.Retried)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// open is one try. It ends if the server does not begin to answer within the limit.
func (l *listerWatcher) open(ctx context.Context, opts metav1.ListOptions, lists bool) (*stream, error) {
	s := l.newStream(lists)
	if s.consistent {
		opts.ResourceVersion = ""
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := every(s.limit(), func() bool { return false }, cancel)
	w, err := l.inner.WatchWithContext(ctx, opts)
	stop()
	if errors.Is(context.Cause(ctx), ErrNoProgress) {
		if err == nil {
			w.Stop()
		}
		if lists {
			return nil, l.abandon("the watch that begins with the list was not answered")
		}
		l.silent(false)
		return nil, fmt.Errorf("watch: no answer: %w", ErrNoProgress)
	}
	if err == nil {
		if err = l.group.confirmed(ctx); err != nil {
			w.Stop()
		}
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	s.inner, s.cancel = w, cancel
	l.attach(s)
	return s, nil
}

// abandon ends a list by watch; the error makes the reflector list plainly.
func (l *listerWatcher) abandon(why string) *apierrors.StatusError {
	l.group.unfinished()
	l.mu.Lock()
	l.began = time.Time{}
	l.mu.Unlock()
	l.group.reopened.WithLabelValues(CauseInitialList).Inc()
	l.log.Warn(msgPlainList, zap.Duration("after", l.group.limits.NoProgress), zap.String("why", why))
	// One that client-go does nothing special about. It is an answer, so that it is not tried again.
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: "NoProgress", Message: "list by watch: " + why,
	}}
}

// silent notes that a watch had no message for too long. It is logged once until there is a message
// again. A watch that had bookmarks is suspect.
func (l *listerWatcher) silent(bookmarks bool) {
	l.mu.Lock()
	first := !l.quiet
	l.quiet = true
	if bookmarks && l.suspect.IsZero() {
		l.suspect = time.Now()
	}
	last := l.last
	l.mu.Unlock()
	l.group.reopened.WithLabelValues(CauseNoBookmark).Inc()
	if first {
		l.log.Warn(msgReopen, zap.Duration("limit", l.group.limits.NoBookmark), zap.Time("lastMessage", last), zap.Bool("hadBookmarks", bookmarks))
	}
}

// requested starts the age of the last message at the informer's first request.
func (l *listerWatcher) requested() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.IsZero() {
		l.last = time.Now()
	}
}

func (l *listerWatcher) message() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last, l.suspect, l.quiet = time.Now(), time.Time{}, false
}

// state is what the group reads of an informer.
type state struct {
	last, suspect time.Time
	listing       bool // a list is under way or wanted
}

func (l *listerWatcher) state() state {
	l.mu.Lock()
	defer l.mu.Unlock()
	return state{l.last, l.suspect, l.relist || l.cancel != nil || !l.began.IsZero()}
}
