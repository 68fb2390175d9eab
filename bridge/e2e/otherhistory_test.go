package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// link is the way of a bridge to the API server.
type link struct {
	http.RoundTripper
	watches atomic.Int64 // that were opened

	mu   sync.Mutex
	cut  bool
	held chan struct{} // lists of the cluster's version wait until it is closed; nil: they do not
}

func (l *link) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
}

// hold keeps back the lists of the cluster's version until release.
func (l *link) hold() (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := make(chan struct{})
	l.held = held
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held = nil
		close(held)
	})
}

func (l *link) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	cut, held := l.cut, l.held
	l.mu.Unlock()
	if cut {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	if path.Base(r.URL.Path) == "services" && r.URL.Query().Get("limit") == "1" && held != nil {
		select {
		case <-held:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	resp, err := l.RoundTripper.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusOK && r.URL.Query().Get("watch") != "" {
		l.watches.Add(1)
	}
	return resp, err
}

// versionOf is the version of a cluster's namespaces.
func versionOf(ctx context.Context, c *testenv.Cluster) (int64, error) {
	list := &corev1.NamespaceList{}
	if err := c.Client.List(ctx, list, client.Limit(1)); err != nil {
		return 0, err
	}
	return strconv.ParseInt(list.ResourceVersion, 10, 64)
}

// grow writes to a cluster until it is past a version.
func (w *world) grow(c *testenv.Cluster, past int64) {
	w.t.Helper()
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	for i := 0; ; i++ {
		if now := must[int64](w.t)(versionOf(w.t.Context(), c)); now > past {
			return
		}
		for j := range 50 {
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d-%d"}}}`, i, j))
			must[any](w.t)(nil, c.Client.Patch(w.t.Context(), space, patch))
		}
	}
}

// etcd comes back without its last writes, as after a power failure, and the cluster has grown past
// them before the bridge reads its version: the app is published as the cluster has it.
func rewound(w *world, early bool) {
	t, ctx := w.t, w.t.Context()
	svc := w.create(w.app("one"))
	other := w.create(w.app("other"))
	backup := must[*testenv.EtcdCopy](t)(w.SaveEtcd(ctx))

	l := &link{}
	kube := rest.CopyConfig(w.Config)
	kube.QPS = -1
	kube.Wrap(func(rt http.RoundTripper) http.RoundTripper { l.RoundTripper = rt; return l })
	cfg := w.audited()
	r := w.launch(cfg, kube)
	r.waitReady()
	began := must[int64](t)(versionOf(ctx, w.Cluster))
	w.grow(w.Cluster, began+500)
	must[*servingv1.Service](t)(w.Failed(ctx, svc, "Broken", "etcd loses this"))
	w.waitFor(0, "created one", "created other", "updated one")
	if early {
		must[any](t)(nil, w.Client.Delete(ctx, other))
		w.create(w.app("late"))
		w.waitFor(0, "created one", "created other", "updated one", "deleted other", "created late")
	}
	last := must[int64](t)(versionOf(ctx, w.Cluster))
	r.waitReady()

	release := l.hold()
	defer release()
	l.set(true)
	must[any](t)(nil, w.RestoreEtcd(ctx, backup))
	if early {
		w.grow(w.Cluster, last)
		must[any](t)(nil, w.RestartAPIServer(ctx))
	}
	before := l.watches.Load()
	l.set(false)
	eventually(t, "the watches go on", func() error {
		if now := l.watches.Load() - before; now < 2 {
			return fmt.Errorf("%d do", now)
		}
		return nil
	})
	if now := must[int64](t)(versionOf(ctx, w.Cluster)); now >= last && !early {
		t.Fatalf("the restored cluster is at %d, it was at %d: this test tests nothing", now, last)
	}
	w.grow(w.Cluster, last)
	release()

	r.completes(3)
	r.waitReady()
	if err := w.bucketDrift(cfg.App, w.events(0)); err != nil {
		t.Errorf("ready although %v", err)
	}
}

// moved is the way to a cluster, and from some time on to another one at the same address.
type moved struct {
	here, there http.RoundTripper
	to          *url.URL
	until       chan struct{} // closed: what was requested of the first has ended
}

func (m *moved) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-m.until:
		r = r.Clone(r.Context())
		r.URL.Scheme, r.URL.Host, r.Host = m.to.Scheme, m.to.Host, m.to.Host
		return m.there.RoundTrip(r)
	default:
	}
	ctx, cancel := context.WithCancel(r.Context())
	go func() {
		defer cancel()
		select {
		case <-m.until:
		case <-ctx.Done():
		}
	}()
	return m.here.RoundTrip(r.WithContext(ctx))
}

// The address of the API server leads to another cluster while the bridge runs, as after a failover
// by name. That has a higher version, so it does not look like a history that stepped back. The
// bridge ends, names both clusters and publishes nothing of the other.
func otherAtTheSameAddress(w *world, other *testenv.Cluster) {
	t, ctx := w.t, w.t.Context()
	there := must[http.RoundTripper](t)(rest.TransportFor(other.Config))
	m := &moved{there: there, to: must[*url.URL](t)(url.Parse(other.Config.Host)), until: make(chan struct{})}
	move := sync.OnceFunc(func() { close(m.until) })
	defer move()
	kube := rest.CopyConfig(w.Config)
	kube.QPS = -1
	kube.Wrap(func(rt http.RoundTripper) http.RoundTripper { m.here = rt; return m })
	r := w.launch(w.audited(), kube)
	r.waitReady()
	w.create(w.app("one"))
	w.create(w.app("two"))
	want := []string{"created one", "created two"}
	w.waitFor(0, want...)

	w.grow(other, must[int64](t)(versionOf(ctx, w.Cluster))+500)
	must[any](t)(nil, other.RestartAPIServer(ctx)) // it knows no older version
	must[*servingv1.Service](t)(other.Create(ctx, w.app("three")))
	move()
	var ended error
	eventually(t, "the bridge ends", func() error {
		select {
		case ended = <-r.done:
			r.done <- ended
			return nil
		default:
		}
		if events := w.events(0); len(events) > len(want) {
			return errors.Join(fmt.Errorf("%w: it publishes %v", errFatal, events[len(want):]), r.bridge.Ready())
		}
		return errors.New("it does not")
	})
	uid := func(c *testenv.Cluster) string {
		system := &corev1.Namespace{}
		must[any](t)(nil, c.Client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system))
		return string(system.UID)
	}
	says(t, ended, uid(w.Cluster), uid(other))
	var got []string
	for _, e := range w.events(0) {
		got = append(got, fmt.Sprintf("%s %s", e.kind, e.id.Name))
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("published %s, want %s", strings.Join(got, ", "), want)
	}
}
