package bridge

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/watch"
)

// reachability watches the requests to the API server. client-go tries again
// by itself when it is away, and tells nobody; a watch that is not there makes
// no error at all.
type reachability struct {
	log     *zap.Logger
	metrics *metrics
	watches *watch.Group // of the informers

	mu      sync.Mutex
	away    time.Time // since when requests fail; zero while they are answered
	why     string
	perPath map[string]*openWatch
}

// openWatch is the state of one informer's watch.
type openWatch struct {
	open  int
	since time.Time // since when there is none; zero while there is one
}

func newReachability(log *zap.Logger, m *metrics) *reachability {
	return &reachability{log: log, metrics: m, watches: watch.NewGroup(watch.Limits{}, log), perPath: map[string]*openWatch{}}
}

// trouble says what is wrong with the connection to Kubernetes, since when,
// and why; what is empty when nothing is.
func (r *reachability) trouble() (what string, since time.Time, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.away.IsZero() {
		return "Kubernetes has not answered", r.away, r.why
	}
	for path, w := range r.perPath {
		if w.open == 0 && (since.IsZero() || w.since.Before(since)) {
			what, since, why = "there has been no watch on Kubernetes", w.since, path
		}
	}
	if what != "" {
		return what, since, why
	}
	if kind, namespace, at, ok := r.watches.Suspect(); ok {
		return "a watch on Kubernetes was silent and has not shown anything", at, kind + "s in " + namespaceText(namespace)
	}
	return "", time.Time{}, ""
}

// disturbs reports whether the informer of a kind and a namespace may be behind: Kubernetes does not
// answer, or its watch is missing or was silent.
func (r *reachability) disturbs(kind, namespace string) bool {
	path := "/" + kservice.GroupVersion().Version + "/" + strings.ToLower(kind) + "s"
	if namespace != metav1.NamespaceAll {
		path = "/namespaces/" + namespace + "/" + strings.ToLower(kind) + "s"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.away.IsZero() {
		return true
	}
	for of, w := range r.perPath {
		if w.open == 0 && strings.HasSuffix(of, path) {
			return true
		}
	}
	return r.watches.Silent(kind, namespace)
}

// transport is one HTTP transport whose outcomes a reachability hears of:
// each client makes its own.
type transport struct {
	http.RoundTripper
	seen *reachability
}

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if isWatch(req) {
		t.seen.asked(req.URL.Path)
	}
	resp, err := t.RoundTripper.RoundTrip(req)
	givenUp := errors.Is(err, context.Canceled) || errors.Is(req.Context().Err(), context.Canceled)
	if cause := context.Cause(req.Context()); err != nil && errors.Is(cause, watch.ErrNoProgress) {
		givenUp, err = false, cause // it was given up because nothing came
	}
	if err == nil || !givenUp { // a request that was given up on says nothing; one that ran out of time does
		t.seen.note(err)
	}
	if err == nil && resp.StatusCode == http.StatusOK && isWatch(req) {
		path := req.URL.Path
		t.seen.opened(path)
		resp.Body = &watchBody{ReadCloser: resp.Body, closed: func() { t.seen.closed(path) }}
	}
	return resp, err
}

func isWatch(req *http.Request) bool {
	w := req.URL.Query().Get("watch")
	return w == "true" || w == "1"
}

// watchBody is the body of a watch's answer, which lasts as long as the watch.
type watchBody struct {
	io.ReadCloser
	once   sync.Once
	closed func()
}

func (b *watchBody) Close() error {
	b.once.Do(b.closed)
	return b.ReadCloser.Close()
}

// asked notes that somebody wants a watch: from the first time on it counts as
// missing while there is none.
func (r *reachability) asked(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.perPath[path] == nil {
		r.perPath[path] = &openWatch{since: time.Now()}
	}
}

func (r *reachability) opened(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.perPath[path]
	w.open++
	w.since = time.Time{}
	r.metrics.watches.Inc()
}

func (r *reachability) closed(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.perPath[path]
	if w.open--; w.open == 0 {
		w.since = time.Now()
	}
	r.metrics.watches.Dec()
}

func (r *reachability) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		if !r.away.IsZero() {
			r.log.Info("Kubernetes answers again")
		}
		r.away, r.why = time.Time{}, ""
		r.metrics.kubeReachable.Set(1)
		return
	}
	if r.away.IsZero() {
		r.log.Warn("Kubernetes is away; its changes are seen once it is back", zap.Error(err))
		r.away = time.Now()
	}
	r.why = err.Error()
	r.metrics.kubeErrors.Inc()
	r.metrics.kubeReachable.Set(0)
}
