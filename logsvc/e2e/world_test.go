// Package e2e_test reads the logs of pods through the program as it is built: a
// real API server with etcd, a small kubelet, `appbridge serve` with its embedded
// server, the stock nats CLI and `appbridge logs`.
package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/micro"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// patience bounds every wait. Nothing is expected to come near it.
const patience = suite.Patience

// shared is what all tests use: started by the first that asks.
var shared struct { //nolint:gochecknoglobals // one cluster for all tests
	once sync.Once
	*world
	err error
}

// world is a cluster with a kubelet, and a bridge with its embedded server.
type world struct {
	*kubesuite.World
	bridge *kubesuite.Instance
}

// The tests mostly wait: more of them run at a time than there are processors.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil { // -parallel overrides it
		panic(err)
	}
	suite.Main(m, func() error {
		if shared.world == nil {
			return nil
		}
		return shared.Stop()
	})
}

func sharedWorld(tb testing.TB) *world {
	tb.Helper()
	shared.once.Do(func() { shared.world, shared.err = newWorld(context.Background()) })
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	return shared.world
}

// ownWorld is the shared cluster with a bridge and a NATS server of a test's own.
func ownWorld(t *testing.T, args ...string) *world {
	t.Helper()
	beside := sharedWorld(t).Beside()
	return owned(t, func() (*world, error) { return serve(context.Background(), beside, args...) })
}

// ownCluster is a world with a cluster of a test's own.
func ownCluster(t *testing.T) *world {
	t.Helper()
	return owned(t, func() (*world, error) { return newWorld(context.Background()) })
}

func owned(t *testing.T, start func() (*world, error)) *world {
	t.Helper()
	w, err := start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func newWorld(ctx context.Context) (*world, error) {
	w, err := kubesuite.StartWorld(ctx, testenv.Options{})
	if err != nil {
		return nil, err
	}
	return serve(ctx, w)
}

// serve starts the bridge of a world.
func serve(ctx context.Context, in *kubesuite.World, args ...string) (*world, error) {
	w := &world{World: in}
	var err error
	// Tests and benchmarks of throughput are not for a limit to decide.
	args = append([]string{"--max-log-rate", "0"}, args...)
	if w.bridge, err = w.Serve(ctx, services(), args...); err != nil {
		return nil, errors.Join(err, w.Stop())
	}
	return w, nil
}

// services are those that the tests wait for, with their endpoints.
func services() map[string]int { return map[string]int{logsvc.ServiceName: 3} }

// stats is what `nats micro stats` says.
func (w *world) stats(ctx context.Context) (logsvc.Stats, error) {
	cmd := exec.CommandContext(ctx, "nats", "req", "--raw", "--timeout=5m", "$SRV.STATS."+logsvc.ServiceName, "")
	out, err := w.Prepare(cmd).Output()
	if err != nil {
		return logsvc.Stats{}, err
	}
	var all micro.Stats
	if err := json.Unmarshal(out, &all); err != nil || len(all.Endpoints) != 3 {
		return logsvc.Stats{}, fmt.Errorf("the statistics are %q: %w", out, err)
	}
	var stats logsvc.Stats
	return stats, json.Unmarshal(all.Endpoints[0].Data, &stats)
}

var apps atomic.Int64 //nolint:gochecknoglobals // names are unique in the cluster

// app makes an app of its own for a test. The name is that of its Knative
// Service, too.
func (w *world) app(tb testing.TB) (id subjects.AppID, service string) {
	tb.Helper()
	return w.appNamed(tb, fmt.Sprintf("app%d", apps.Add(1)))
}

func (w *world) appNamed(tb testing.TB, name string) (id subjects.AppID, service string) {
	tb.Helper()
	app := testenv.App{Project: "shop", Domain: "production", Name: name}
	svc := app.Service()
	if err := w.Client.Create(tb.Context(), svc); err != nil {
		tb.Fatal(err)
	}
	return app.ID(), svc.Name
}

func (w *world) pod(tb testing.TB, service, name string) *testenv.Pod {
	tb.Helper()
	return w.podOf(tb, service, name, testenv.Containerd)
}

func (w *world) podOf(tb testing.TB, service, name string, form testenv.LogForm) *testenv.Pod {
	tb.Helper()
	pod, err := w.Kubelet.RunPod(tb.Context(), testenv.PodOptions{
		Namespace: testenv.DefaultNamespace, Name: name, Service: service, Log: form,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return pod
}

func eventually(tb testing.TB, what string, check func() error) {
	tb.Helper()
	suite.Eventually(tb, patience, what, check)
}
