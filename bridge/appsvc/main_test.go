package appsvc_test

import (
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// cluster is shared by all tests: each has a namespace of its own.
var cluster kubesuite.Cluster

func TestMain(m *testing.M) { suite.Main(m, cluster.Stop) }

// place is a namespace of the cluster with a bridge and the service on its cache.
type place struct {
	*testenv.Cluster
	*world

	namespace string
	bridge    *bridge.Bridge
}

var namespaces atomic.Int64

func newNamespace(t *testing.T, c *testenv.Cluster) string {
	t.Helper()
	namespace := "ns-" + strconv.FormatInt(namespaces.Add(1), 10)
	if err := c.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	return namespace
}

// newPlace makes a place.
func newPlace(t *testing.T, change ...func(*setup)) *place {
	t.Helper()
	c := cluster.Get(t)
	p := &place{Cluster: c, namespace: newNamespace(t, c)}
	server := suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	p.bridge = startBridge(t, server.ClientURL(), c, p.namespace)
	p.world = serve(t, func(s *setup) {
		s.url, s.cache, s.kube = server.ClientURL(), p.bridge, admin(c)
		s.cfg.Namespaces, s.cfg.Deploy.Namespace = []string{p.namespace}, p.namespace
		for _, c := range change {
			c(s)
		}
	})
	return p
}

// admin reaches the API server as an administrator and as fast as it can.
func admin(c *testenv.Cluster) *rest.Config {
	cfg := rest.CopyConfig(c.Config)
	cfg.QPS = -1
	return cfg
}

// startBridge runs a bridge until the end of the test, and waits until its cache
// can be read.
func startBridge(t *testing.T, url string, c *testenv.Cluster, namespace string) *bridge.Bridge {
	t.Helper()
	nc, err := nats.Connect(url, append(natsconn.Options("bridge", zap.NewNop()), nats.Timeout(patience))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	b, err := bridge.New(bridge.Config{
		ClusterName: clusterName, Namespaces: []string{namespace},
		Prefix: subjects.DefaultPrefix, Stream: subjects.DefaultStream, Bucket: subjects.DefaultBucket,
		StreamReplicas: 1, Encoding: bridge.EncodingJSON, WatchBufferSize: 100, PendingBytes: 64 << 20,
		FlushTimeout: patience, MaxDelay: patience,
	}, admin(c), nc, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	background(t, b.Run)
	soon(t, "the bridge is ready", b.Ready)
	return b
}

// knativeService reads a Knative Service past the cache; nil when there is none.
func (p *place) knativeService(name string) *servingv1.Service {
	p.t.Helper()
	svc := &servingv1.Service{}
	err := p.Client.Get(p.t.Context(), client.ObjectKey{Namespace: p.namespace, Name: name}, svc)
	if client.IgnoreNotFound(err) != nil {
		p.t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return svc
}

// present is knativeService for one that has to be there.
func (p *place) present(name string) *servingv1.Service {
	p.t.Helper()
	svc := p.knativeService(name)
	if svc == nil {
		p.t.Fatalf("there is no Knative Service %s", name)
	}
	return svc
}

// untouched checks that an object is what it was.
func (p *place) untouched(was *servingv1.Service) {
	p.t.Helper()
	now := p.knativeService(was.Name)
	switch {
	case now == nil:
		p.t.Errorf("Knative Service %s is gone", was.Name)
	case now.UID != was.UID || now.ResourceVersion != was.ResourceVersion || now.DeletionTimestamp != nil:
		p.t.Errorf("Knative Service %s was changed: %v", was.Name, now)
	}
}

// app is the description of an app in the place.
func (p *place) app(id subjects.AppID) testenv.App {
	return testenv.App{Project: id.Project, Domain: id.Domain, Name: id.Name, Org: "acme", Namespace: p.namespace}
}

// create makes the Knative Service of an app as somebody else would, and waits
// until the cache shows it.
func (p *place) create(a testenv.App) *servingv1.Service {
	p.t.Helper()
	svc, err := p.Create(p.t.Context(), a)
	if err != nil {
		p.t.Fatal(err)
	}
	p.shows(a.ID(), svc)
	return svc
}

// shows waits until the cache shows an object as it is.
func (p *place) shows(id subjects.AppID, want *servingv1.Service) {
	p.t.Helper()
	soon(p.t, "the cache shows "+want.Name+"@"+want.ResourceVersion, func() error {
		entry, ok := p.bridge.App(id)
		if !ok || entry.Service.UID != want.UID || entry.Service.ResourceVersion != want.ResourceVersion {
			return errNotYet
		}
		return nil
	})
}

func (p *place) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// serviceFrom is the part of a Knative Service that a cache holds.
func serviceFrom(t testing.TB, from any) *kservice.Service {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(from)
	if err != nil {
		t.Fatal(err)
	}
	svc := &kservice.Service{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, svc); err != nil {
		t.Fatal(err)
	}
	return svc
}

var _ appsvc.Cache = (*bridge.Bridge)(nil)
