package pods_test

import (
	"strconv"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// cluster is shared by all tests: each has a namespace and a node of its own.
var cluster kubesuite.Cluster

func TestMain(m *testing.M) { suite.Main(m, cluster.Stop) }

// place is a namespace of a cluster with a node whose pods have their logs there.
type place struct {
	*testenv.Cluster
	*testenv.Kubelet
	t         testing.TB
	namespace string
}

var places atomic.Int64

// newPlace makes a place in the shared cluster.
func newPlace(t testing.TB) *place {
	t.Helper()
	return newPlaceIn(t, cluster.Get(t))
}

func newPlaceIn(t testing.TB, c *testenv.Cluster) *place {
	t.Helper()
	p := &place{Cluster: c, t: t, namespace: "logs-" + strconv.FormatInt(places.Add(1), 10)}
	if err := c.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}}); err != nil {
		t.Fatal(err)
	}
	p.Kubelet = p.node(p.namespace)
	return p
}

// node starts one more node.
func (p *place) node(name string) *testenv.Kubelet {
	p.t.Helper()
	kubelet, err := p.StartKubelet(p.t.Context(), name)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := kubelet.Close(); err != nil {
			p.t.Error(err)
		}
	})
	return kubelet
}

// app is an app of a place.
type app struct {
	place   *place
	id      subjects.AppID
	service string
}

// newApp creates the Knative Service of an app of the project shop.
func (p *place) newApp(name string) *app {
	p.t.Helper()
	return p.create(testenv.App{Project: "shop", Domain: "production", Name: name})
}

func (p *place) create(a testenv.App) *app {
	p.t.Helper()
	a.Namespace = p.namespace
	svc := a.Service()
	if err := p.Client.Create(p.t.Context(), svc); err != nil {
		p.t.Fatal(err)
	}
	return &app{place: p, id: a.ID(), service: svc.Name}
}

// run starts a replica of a revision.
func (a *app) run(revision string, change ...func(*testenv.PodOptions)) *testenv.Pod {
	a.place.t.Helper()
	return a.runOn(a.place.Kubelet, revision, change...)
}

func (a *app) runOn(kubelet *testenv.Kubelet, revision string, change ...func(*testenv.PodOptions)) *testenv.Pod {
	a.place.t.Helper()
	opts := testenv.PodOptions{Namespace: a.place.namespace, Service: a.service, Revision: a.service + "-" + revision}
	for _, c := range change {
		c(&opts)
	}
	pod, err := kubelet.RunPod(a.place.t.Context(), opts)
	if err != nil {
		a.place.t.Fatal(err)
	}
	return pod
}

// soon polls until check returns nil.
func soon(t testing.TB, what string, check func() error) {
	t.Helper()
	suite.Eventually(t, suite.Patience, what, check)
}
