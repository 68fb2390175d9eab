package watch_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	toolscache "k8s.io/client-go/tools/cache"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// waitLimit bounds every wait. Nothing is expected to come near it.
const waitLimit = suite.Patience

var (
	cluster    kubesuite.Cluster
	namespaces atomic.Int64
)

func TestMain(m *testing.M) { suite.Main(m, cluster.Stop) }

// rig is a namespace of a cluster behind a proxy, and a group of informers.
type rig struct {
	*testenv.Cluster
	t         *testing.T
	proxy     *testenv.APIProxy
	namespace string
	group     *watch.Group
	logs      *observer.ObservedLogs
}

func newRig(t *testing.T, limits watch.Limits, opts testenv.APIProxyOptions) *rig {
	t.Helper()
	r := &rig{Cluster: cluster.Get(t), t: t, namespace: "ns-" + strconv.FormatInt(namespaces.Add(1), 10)}
	if err := r.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.namespace}}); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.proxy, err = r.APIProxy(opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	core, logs := observer.New(zap.InfoLevel)
	r.group, r.logs = watch.NewGroup(limits, zap.New(core)), logs
	t.Cleanup(func() {
		if t.Failed() {
			for _, e := range logs.All() {
				t.Logf("%s %s %v", e.Level, e.Message, e.ContextMap())
			}
		}
	})
	return r
}

func (r *rig) create(name string) *servingv1.Service {
	r.t.Helper()
	svc, err := r.Create(r.t.Context(), testenv.App{Project: "p", Domain: "d", Name: name, Namespace: r.namespace, ObjectName: name})
	if err != nil {
		r.t.Fatal(err)
	}
	return svc
}

// informer is a running informer, and what it has shown.
type informer struct {
	t      *testing.T
	shared toolscache.SharedIndexInformer

	mu     sync.Mutex
	shown  []string // add a, update a, delete a, missed a (a delete that was not seen)
	listed []string // versions
}

// start runs an informer of Knative Services until the test ends.
func (r *rig) start() *informer {
	r.t.Helper()
	cfg := r.proxy.Config()
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return watch.Transport{RoundTripper: rt} })
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	services := client.Resource(servingv1.SchemeGroupVersion.WithResource("services")).Namespace(r.namespace)
	return startInformer(r.t, r.group, r.namespace, &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return services.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
			return services.Watch(ctx, opts)
		},
	})
}

func startInformer(t *testing.T, group *watch.Group, namespace string, lw toolscache.ListerWatcher) *informer {
	t.Helper()
	i := &informer{t: t}
	example := &unstructured.Unstructured{}
	example.SetGroupVersionKind(servingv1.SchemeGroupVersion.WithKind("Service"))
	i.shared = toolscache.NewSharedIndexInformer(group.Add(lw, watch.Options{
		Kind: "Service", Namespace: namespace,
		Listed: func(version string) {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.listed = append(i.listed, version)
		},
	}), example, 0, toolscache.Indexers{})
	if _, err := i.shared.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { i.show("add", obj) },
		UpdateFunc: func(old, obj any) {
			if version(old) != version(obj) {
				i.show("update", obj)
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				i.show("missed", gone.Obj)
				return
			}
			i.show("delete", obj)
		},
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { i.shared.RunWithContext(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return i
}

func version(obj any) string {
	o, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return fmt.Sprintf("%T", obj)
	}
	return o.GetResourceVersion()
}

func (i *informer) show(what string, obj any) {
	o, ok := obj.(*unstructured.Unstructured)
	if !ok {
		i.t.Errorf("the informer shows %T", obj)
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.shown = append(i.shown, what+" "+o.GetName())
}

func (i *informer) events() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.shown)
}

// lists is how many lists were announced.
func (i *informer) lists() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.listed)
}

func (i *informer) waitSynced() {
	i.t.Helper()
	suite.Eventually(i.t, waitLimit, "the informer is in sync", func() error {
		if !i.shared.HasSynced() {
			return errors.New("it is not")
		}
		return nil
	})
}

// expect waits until the informer has shown exactly this, in any order.
func (i *informer) expect(want ...string) {
	i.t.Helper()
	slices.Sort(want)
	suite.Eventually(i.t, waitLimit, "what the informer shows", func() error {
		got := i.events()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
}

// metric is the value of the group's metric with a label of that value.
func metric(t *testing.T, g *watch.Group, name, label string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(g)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetValue() == label {
					return m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
	}
	t.Fatalf("no metric %s of %s", name, label)
	return 0
}

// reopened is how many lists and watches began again for a cause.
func reopened(t *testing.T, g *watch.Group, cause string) int {
	t.Helper()
	return int(metric(t, g, "appbridge_watch_reopened_total", cause))
}

func messageAge(t *testing.T, g *watch.Group, namespace string) time.Duration {
	t.Helper()
	return time.Duration(float64(time.Second) * metric(t, g, "appbridge_watch_last_message_age_seconds", namespace))
}
