package watch

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
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/kservice"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
)

// Connection is the state of the connection to the API server, by the outcomes of requests.
// client-go retries by itself while the API server is unavailable and does not report it; a watch
// that is missing makes no error at all.
type Connection struct {
	log     *zap.Logger
	metrics *Metrics
	Watches *Group // of the informers

	mu      sync.Mutex
	down    time.Time // since when requests fail; zero while they are answered
	why     string
	perPath map[string]*openWatch
}

type openWatch struct {
	open  int
	since time.Time // since when there is none; zero while there is one
}

// NewConnection makes a Connection that is not down.
func NewConnection(watches *Group, log *zap.Logger, m *Metrics) *Connection {
	return &Connection{log: log, metrics: m, Watches: watches, perPath: map[string]*openWatch{}}
}

// Trouble returns what is wrong with the connection, since when, and why; "" if nothing is.
func (c *Connection) Trouble() (what string, since time.Time, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.down.IsZero() {
		return "Kubernetes has not answered", c.down, c.why
	}
	for path, w := range c.perPath {
		if w.open == 0 && (since.IsZero() || w.since.Before(since)) {
			what, since, why = "there has been no watch on Kubernetes", w.since, path
		}
	}
	if kind, namespace, at, ok := c.Watches.Suspect(); ok && what == "" {
		return "a watch on Kubernetes was silent and has not shown anything", at, kind + "s in " + kubeapi.NamespaceText(namespace)
	}
	return what, since, why
}

// Cause is what is wrong with the connection and why, nil if nothing is.
func (c *Connection) Cause() *string {
	what, _, why := c.Trouble()
	if what == "" {
		return nil
	}
	return new(what + ": " + why)
}

// Answers reports whether the API server answers requests, as far as is known.
func (c *Connection) Answers() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down.IsZero()
}

// Disturbs reports whether the informer of a kind and a namespace may be behind: Kubernetes does
// not answer, or its watch is missing or was silent.
func (c *Connection) Disturbs(kind, namespace string) bool {
	parent := kservice.GroupVersion().Version
	if namespace != metav1.NamespaceAll {
		parent = "namespaces/" + namespace
	}
	path := "/" + parent + "/" + resourceOf(kind).Resource
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.down.IsZero() {
		return true
	}
	for of, w := range c.perPath {
		if w.open == 0 && strings.HasSuffix(of, path) {
			return true
		}
	}
	return c.Watches.Silent(kind, namespace)
}

// retried counts a failed list or watch that is tried again.
func (c *Connection) retried(error) { c.metrics.watchErrors.Inc() }

// restarted is the watch error handler of informers that events depend on.
func (c *Connection) restarted(ctx context.Context, r *toolscache.Reflector, err error) {
	toolscache.DefaultWatchErrorHandler(ctx, r, err)
	c.metrics.watchErrors.Inc()
}

// transport reports the outcomes of one HTTP transport to a connection.
type transport struct {
	http.RoundTripper
	conn *Connection
}

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if isWatch(req) {
		t.conn.Requested(req.URL.Path)
	}
	resp, err := t.RoundTripper.RoundTrip(req)
	givenUp := errors.Is(err, context.Canceled) || errors.Is(req.Context().Err(), context.Canceled)
	if cause := context.Cause(req.Context()); err != nil && errors.Is(cause, ErrNoProgress) {
		givenUp, err = false, cause // no data was received
	}
	if err == nil || !givenUp { // a cancelled request has no outcome; one that ran out of time failed
		t.conn.Note(err)
	}
	if err == nil && resp.StatusCode == http.StatusOK && isWatch(req) {
		t.conn.opened(req.URL.Path)
		resp.Body = &watchBody{resp.Body, sync.OnceFunc(func() { t.conn.closed(req.URL.Path) })}
	}
	return resp, err
}

func isWatch(req *http.Request) bool {
	w := req.URL.Query().Get("watch")
	return w == "true" || w == "1"
}

// watchBody is the body of a watch's response, which lasts as long as the watch.
type watchBody struct {
	io.ReadCloser
	closed func()
}

func (b *watchBody) Close() error {
	b.closed()
	return b.ReadCloser.Close()
}

// Requested notes the request of a watch. From then on it is missing while it is not open.
func (c *Connection) Requested(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.perPath[path] == nil {
		c.perPath[path] = &openWatch{since: time.Now()}
	}
}

func (c *Connection) opened(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.perPath[path]
	w.open++
	w.since = time.Time{}
	c.metrics.watches.Inc()
}

func (c *Connection) closed(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.perPath[path]
	if w.open--; w.open == 0 {
		w.since = time.Now()
	}
	c.metrics.watches.Dec()
}

// Note notes the outcome of a request; nil: it was answered.
func (c *Connection) Note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		if !c.down.IsZero() {
			c.log.Info("Kubernetes is available again")
		}
		c.down, c.why = time.Time{}, ""
		c.metrics.reachable.Set(1)
		return
	}
	if c.down.IsZero() {
		c.log.Warn("Kubernetes is unavailable; its changes are read once it is back", zap.Error(err))
		c.down = time.Now()
	}
	c.why = err.Error()
	c.metrics.errors.Inc()
	c.metrics.reachable.Set(0)
}
