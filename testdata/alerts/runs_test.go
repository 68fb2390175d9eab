package alerts_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
)

// faultCase is one run and the alerts that fire in its course.
type faultCase struct {
	name   string // and namespace
	do     func(r *run)
	alerts []string
}

func cases() []faultCase {
	return []faultCase{
		{"healthy", healthy, nil},
		{"behind", behind, []string{"AppbridgeBehind"}},
		{"no-nats", noNATS, []string{"AppbridgeNotReady"}},
		{"findings", findings, []string{"AppbridgeAuditFindings"}},
		{"lost-tail", lostTail, []string{"AppbridgeLostTail"}},
		{"lost-while-down", lostWhileDown, []string{"AppbridgeLostTail"}},
		{"no-leader", noLeader, []string{"AppbridgeNoLeader"}},
		{"no-replica", noReplica, []string{"AppbridgeNoLeader"}},
		{"two-leaders", twoLeaders, []string{"AppbridgeTwoLeaders", "AppbridgeFenceRefusals"}},
		{"other-writer", otherWriter, []string{"AppbridgeFenceRefusals"}},
		{"not-converted", notConverted, []string{"AppbridgeConversionFailures"}},
		{"log-requests", logRequests, []string{"AppbridgeLogSlotsUsed"}},
		{"pod-streams", podStreams, []string{"AppbridgeLogSlotsUsed"}},
		{"retention", slowConsumer, []string{"AppbridgeRetentionNearConsumer"}},
	}
}

// Each rule fires in its fault and no other does; none fires while nothing is wrong, also not over
// rollouts, a crash of the leader and a restart of NATS. Every query of the dashboard returns series
// of the healthy run.
func TestFaults(t *testing.T) {
	kubesuite.Needed(t)
	wanted := usedMetrics(t)
	var tests []ruleTest
	tapes := map[string]*tape{}
	fires := map[string]bool{}
	for _, c := range cases() {
		tapes[c.name] = newTape(func(metric string) bool { return wanted[metric] })
		for _, name := range c.alerts {
			fires[name] = true
		}
	}
	for _, rule := range readRules(t) {
		if !fires[rule.Name] {
			t.Errorf("no run makes %s fire", rule.Name)
		}
	}
	if !t.Run("runs", func(t *testing.T) {
		for _, c := range cases() {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				r := newRun(t, c.name, tapes[c.name])
				c.do(r)
				for _, name := range c.alerts {
					r.commands(name)
				}
				t.Logf("%d scrapes, %d series, %s", tapes[c.name].length, len(tapes[c.name].series), time.Since(began).Round(time.Second))
			})
		}
	}) {
		t.FailNow()
	}
	for _, c := range cases() {
		tp := tapes[c.name]
		if tp.length == 0 {
			continue // another run was selected
		}
		test := ruleTest{
			Name: c.name, Interval: fmt.Sprintf("%ds", scrapeInterval), InputSeries: tp.input(), Exprs: []exprTest{fired(tp, c.alerts...)},
		}
		if c.name == "healthy" {
			for _, q := range readDashboard(t) {
				test.Exprs = append(test.Exprs, q.shows(tp))
			}
		}
		tests = append(tests, test)
	}
	testRules(t, tests)
}

// changes publishes n changes of an app, with a scrape after each.
func (r *run) changes(name string, n int) {
	r.t.Helper()
	svc := r.create(name)
	last := r.published(name, 0)
	for i := range n {
		r.change(svc, i)
		last = r.published(name, last)
		r.scrape(1)
	}
}

func healthy(r *run) {
	options := append(r.elected(), "--audit-interval", "1s", "--stream-max-age", "24h")
	first := r.start(options...)
	r.start(options...)
	consumer, err := r.js.CreateConsumer(r.t.Context(), "FLYTE_APPS", jetstream.ConsumerConfig{Durable: "reader"})
	r.must(err)
	read, err := consumer.Consume(func(m jetstream.Msg) { _ = m.Ack() })
	r.must(err)
	r.t.Cleanup(read.Stop)
	r.scrape(2)
	r.changes("one", 5)

	// Of every part something happens, for the dashboard to show.
	pod, err := r.Kubelet.RunPod(r.t.Context(), testenv.PodOptions{Namespace: r.namespace, Service: r.create("logs").Name, Name: "logs-1"})
	r.must(err)
	pod.Write("hello")
	for range 2 { // series with labels begin with the first request; rates need a second one
		for range 8 { // the replicas share them
			r.request("flyte.apps.api.get.shop.production.one", "")
			r.request("flyte.apps.logs.get.shop.production.logs", "")
		}
		r.scrape(2)
	}
	for _, b := range r.bridges {
		r.until(b, `appbridge_audit_rounds_total{result="complete"}`, positive)
	}
	r.until(r.leader(), "appbridge_consumer_retention_left_ratio", positive)
	r.scrape(4)

	// Two rollouts: each replica is replaced by a new one.
	for n := range 4 {
		old := r.bridges[0]
		next := r.launch(options...)
		r.scrape(1)
		r.ready(next)
		r.scrape(2)
		r.stop(old)
		r.scrape(2) // until another one takes the Lease
		r.leader()
		r.scrape(2)
		r.changes(fmt.Sprint("rollout-", n), 2)
	}
	if slices.Contains(r.bridges, first) {
		r.t.Fatal("the first replica still runs")
	}

	// The leader crashes, and a new one takes the Lease after 15 seconds.
	leader := r.leader()
	r.end(leader, leader.Kill)
	r.scrape(2)
	r.start(options...)
	r.leader()
	r.changes("after-a-crash", 3)

	// NATS is restarted.
	r.must(r.servers.Stop(0))
	r.scrape(2)
	r.must(r.servers.Start(r.t.Context(), 0))
	for _, b := range r.bridges {
		r.ready(b)
	}
	r.changes("after-a-restart", 3)
	r.until(r.leader(), "appbridge_consumer_retention_left_ratio", positive)
	r.scrapeFor(5 * time.Minute)
}

// request sends a request that is to be answered.
func (r *run) request(subject, body string) {
	r.t.Helper()
	answer, err := r.nc.Request(subject, []byte(body), patience)
	r.must(err)
	if text := answer.Header.Get("Nats-Service-Error"); text != "" {
		r.t.Fatalf("%s: %s", subject, text)
	}
}

func behind(r *run) {
	b := r.start("--audit-interval", "0")
	svc := r.create("app")
	r.published("app", 0)
	r.scrape(3)
	r.must(r.servers.Kill(0))
	r.change(svc, 1)
	r.until(b, "appbridge_oldest_pending_seconds", func(v float64) bool { return v > 30 })
	r.scrapeFor(2 * time.Minute)
	r.must(r.servers.Start(r.t.Context(), 0))
}

// A bridge that starts while NATS is unavailable has nothing that waits.
func noNATS(r *run) {
	r.create("app")
	r.must(r.servers.Kill(0))
	r.launch("--audit-interval", "0")
	r.leader()
	r.scrapeFor(6 * time.Minute)
	r.must(r.servers.Start(r.t.Context(), 0))
}

// A proxy between the bridge and the API server loses the events of a watch. Nothing but the audit
// finds that.
func findings(r *run) {
	proxy, err := r.APIProxy(testenv.APIProxyOptions{})
	r.must(err)
	r.t.Cleanup(func() { r.check(proxy.Close()) })
	kubeconfig := filepath.Join(r.t.TempDir(), "kubeconfig")
	r.must(proxy.Kubeconfig(kubeconfig))
	b := r.start("--audit-interval", "1s", "--kubeconfig", kubeconfig)
	svc := r.create("app")
	last := r.published("app", 0)
	r.until(b, `appbridge_audit_rounds_total{result="complete"}`, positive)
	r.scrape(3)
	proxy.SwallowEvents(1, func(kind, name, _ string) bool { return kind == "Service" && name == svc.Name })
	r.change(svc, 1)
	r.until(b, "appbridge_audit_findings_total", positive)
	r.scrape(3)
	r.published("app", last)
	r.until(b, "appbridge_audit_unrepaired", func(v float64) bool { return v == 0 })
}

// lose puts the stream back to what it was three changes ago, and does down before that.
func (r *run) lose(down func()) {
	r.t.Helper()
	svc := r.create("app")
	last := r.published("app", 0)
	r.scrape(3)
	saved, err := r.servers.SaveStore(r.t.Context(), nil)
	r.must(err)
	for i := range 3 {
		r.change(svc, i)
		last = r.published("app", last)
	}
	r.until(r.bridges[0], "appbridge_snapshot_lag_events", func(v float64) bool { return v == 0 })
	r.scrape(2)
	down()
	r.must(r.servers.Stop(0))
	r.must(r.servers.RestoreStore(saved, "FLYTE_APPS"))
	r.must(r.servers.Start(r.t.Context(), 0))
}

func lostTail(r *run) {
	b := r.start("--audit-interval", "0")
	r.lose(func() {})
	r.until(b, "appbridge_lost_sequences_total", positive)
	r.ready(b)
	r.scrape(3)
}

// The Lease has what was acknowledged. The bridge finds the loss before it is scraped.
func lostWhileDown(r *run) {
	options := append(r.elected(), "--audit-interval", "0")
	b := r.start(options...)
	r.lose(func() { r.stop(b) })
	b = r.launch(options...)
	r.until(b, "appbridge_lost_sequences_total", positive)
	r.ready(b)
	r.scrape(3)
}

// Another client holds the Lease and does not publish.
func noLeader(r *run) {
	holder, seconds, now := "somebody", int32(3600), metav1.NowMicro()
	r.must(r.Client.Create(r.t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "appbridge"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now},
	}))
	for range 2 {
		r.start(append(r.elected(), "--audit-interval", "0")...)
	}
	r.scrapeFor(3 * time.Minute)
}

func noReplica(r *run) {
	b := r.start("--audit-interval", "0")
	r.scrapeFor(time.Minute)
	r.stop(b)
	r.scrapeFor(3 * time.Minute)
}

// Two replicas run without leader election.
func twoLeaders(r *run) {
	r.start("--audit-interval", "0")
	r.start("--audit-interval", "0")
	r.changes("app", 20)
}

// Something else writes to the event subjects.
func otherWriter(r *run) {
	b := r.start("--audit-interval", "0")
	svc := r.create("app")
	last := r.published("app", 0)
	r.scrape(3)
	refused := b.Metric(r.t, "appbridge_fence_conflicts_total")
	for i := 0; refused < 8; i++ {
		_, err := r.js.Publish(r.t.Context(), "flyte.apps.events.by-hand", []byte("hello"))
		r.must(err)
		r.change(svc, i)
		last = r.published("app", last)
		refused = b.Metric(r.t, "appbridge_fence_conflicts_total")
		r.scrape(1)
	}
	r.scrapeFor(2 * time.Minute)
}

func notConverted(r *run) {
	b := r.start("--audit-interval", "0")
	r.scrape(3)
	app := testenv.App{Project: "shop", Domain: "production", Name: "app", Namespace: r.namespace}
	app.Annotations = map[string]string{"flyte.org/app-id": "shop"}
	_, err := r.Create(r.t.Context(), app)
	r.must(err)
	r.until(b, "appbridge_objects_left_out_total", positive)
	r.scrape(3)
}

// follow sends n requests for logs that do not end, and reads what they get.
func (r *run) follow(b *bridge, metric, name string, n int) {
	r.t.Helper()
	got, err := r.nc.Subscribe(r.nc.NewInbox()+".*", func(m *nats.Msg) {
		if ended := m.Header.Get("Flyte-Log-End"); ended != "" {
			r.t.Errorf("the log of %s ended: %s", name, ended)
		}
	})
	r.must(err)
	r.t.Cleanup(func() { _ = got.Unsubscribe() })
	for i := range n {
		reply := strings.TrimSuffix(got.Subject, "*") + fmt.Sprint(i)
		r.must(r.nc.PublishRequest("flyte.apps.logs.tail.shop.production."+name, reply, []byte(`{"follow": true}`)))
	}
	r.until(b, metric, func(v float64) bool { return v == float64(n) })
}

func logRequests(r *run) {
	b := r.start("--audit-interval", "0", "--max-log-streams", "4")
	r.create("app")
	r.published("app", 0)
	r.scrape(3)
	r.follow(b, "appbridge_log_streams", "app", 4)
	r.scrapeFor(3 * time.Minute)
}

func podStreams(r *run) {
	b := r.start("--audit-interval", "0", "--max-pod-streams", "2")
	svc := r.create("app")
	r.published("app", 0)
	_, err := r.Kubelet.RunPod(r.t.Context(), testenv.PodOptions{Namespace: r.namespace, Service: svc.Name, Name: "app-1"})
	r.must(err)
	r.scrape(3)
	r.follow(b, "appbridge_log_pod_streams", "app", 2)
	r.scrapeFor(3 * time.Minute)
}

func slowConsumer(r *run) {
	b := r.start("--audit-interval", "0", "--stream-max-bytes", "64Ki")
	svc := r.create("app")
	last := r.published("app", 0)
	_, err := r.js.CreateConsumer(r.t.Context(), "FLYTE_APPS", jetstream.ConsumerConfig{Durable: "slow"})
	r.must(err)
	const left = "appbridge_consumer_retention_left_ratio"
	r.until(b, left, positive)
	r.scrape(3)
	n := 0
	r.until(b, left, func(v float64) bool {
		n++
		r.change(svc, n)
		last = r.published("app", last)
		return v < 0.2
	})
	r.scrapeFor(2 * time.Minute)
}
