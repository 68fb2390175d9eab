// Package knative_test operates apps on Knative itself: its controllers and its webhook of the
// version in go.mod, on a real API server with a kube-controller-manager and kwok's nodes and pods.
// `appbridge serve` runs as users run it, and every request goes through NATS.
//
//	request ──► appbridge ──► Knative's webhook ──► etcd ──► Knative's controllers ──► etcd
//	                 ▲                                                                  │
//	                 └── informers ── stream ── audit ◄────── history of etcd ──────────┤
//
// A test of a scenario compares all that was published of its apps with all that etcd held of
// their Knative Services and Revisions, and of their pods where the bridges read them. `make knative-test` runs the package.
package knative_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/knative"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const (
	patience   = suite.Patience
	baseDomain = "apps.example.com"
	// clusterName is what kubesuite.World gives every bridge.
	clusterName = "test"
	// corpusAccount is the service account that an app of the corpus names.
	corpusAccount = "from-pod"
)

// shared is what the tests use that need nothing special, started by the first of them.
var shared struct { //nolint:gochecknoglobals // one Knative for all tests
	once sync.Once
	*world
	err error
}

// world is Knative, the bridges of one namespace, and what watches both.
type world struct {
	*kubesuite.World
	knative   *knative.Knative
	namespace string
	names     subjects.Subjects
	conn      *nats.Conn
	history   *testenv.History
	// conditions: the bridges run with --pod-conditions, and pods has the pods. Set before open.
	conditions bool
	pods       *testenv.History
	events     *reader
}

func TestMain(m *testing.M) {
	suite.Main(m, func() error {
		results.print(os.Stdout)
		if shared.world == nil {
			return nil
		}
		return errors.Join(shared.close(), shared.knative.Stop(), shared.Stop())
	})
}

// sharedWorld has a bridge that changes apps.
func sharedWorld(t *testing.T) *world {
	t.Helper()
	shared.once.Do(func() { shared.world, shared.err = startShared(context.Background()) }) // it outlives the test
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.world
}

func startShared(ctx context.Context) (*world, error) {
	base, err := kubesuite.StartWorld(ctx, testenv.Options{})
	if err != nil {
		return nil, err
	}
	w := &world{World: base, namespace: testenv.DefaultNamespace}
	settings := map[string]map[string]string{
		// Of the corpus. No test needs the network.
		"config-deployment": {"registries-skipping-tag-resolving": "dev.local,index.docker.io,ghcr.io"},
	}
	if w.knative, err = knative.Start(ctx, base.Cluster, knative.Options{Settings: settings}); err != nil {
		return nil, errors.Join(err, base.Stop())
	}
	err = w.open(ctx, func() error {
		_, err := w.serve(ctx, "--allowed-service-accounts", corpusAccount)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, w.knative.Stop(), base.Stop())
	}
	return w, nil
}

// beside is a world of another namespace on the same Knative, with a JetStream server of its own.
func (w *world) beside(t *testing.T, namespace string) *world {
	t.Helper()
	other := &world{World: w.Beside(), knative: w.knative, namespace: namespace}
	other.NATS = suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL()
	if err := other.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(other.close(), other.Stop()); err != nil {
			t.Error(err)
		}
	})
	return other
}

// serve starts a bridge of the world's namespace that changes apps.
func (w *world) serve(ctx context.Context, options ...string) (*kubesuite.Instance, error) {
	options = append([]string{"--namespaces", w.namespace, "--base-domain", baseDomain, "--enable-writes", fmt.Sprintf("--pod-conditions=%t", w.conditions)}, options...)
	return w.Serve(ctx, map[string]int{appsvc.ServiceName: 10, logsvc.ServiceName: 3}, options...)
}

// open begins to watch etcd, starts the bridges, and reads what they publish.
func (w *world) open(ctx context.Context, serve func() error) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.names, err = subjects.New(subjects.DefaultPrefix); err != nil {
		return err
	}
	if w.history, err = w.History(ctx, w.namespace); err != nil {
		return err
	}
	if w.conditions {
		if w.pods, err = w.PodHistory(ctx, w.namespace); err != nil {
			return err
		}
	}
	if err := serve(); err != nil {
		return err
	}
	if w.conn, err = nats.Connect(w.NATS, nats.MaxReconnects(-1), nats.Timeout(patience)); err != nil {
		return fmt.Errorf("connect to %s: %w", w.NATS, err)
	}
	w.events, err = newReader(ctx, w.conn)
	return err
}

// close ends the watching. The bridges are kubesuite.World's to stop.
func (w *world) close() error {
	if w.events != nil {
		w.events.close()
	}
	if w.conn != nil {
		w.conn.Close()
	}
	var errs []error
	for _, h := range []*testenv.History{w.history, w.pods} {
		if h != nil {
			errs = append(errs, h.Stop())
		}
	}
	return errors.Join(errs...)
}
