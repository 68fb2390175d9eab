package compose

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/network"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// TestComposeCluster takes two of the three NATS servers out of service while apps change, one after
// the other and then both at a time, and checks that every change has its event, in order and once.
func TestComposeCluster(t *testing.T) {
	w := newClusterWorld(t)
	load := newLoad(t, w.cluster)
	load.write(20) // before any fault, there is something to compare with
	restarts := w.bridgeRestarts()

	// Two of three servers go on.
	first := w.leader(subjects.DefaultStream)
	during := load.begin(changesPerFault)
	run(t, "docker", "stop", w.ids[first])
	during.wait()
	w.published()
	t.Logf("%s, which led the stream, is stopped: %d changes were published meanwhile", first, changesPerFault)

	// One of three does not: the changes wait in the bridge.
	second := w.leader(subjects.DefaultStream)
	id := w.ids[second]
	network := w.project.network(t)
	during = load.begin(changesPerFault)
	run(t, "docker", "network", "disconnect", network, id)
	during.wait()
	pending := w.pending()
	if pending == 0 {
		t.Errorf("no change waits for the stream, which has one of three servers")
	}
	t.Logf("%s, the next leader, is without a network: %d changes wait", second, pending)

	// Both come back while apps change.
	during = load.begin(changesPerFault)
	run(t, "docker", "network", "connect", "--alias", second, network, id)
	run(t, "docker", "start", w.ids[first])
	during.wait()
	w.project.waitReady(t)
	w.healthy()
	report := w.audit()
	t.Log(report)
	if report.Merged != 0 || report.Excused != 0 {
		t.Errorf("%d states were merged and %d were excused, want an event for each", report.Merged, report.Excused)
	}
	if got := w.bridgeRestarts(); got != restarts {
		t.Errorf("appbridge was restarted %d times, want 0", got-restarts)
	}
	t.Log(w.project.compose(t, "exec", "-T", "appbridge-cluster", "/appbridge", "verify"))
	w.checkReplicas()
	w.project.checkPrometheus(t)
}

const (
	changesPerFault = 200
	requestTimeout  = 20 * time.Second // of a check, which is repeated
)

// members are the services of the profile that run NATS.
var members = []string{"nats-1", "nats-2", "nats-3"}

// clusterWorld is an API server and the profile "cluster" with a client of its servers.
type clusterWorld struct {
	t       *testing.T
	cluster *testenv.Cluster
	project *project
	history *testenv.History
	js      jetstream.JetStream
	ids     map[string]string // of the servers' containers
}

func newClusterWorld(t *testing.T) *clusterWorld {
	t.Helper()
	cluster, kubeconfig, relay := startCluster(t)
	buildImages(t)
	env := []string{relay, "HTTP_PORT=0", "PROMETHEUS_PORT=0"}
	var urls []string
	// Published ports of the engine's choice change with a restart of the container.
	for _, variable := range []string{"NATS_PORT", "NATS_2_PORT", "NATS_3_PORT"} {
		address, release, err := network.ReserveAddress()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, variable+"="+port)
		urls = append(urls, "nats://"+address)
	}
	w := &clusterWorld{t: t, cluster: cluster, project: newProject(t, "cluster", kubeconfig, env...), ids: map[string]string{}}
	w.project.removeAtEnd(t)
	w.project.compose(t, "up", "-d")
	w.project.waitReady(t)
	for _, member := range members {
		w.ids[member] = w.project.containerID(t, member)
		w.project.address(t, member, "4222")
	}
	var err error
	if w.history, err = cluster.History(t.Context(), testenv.DefaultNamespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.history.Stop(); err != nil {
			t.Error(err)
		}
	})
	w.js = w.project.connect(t, "bridge", urls)
	w.checkReplicas()
	return w
}

// eventually polls until check returns nil. A request that is lost with a server is made again.
func (w *clusterWorld) eventually(what string, check func(context.Context) error) {
	w.t.Helper()
	suite.Eventually(w.t, suite.Patience, what, func() error {
		ctx, cancel := context.WithTimeout(w.t.Context(), requestTimeout)
		defer cancel()
		return check(ctx)
	})
}

func (w *clusterWorld) bridgeRestarts() int {
	w.t.Helper()
	return inspect(w.t, w.project.containerID(w.t, w.project.bridge())).RestartCount
}

// info is what the servers report of a stream.
func (w *clusterWorld) info(ctx context.Context, stream string) (*jetstream.StreamInfo, error) {
	s, err := w.js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	info := s.CachedInfo()
	if info.Cluster == nil || !slices.Contains(members, info.Cluster.Leader) {
		return nil, fmt.Errorf("stream %s has no leader: %+v", stream, info.Cluster)
	}
	return info, nil
}

// leader is the server that leads a stream.
func (w *clusterWorld) leader(stream string) (name string) {
	w.t.Helper()
	w.eventually("the stream has a leader", func(ctx context.Context) error {
		info, err := w.info(ctx, stream)
		if err == nil {
			name = info.Cluster.Leader
		}
		return err
	})
	return name
}

// healthy waits until all replicas of the event stream and of the bucket are current.
func (w *clusterWorld) healthy() {
	w.t.Helper()
	for _, stream := range []string{subjects.DefaultStream, subjects.BucketStream(subjects.DefaultBucket)} {
		w.eventually("all replicas of "+stream+" are current", func(ctx context.Context) error {
			info, err := w.info(ctx, stream)
			if err != nil {
				return err
			}
			for _, r := range info.Cluster.Replicas {
				if !r.Current || r.Offline {
					return fmt.Errorf("%s: current %t, offline %t", r.Name, r.Current, r.Offline)
				}
			}
			return nil
		})
	}
}

// checkReplicas checks that every server holds the event stream and the bucket.
func (w *clusterWorld) checkReplicas() {
	w.t.Helper()
	want := len(members)
	for _, stream := range []string{subjects.DefaultStream, subjects.BucketStream(subjects.DefaultBucket)} {
		s, err := w.js.Stream(w.t.Context(), stream)
		if err != nil {
			w.t.Fatal(err)
		}
		info := s.CachedInfo()
		if got := info.Config.Replicas; got != want {
			w.t.Errorf("stream %s has %d replicas, want %d", stream, got, want)
		}
		if got := len(info.Cluster.Replicas) + 1; got != want {
			w.t.Errorf("stream %s is on %d servers, want %d", stream, got, want)
		}
	}
}

// published waits until no change waits for the stream.
func (w *clusterWorld) published() {
	w.t.Helper()
	w.eventually("every change is in the stream", func(ctx context.Context) error {
		if n := w.pending(); n > 0 {
			return fmt.Errorf("%d changes wait", n)
		}
		return w.current(ctx)
	})
}

// pending is how many changes wait for the stream, as the bridge's metric says.
func (w *clusterWorld) pending() int {
	w.t.Helper()
	return w.project.metric(w.t, "appbridge_changes_pending")
}

// current returns an error unless the newest event of each app shows the newest version that etcd had.
func (w *clusterWorld) current(ctx context.Context) error {
	newest := map[string]string{}
	for _, c := range w.history.Changes() {
		if c.Kind != "Service" {
			continue
		}
		newest[c.Name] = c.ResourceVersion
	}
	if len(newest) == 0 {
		return errors.New("etcd has had no app")
	}
	events, err := messages(ctx, w.js, subjects.DefaultStream)
	if err != nil {
		return err
	}
	shown := map[string]bool{}
	for _, e := range events {
		for _, name := range []string{subjects.HeaderResourceVersion, subjects.HeaderDeletedResourceVersion} {
			shown[e.Header.Get(name)] = true
		}
	}
	for app, version := range newest {
		if !shown[version] {
			return fmt.Errorf("%s: no event shows version %s", app, version)
		}
	}
	return nil
}
