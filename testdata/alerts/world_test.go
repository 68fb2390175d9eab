// Package alerts_test checks deploy/chart/appbridge/files: the alert rules and the queries of the
// dashboard against what the program as it is built exports in faults, on a real API server with
// etcd and real JetStream servers. promtool evaluates both.
package alerts_test

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/network"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// patience bounds every wait. Nothing is expected to come near it.
const patience = suite.Patience

// shared is the cluster of all runs, with the namespace of each.
var shared kubesuite.SharedWorld //nolint:gochecknoglobals // one cluster for all tests

// The runs mostly wait: more of them run at a time than there are processors.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil { // -parallel overrides it
		panic(err)
	}
	for _, c := range cases() {
		shared.Options.Namespaces = append(shared.Options.Namespaces, c.name)
	}
	suite.Main(m, shared.Stop)
}

// run is a namespace with bridges and a NATS server of its own, and the scrapes of the bridges.
type run struct {
	*kubesuite.World
	*tape
	t         *testing.T
	namespace string
	servers   *testenv.NATS
	nc        *nats.Conn
	js        jetstream.JetStream
	bridges   []*bridge // that run
	started   int
}

// bridge is one `appbridge serve`.
type bridge struct {
	*kubesuite.Instance
	name string
}

// newRun starts a NATS server. The namespace has to be one of the cluster's.
func newRun(t *testing.T, namespace string, tp *tape) *run {
	t.Helper()
	r := &run{World: shared.Get(t).Beside(), tape: tp, t: t, namespace: namespace}
	var err error
	if r.servers, err = testenv.StartNATS(t.Context(), testenv.NATSOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.check(r.servers.Close()) })
	r.NATS = r.servers.URL()
	if r.nc, err = nats.Connect(r.NATS, nats.Timeout(patience), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.nc.Close)
	if r.js, err = jetstream.New(r.nc, jetstream.WithDefaultTimeout(patience)); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *run) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Error(err)
	}
}

func (r *run) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// launch starts a bridge and returns when it can be scraped, ready or not.
func (r *run) launch(options ...string) *bridge {
	r.t.Helper()
	r.started++
	b := &bridge{Instance: &kubesuite.Instance{}, name: fmt.Sprintf("%s-%d", r.namespace, r.started)}
	dir, err := r.Dir(b.name)
	r.must(err)
	b.HTTP, err = network.FreeAddress("")
	r.must(err)
	args := append([]string{
		"serve", "--kubeconfig", r.KubeconfigPath, "--cluster-name", "test", "--namespaces", r.namespace,
		"--http-listen", b.HTTP, "--nats-url", r.NATS,
	}, options...)
	b.Process, err = r.Run(b.name, filepath.Join(dir, "log"), filepath.Join(r.Bin, "appbridge"), args...)
	r.must(err)
	r.bridges = append(r.bridges, b)
	r.t.Cleanup(func() {
		if r.t.Failed() {
			text, _ := b.LogTail()
			r.t.Log(text)
		}
		r.check(b.Kill())
	})
	r.eventually(b.name+" can be scraped", func() error {
		_, _, err := b.Get(r.t.Context(), "/metrics")
		return err
	})
	return b
}

// start starts a bridge and waits until it is ready.
func (r *run) start(options ...string) *bridge {
	r.t.Helper()
	b := r.launch(options...)
	r.ready(b)
	return b
}

func (r *run) ready(b *bridge) {
	r.t.Helper()
	r.eventually(b.name+" is ready", func() error {
		select {
		case <-b.Done():
			return fmt.Errorf("%w: it ended: %w", suite.ErrFatal, b.Exit())
		default:
		}
		body, status, err := b.Get(r.t.Context(), "/readyz")
		if err == nil && status != http.StatusOK {
			err = errors.New(body)
		}
		return err
	})
}

// end removes a bridge that is to end, by a signal or by Kill.
func (r *run) end(b *bridge, how func() error) {
	r.t.Helper()
	r.must(how())
	<-b.Done()
	for i := range r.bridges {
		if r.bridges[i] == b {
			r.bridges = append(r.bridges[:i], r.bridges[i+1:]...)
			return
		}
	}
}

func (r *run) stop(b *bridge) { r.end(b, func() error { return b.Stop(patience) }) }

// scrape scrapes every bridge n times.
func (r *run) scrape(n int) {
	r.t.Helper()
	for range n {
		bodies := map[string]string{}
		for _, b := range r.bridges {
			body, _, err := b.Get(r.t.Context(), "/metrics")
			r.must(err)
			bodies[b.name] = body
		}
		r.must(r.add(bodies))
		r.must(testenv.Pause(r.t.Context(), 50*time.Millisecond))
	}
}

// scrapeFor scrapes for a time of the rules.
func (r *run) scrapeFor(d time.Duration) { r.scrape(int(d/time.Second) / scrapeInterval) }

func (r *run) eventually(what string, check func() error) {
	r.t.Helper()
	suite.Eventually(r.t, patience, what, check)
}

// until waits until a metric of a bridge is as wanted.
func (r *run) until(b *bridge, metric string, wanted func(float64) bool) {
	r.t.Helper()
	r.eventually(metric, func() error {
		if v := b.Metric(r.t, metric); !wanted(v) {
			return fmt.Errorf("%v", v)
		}
		return nil
	})
}

func positive(v float64) bool { return v > 0 }

// create makes an app of the run's namespace.
func (r *run) create(name string) *servingv1.Service {
	r.t.Helper()
	svc, err := r.Create(r.t.Context(), testenv.App{Project: "shop", Domain: "production", Name: name, Namespace: r.namespace})
	r.must(err)
	return svc
}

// change has the app fail for another reason: one event.
func (r *run) change(svc *servingv1.Service, n int) {
	r.t.Helper()
	_, err := r.Failed(r.t.Context(), svc, "Broken", fmt.Sprint("try ", n))
	r.must(err)
}

// published waits until the stream has an event of the app that came after the given sequence.
func (r *run) published(name string, after uint64) (sequence uint64) {
	r.t.Helper()
	r.eventually("an event of "+name, func() error {
		stream, err := r.js.Stream(r.t.Context(), "FLYTE_APPS")
		if err != nil {
			return err
		}
		m, err := stream.GetLastMsgForSubject(r.t.Context(), "flyte.apps.events.shop.production."+name+".*")
		if err == nil && m.Sequence <= after {
			err = fmt.Errorf("its last one is at %d", m.Sequence)
		}
		if err == nil {
			sequence = m.Sequence
		}
		return err
	})
	return sequence
}

// elected are the options of replicas with leader election.
func (r *run) elected() []string {
	return []string{"--leader-elect", "--lease-namespace", r.namespace}
}

// leader waits until one of the bridges leads.
func (r *run) leader() *bridge {
	r.t.Helper()
	var leader *bridge
	r.eventually("a leader", func() error {
		for _, b := range r.bridges {
			if b.Metric(r.t, "appbridge_leader") == 1 {
				leader = b
				return nil
			}
		}
		return errors.New("none of " + strings.Join(r.names(), ", "))
	})
	return leader
}

func (r *run) names() (names []string) {
	for _, b := range r.bridges {
		names = append(names, b.name)
	}
	return names
}
