package testenv_test

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// proxied is a client of a cluster through a proxy.
type proxied struct {
	t       *testing.T
	cluster *testenv.Cluster
	proxy   *testenv.APIProxy
	ns      string
	apps    dynamic.ResourceInterface // of ns
}

func startAPIProxy(t *testing.T, opts testenv.APIProxyOptions) *proxied {
	t.Helper()
	c := shared.Get(t)
	p := must[*testenv.APIProxy](t)(c.APIProxy(opts))
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	client := must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(p.Config()))
	for _, resource := range []string{"services", "revisions"} { // refused while their storage comes up
		if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
			_, err := client.Resource(servingv1.SchemeGroupVersion.WithResource(resource)).List(ctx, metav1.ListOptions{})
			return err == nil, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	ns := namespace(t, c)
	return &proxied{t, c, p, ns, client.Resource(servingv1.SchemeGroupVersion.WithResource("services")).Namespace(ns)}
}

func (p *proxied) watch(opts metav1.ListOptions) watch.Interface {
	p.t.Helper()
	opts.AllowWatchBookmarks = true
	w := must[watch.Interface](p.t)(p.apps.Watch(p.t.Context(), opts))
	p.t.Cleanup(w.Stop)
	return w
}

func (p *proxied) create(name string) testenv.App {
	p.t.Helper()
	app := testenv.App{Project: "p", Domain: "d", Name: name, Namespace: p.ns}
	must[*servingv1.Service](p.t)(p.cluster.Create(p.t.Context(), app))
	return app
}

// progress reports whether e is one of the bookmarks that the API server sends now and then. The
// bookmark that ends a list is none of them.
func progress(e watch.Event) bool {
	if e.Type != watch.Bookmark {
		return false
	}
	o, ok := e.Object.(*unstructured.Unstructured)
	return ok && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true"
}

// next is the next event but for progress: its type and the object's name.
func (p *proxied) next(w watch.Interface) string {
	p.t.Helper()
	deadline := time.After(5 * time.Minute)
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				p.t.Fatal("the watch ended")
			}
			if progress(e) {
				continue
			}
			o, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				p.t.Fatalf("got %v", e)
			}
			return string(e.Type) + " " + o.GetName()
		case <-deadline:
			p.t.Fatal("no event")
			return ""
		}
	}
}

// silent checks that nothing but progress came that would have come before what was awaited.
func (p *proxied) silent(w watch.Interface) {
	p.t.Helper()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if ok && progress(e) {
				continue
			}
			p.t.Errorf("got %v (%v) from a watch that should be mute", e, ok)
			return
		default:
			return
		}
	}
}

func (p *proxied) expect(w watch.Interface, want ...string) {
	p.t.Helper()
	for _, want := range want {
		if got := p.next(w); got != want {
			p.t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestAPIProxy(t *testing.T) {
	t.Parallel()
	list := metav1.ListOptions{SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	p := startAPIProxy(t, testenv.APIProxyOptions{})
	first := p.create("first")
	name := first.Service().Name

	t.Run("swallow", func(t *testing.T) {
		w := p.watch(list)
		p.expect(w, "ADDED "+name, "BOOKMARK ")
		p.proxy.SwallowEvents(1, func(kind, _, eventType string) bool { return kind == "Service" && eventType == "ADDED" })
		swallowed := p.create("swallowed")
		seen := p.create("seen")
		p.expect(w, "ADDED "+seen.Service().Name)
		got := p.proxy.Swallowed()
		if len(got) != 1 || got[0].Name != swallowed.Service().Name || got[0].UID == "" || got[0].Namespace == "" || got[0].ResourceVersion == "" {
			t.Errorf("swallowed %v, want the event of %s", got, swallowed.ID())
		}
	})
	t.Run("freeze", func(t *testing.T) {
		version := must[*unstructured.UnstructuredList](t)(p.apps.List(t.Context(), metav1.ListOptions{})).GetResourceVersion()
		old := p.watch(metav1.ListOptions{ResourceVersion: version})
		p.proxy.FreezeWatches()
		during := p.watch(metav1.ListOptions{ResourceVersion: version})
		app := p.create("unseen")
		p.proxy.Heal()
		p.expect(p.watch(metav1.ListOptions{ResourceVersion: version}), "ADDED "+app.Service().Name)
		p.silent(old)
		p.silent(during)
		if got := p.proxy.Watches(); got < 3 {
			t.Errorf("%d watches are open, want the frozen ones too", got)
		}
	})
	t.Run("no end of a list", func(t *testing.T) {
		p.proxy.DropEndBookmark()
		defer p.proxy.Heal()
		w := p.watch(list)
		for range 4 {
			p.next(w)
		}
		app := p.create("later")
		p.expect(w, "ADDED "+app.Service().Name)
	})
	t.Run("stale", func(t *testing.T) {
		if err := p.proxy.ServeStale(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer p.proxy.Heal()
		before := must[*unstructured.UnstructuredList](t)(p.apps.List(t.Context(), metav1.ListOptions{ResourceVersion: "0", LabelSelector: testenv.Managed}))
		p.create("fresh")
		stale := must[*unstructured.UnstructuredList](t)(p.apps.List(t.Context(), metav1.ListOptions{ResourceVersion: "0", LabelSelector: testenv.Managed}))
		if len(stale.Items) != len(before.Items) || stale.GetResourceVersion() != before.GetResourceVersion() || len(stale.Items) == 0 {
			t.Errorf("%d objects at %s, want %d at %s", len(stale.Items), stale.GetResourceVersion(), len(before.Items), before.GetResourceVersion())
		}
		fresh := must[*unstructured.UnstructuredList](t)(p.apps.List(t.Context(), metav1.ListOptions{}))
		if got, want := len(fresh.Items), len(before.Items)+1; got != want {
			t.Errorf("a consistent list has %d objects, want %d", got, want)
		}
		if _, err := p.apps.List(t.Context(), metav1.ListOptions{ResourceVersion: fresh.GetResourceVersion()}); !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
			t.Errorf("got %v for a list at a later version", err)
		}
		at := list
		at.ResourceVersion = before.GetResourceVersion()
		w := p.watch(at)
		for range before.Items {
			p.next(w)
		}
		p.expect(w, "BOOKMARK ")
		p.silent(w)
	})
}

func TestAPIProxyHalfOpen(t *testing.T) {
	t.Parallel()
	p := startAPIProxy(t, testenv.APIProxyOptions{HTTP1: true})
	at := metav1.ListOptions{ResourceVersion: must[*unstructured.UnstructuredList](t)(p.apps.List(t.Context(), metav1.ListOptions{})).GetResourceVersion()}
	old := p.watch(at)
	p.proxy.HalfOpen()
	app := p.create("unseen")
	p.expect(p.watch(at), "ADDED "+app.Service().Name)
	p.silent(old)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	p.proxy.Heal()
	for open := true; open; {
		var e watch.Event
		select {
		case e, open = <-old.ResultChan():
			if open && !progress(e) {
				t.Errorf("a connection that was half open delivered %v", e)
			}
		case <-ctx.Done():
			t.Fatal("Heal does not close a connection that is half open")
		}
	}
}
