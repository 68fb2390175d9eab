package watch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
)

// Causes of a list or a watch that begins again.
const (
	CauseInitialList = "initial_list" // a list made no progress
	CauseNoBookmark  = "no_bookmark"  // a watch was silent
	CauseAudit       = "audit"        // the audit found the informer behind the cluster
	CauseBehind      = "behind"       // a session's start found it behind
)

// Log messages.
const (
	msgPlainList = "a list made no progress; a plain list follows"
	msgListAgain = "a list made no progress; it is requested again"
	msgReopen    = "a watch had no bookmark for too long; it is opened again"
	msgRelist    = "an informer lists again"
)

// Limits are how long a request may be without progress. The zero value of each is its default.
type Limits struct {
	// NoProgress is how long a list may make no progress: 30 s.
	NoProgress time.Duration
	// NoBookmark is how long a watch may be without a message: 3 min. Below a second client-go
	// lists again in place of watching again.
	NoBookmark time.Duration
	// Remember is how long plain lists replace lists by watch that did not end: 10 min.
	Remember time.Duration
}

// Group is the informers' lists and watches at one API server. Its methods are safe for concurrent
// use. It is a prometheus.Collector.
type Group struct {
	limits Limits
	log    *zap.Logger

	reopened *prometheus.CounterVec
	age      *prometheus.Desc

	mu      sync.Mutex
	confirm func(context.Context) error // nil: nothing is to be confirmed
	members []*listerWatcher
	plain   time.Time // until when lists are plain
}

// NewGroup makes a Group without informers.
func NewGroup(limits Limits, log *zap.Logger) *Group {
	g := &Group{
		limits: Limits{
			NoProgress: cmp.Or(limits.NoProgress, 30*time.Second),
			NoBookmark: cmp.Or(limits.NoBookmark, 3*time.Minute),
			Remember:   cmp.Or(limits.Remember, 10*time.Minute),
		},
		log: log,
		reopened: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "appbridge_watch_reopened_total", Help: "Lists and watches on the Kubernetes API that began again because they showed nothing or too little, by cause.",
		}, []string{"cause"}),
		age: prometheus.NewDesc("appbridge_watch_last_message_age_seconds",
			"Age of the last message, event or bookmark, of each informer's watch on the Kubernetes API.", []string{"kind", "namespace"}, nil),
	}
	for _, cause := range []string{CauseInitialList, CauseNoBookmark, CauseAudit, CauseBehind} {
		g.reopened.WithLabelValues(cause)
	}
	return g
}

// Confirm has each list and each watch be confirmed before an informer uses it. With an error it
// fails as a request that was not answered.
func (g *Group) Confirm(confirm func(context.Context) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.confirm = confirm
}

func (g *Group) confirmed(ctx context.Context) error {
	g.mu.Lock()
	confirm := g.confirm
	g.mu.Unlock()
	if confirm == nil {
		return nil
	}
	return confirm(ctx)
}

// Limits are the group's limits, with defaults filled in.
func (g *Group) Limits() Limits { return g.limits }

// Options of one informer's ListerWatcher.
type Options struct {
	// Kind and Namespace name it; an empty namespace stands for all.
	Kind, Namespace string
	// Optional: nothing that is published depends on it. Suspect skips it.
	Optional bool
	// Listed, if set, is called with the version of each list before the informer uses it.
	Listed func(version string)
	// Phase, if set, is called when a list or a watch begins or ends. It is not called with PhaseWatching
	// after a list.
	Phase func(Phase)
	// Mark, if set, makes an object whose deletion the watch delivers behind each list.
	Mark func(version string) runtime.Object
	// Retried, if set, is called with each failure that is tried again.
	Retried func(error)
}

// Add puts an informer's ListerWatcher into the group and returns the one to use in its place.
func (g *Group) Add(lw toolscache.ListerWatcher, opts Options) *toolscache.ListWatch {
	if opts.Listed == nil {
		opts.Listed = func(string) {}
	}
	if opts.Phase == nil {
		opts.Phase = func(Phase) {}
	}
	if opts.Retried == nil {
		opts.Retried = func(error) {}
	}
	l := &listerWatcher{
		inner: toolscache.ToListerWatcherWithContext(lw), group: g, opts: opts,
		log: g.log.With(zap.String("kind", opts.Kind), zap.String("namespace", opts.Namespace)),
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members = append(g.members, l)
	return &toolscache.ListWatch{ListWithContextFunc: l.List, WatchFuncWithContext: l.Watch}
}

// Relist has the informers of a kind and namespace list again, consistently: they emit what they
// have missed. It does nothing while that is under way.
func (g *Group) Relist(kind, namespace, cause string) {
	for _, l := range g.of(kind, namespace) {
		l.listAgain(cause)
	}
}

// Suspect is an informer whose watch was silent for too long after it had delivered bookmarks, and
// since when; ok is false while there is none. It is suspect until the next message. Silence alone
// is not enough: an API server sends no bookmarks for a resource of which it has seen no change
// since its start.
func (g *Group) Suspect() (kind, namespace string, since time.Time, ok bool) {
	for _, l := range g.all() {
		if at := l.state().suspect; !l.opts.Optional && !at.IsZero() && (!ok || at.Before(since)) {
			kind, namespace, since, ok = l.opts.Kind, l.opts.Namespace, at, true
		}
	}
	return kind, namespace, since, ok
}

// Silent reports whether the watch of an informer of a kind and namespace is suspect.
func (g *Group) Silent(kind, namespace string) bool {
	return slices.ContainsFunc(g.of(kind, namespace), func(l *listerWatcher) bool { return !l.state().suspect.IsZero() })
}

// Listing reports whether an informer of a kind and namespace lists, or is to list.
func (g *Group) Listing(kind, namespace string) bool {
	return slices.ContainsFunc(g.of(kind, namespace), func(l *listerWatcher) bool { return l.state().listing })
}

func (g *Group) all() []*listerWatcher {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.members[:len(g.members):len(g.members)]
}

func (g *Group) of(kind, namespace string) []*listerWatcher {
	return slices.DeleteFunc(slices.Clone(g.all()), func(l *listerWatcher) bool {
		return l.opts.Kind != kind || l.opts.Namespace != namespace
	})
}

// unfinished notes that the API server did not end a list by watch.
func (g *Group) unfinished() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.plain = time.Now().Add(g.limits.Remember)
}

// listsPlainly reports whether lists by watch are not to be tried.
func (g *Group) listsPlainly() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Now().Before(g.plain)
}

// Describe implements prometheus.Collector.
func (g *Group) Describe(ch chan<- *prometheus.Desc) {
	g.reopened.Describe(ch)
	ch <- g.age
}

// Collect implements prometheus.Collector.
func (g *Group) Collect(ch chan<- prometheus.Metric) {
	g.reopened.Collect(ch)
	type name struct{ kind, namespace string }
	last := map[name]time.Time{}
	for _, l := range g.all() {
		of := name{l.opts.Kind, l.opts.Namespace}
		if at := l.state().last; !at.IsZero() && (last[of].IsZero() || at.Before(last[of])) {
			last[of] = at
		}
	}
	for of, at := range last {
		ch <- prometheus.MustNewConstMetric(g.age, prometheus.GaugeValue, time.Since(at).Seconds(), of.kind, of.namespace)
	}
}

// ErrNoProgress is the cause that ends a request without any progress.
var ErrNoProgress = errors.New("no progress")

// errRelist ends a list that began before the next one was wanted.
var errRelist = errors.New("another list is wanted")
