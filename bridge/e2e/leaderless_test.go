package e2e_test

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// fiveServers are a NATS cluster in which a stream can lose its leader while the cluster, and the
// bucket, keep theirs: the stream is on s0, s1 and s2, the bucket on s2, s3 and s4.
type fiveServers struct {
	t       *testing.T
	opts    []*server.Options
	servers []*server.Server
}

func newFiveServers(t *testing.T) *fiveServers {
	t.Helper()
	c := &fiveServers{t: t, servers: make([]*server.Server, 5)}
	dir := t.TempDir()
	var ports []int
	for range 10 {
		ports = append(ports, suite.FreePort(t))
	}
	var routes []*url.URL
	for _, p := range ports[:5] {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", p)})
	}
	for i, tags := range [][]string{{"stream"}, {"stream"}, {"stream", "bucket"}, {"bucket"}, {"bucket"}} {
		c.opts = append(c.opts, &server.Options{
			ServerName: fmt.Sprint("s", i), Host: "127.0.0.1", Port: ports[5+i], NoSigs: true, NoLog: true, Tags: tags,
			JetStream: true, StoreDir: filepath.Join(dir, fmt.Sprint(i)),
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: ports[i]}, Routes: routes,
		})
	}
	t.Cleanup(func() {
		for i := range c.servers {
			c.stop(i)
		}
	})
	for i := range c.servers {
		c.start(i)
	}
	return c
}

func (c *fiveServers) start(i int) {
	c.t.Helper()
	c.servers[i] = must[*server.Server](c.t)(server.NewServer(c.opts[i].Clone()))
	c.servers[i].Start()
	if !c.servers[i].ReadyForConnections(patience) {
		c.t.Fatalf("server %d does not come up", i)
	}
}

func (c *fiveServers) stop(i int) {
	if s := c.servers[i]; s != nil {
		s.Shutdown()
		s.WaitForShutdown()
	}
}

// urls are the addresses of the servers, those that always run first.
func (c *fiveServers) urls() string {
	var urls []string
	for _, i := range []int{3, 4, 0, 1, 2} {
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", c.opts[i].Port))
	}
	return strings.Join(urls, ",")
}

// s2 is down while events are published; then s0 and s1 are down, and s2 is back: the stream has no
// leader, and s2, which lags behind, answers STREAM.INFO. Nothing is lost: s0 and s1 come back.
func TestLeaderlessMember(t *testing.T) {
	t.Parallel()
	suite.Slow(t, "uses five servers")
	w := newWorld(t)
	c := newFiveServers(t)
	nc := must[*nats.Conn](t)(nats.Connect(c.urls(), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.DontRandomize(), nats.Timeout(patience)))
	t.Cleanup(nc.Close)
	js := must[jetstream.JetStream](t)(jetstream.New(nc, jetstream.WithDefaultTimeout(store.JetStreamTimeout)))
	w.nc, w.js = nc, js
	for _, cfg := range []jetstream.StreamConfig{
		{Name: subjects.DefaultStream, Subjects: []string{"flyte.apps.events.>"}, Replicas: 3, Placement: &jetstream.Placement{Tags: []string{"stream"}}, AllowDirect: true},
		{
			Name: subjects.BucketStream(subjects.DefaultBucket), Subjects: []string{subjects.BucketFilter(subjects.DefaultBucket)}, Replicas: 3, Placement: &jetstream.Placement{Tags: []string{"bucket"}},
			MaxMsgsPerSubject: 1, AllowDirect: true, DenyDelete: true, AllowRollup: true, Discard: jetstream.DiscardNew,
		},
	} {
		eventually(t, "stream "+cfg.Name, func() error {
			_, err := js.CreateStream(t.Context(), cfg)
			return err
		})
	}
	info := func() (last uint64, leader string, err error) {
		s, err := js.Stream(t.Context(), subjects.DefaultStream)
		if err != nil {
			return 0, "", err
		}
		if c := s.CachedInfo().Cluster; c != nil {
			leader = c.Leader
		}
		return s.CachedInfo().State.LastSeq, leader, nil
	}
	ends := func(want uint64) {
		t.Helper()
		eventually(t, fmt.Sprintf("the stream ends at %d", want), func() error {
			if last, leader, err := info(); err != nil || last != want || leader == "" {
				return fmt.Errorf("it ends at %d, leader %q: %w", last, leader, err)
			}
			return nil
		})
	}
	r := w.launchAt(c.urls(), w.config(), nil)
	r.waitReady()
	var apps []*servingv1.Service
	for i := range 3 {
		apps = append(apps, w.create(w.app(fmt.Sprint("early", i))))
	}
	ends(3)
	eventually(t, "all replicas have the events", func() error {
		s, err := js.Stream(t.Context(), subjects.DefaultStream)
		if err != nil {
			return err
		}
		for _, peer := range s.CachedInfo().Cluster.Replicas {
			if !peer.Current || peer.Lag > 0 {
				return fmt.Errorf("%s lags behind", peer.Name)
			}
		}
		return nil
	})
	c.stop(2)
	for _, svc := range apps {
		must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	}
	ends(6)
	r.waitReady()
	c.stop(0)
	c.stop(1)
	c.start(2)
	eventually(t, "s2 answers without a leader", func() error {
		if last, leader, err := info(); err != nil || leader != "" || last != 3 {
			return fmt.Errorf("the stream ends at %d, leader %q: %w", last, leader, err)
		}
		return nil
	})
	looks := must[*nats.Subscription](t)(nc.SubscribeSync("$JS.API.STREAM.INFO." + subjects.DefaultStream))
	eventually(t, "the bridge looks at the stream", func() error {
		if lost := r.logs.FilterMessage(lostEvents).All(); len(lost) > 0 {
			return fmt.Errorf("%w: nothing is lost, and it logged %v", errFatal, lost[0].ContextMap())
		}
		if n, _, err := looks.Pending(); err != nil || n < 8 {
			return fmt.Errorf("%d times: %w", n, err)
		}
		return nil
	})
	c.start(0)
	c.start(1)
	ends(6)
	r.waitReady()
	w.create(w.app("late"))
	ends(7)
	r.waitReady()
	if got := w.named(); len(got) > 0 || r.metric(lostSequences) > 0 {
		t.Errorf("nothing is lost, and the stream names %v; %v sequences count as lost", got, r.metric(lostSequences))
	}
}
