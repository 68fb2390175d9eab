package compat_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

var (
	cluster      kubesuite.Cluster
	namespaces   atomic.Int64
	bucketStream = subjects.BucketStream(subjects.DefaultBucket)
)

func TestMain(m *testing.M) { suite.Main(m, cluster.Stop) }

// world is a namespace of the cluster, nats-servers of one version, and a bridge.
type world struct {
	*testenv.Cluster
	t         *testing.T
	nats      *testenv.NATS
	js        jetstream.JetStream
	namespace string
	replicas  int

	bridge *bridge.Bridge
	logs   *observer.ObservedLogs
	stop   func() error
}

func newWorld(t *testing.T, opts testenv.NATSOptions) *world {
	t.Helper()
	w := &world{
		Cluster: cluster.Get(t), t: t, nats: startNATS(t, opts), replicas: max(opts.Servers, 1),
		namespace: "compat-" + strconv.FormatInt(namespaces.Add(1), 10), stop: func() error { return nil },
	}
	if err := w.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(w.nats.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if w.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) config() bridge.Config {
	return bridge.Config{
		ClusterName: "test", Namespaces: []string{w.namespace}, Prefix: subjects.DefaultPrefix, Stream: subjects.DefaultStream, Bucket: subjects.DefaultBucket,
		StreamReplicas: w.replicas, Encoding: bridge.EncodingJSON, App: kservice.Config{BaseDomain: "apps.example.com"},
		WatchBufferSize: 100, PendingBytes: 64 << 20, FlushTimeout: 20 * time.Second, MaxDelay: 30 * time.Second, AuditInterval: 2 * time.Second,
	}
}

func (w *world) connect(log *zap.Logger) (*nats.Conn, *rest.Config) {
	w.t.Helper()
	nc, err := nats.Connect(w.nats.URL(), append(natsconn.Options("appbridge test", log), nats.ReconnectWait(50*time.Millisecond))...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(nc.Close)
	kube := rest.CopyConfig(w.Config)
	kube.QPS = -1
	return nc, kube
}

// start starts a bridge and waits until it is ready.
func (w *world) start() {
	w.t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	w.logs = logs
	nc, kube := w.connect(zap.New(core))
	b, err := bridge.New(w.config(), kube, nc, zap.New(core), prometheus.NewRegistry())
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	w.bridge = b
	w.stop = func() error {
		cancel()
		err := <-done
		done <- err
		return err
	}
	w.t.Cleanup(func() {
		_ = w.stop()
		if w.t.Failed() {
			for _, e := range logs.All() {
				w.t.Logf("bridge: %s %s %v", e.Level, e.Message, e.ContextMap())
			}
		}
	})
	w.ready()
}

func (w *world) ready() {
	w.t.Helper()
	suite.Eventually(w.t, suite.Patience, "the bridge is ready", w.bridge.Ready)
}

// clean waits until verify finds no difference between cluster, stream and bucket.
func (w *world) clean() {
	w.t.Helper()
	w.ready()
	suite.Eventually(w.t, suite.Patience, "verify finds nothing", func() error {
		nc, kube := w.connect(zap.NewNop())
		defer nc.Close()
		report, err := bridge.Verify(w.t.Context(), w.config(), kube, nc, zap.NewNop(), audit.Options{Timeout: suite.Patience})
		if err == nil && len(report.Differences) > 0 {
			err = fmt.Errorf("it found %v", report.Differences)
		}
		return err
	})
}

func (w *world) app(name string) testenv.App {
	return testenv.App{Project: "vision", Domain: "development", Name: name, Org: "acme", Namespace: w.namespace}
}

func (w *world) create(name string) *servingv1.Service {
	w.t.Helper()
	svc, err := w.Create(w.t.Context(), w.app(name))
	w.must(err)
	return svc
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// info reads a stream, which may have no leader yet.
func (w *world) info(stream string) *jetstream.StreamInfo {
	w.t.Helper()
	var info *jetstream.StreamInfo
	suite.Eventually(w.t, suite.Patience, "the stream "+stream+" answers", func() error {
		s, err := w.js.Stream(w.t.Context(), stream)
		if err != nil {
			return err
		}
		info = s.CachedInfo()
		if info.Cluster != nil && info.Cluster.Leader == "" {
			return errors.New("it has no leader")
		}
		return nil
	})
	return info
}

// events waits until the stream holds these events from a sequence on, as "<kind> <app>", in any
// order, and checks that each has the fences of the bridge and names its predecessor.
func (w *world) events(from uint64, want ...string) {
	w.t.Helper()
	s, err := subjects.New(subjects.DefaultPrefix)
	w.must(err)
	slices.Sort(want)
	suite.Eventually(w.t, suite.Patience, "the stream holds "+strings.Join(want, ", "), func() error {
		var got []string
		stream, err := w.js.Stream(w.t.Context(), subjects.DefaultStream)
		if err != nil {
			return err
		}
		for seq := from; seq <= stream.CachedInfo().State.LastSeq; seq++ {
			m, err := stream.GetMsg(w.t.Context(), seq)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				continue
			} else if err != nil {
				return err
			}
			id, kind, err := s.ParseEvent(m.Subject)
			if err != nil {
				continue // a notice
			}
			got = append(got, string(kind)+" "+id.Name)
			if last := m.Header.Get(subjects.HeaderExpectedLastSequence); last != strconv.FormatUint(seq-1, 10) {
				w.t.Errorf("the event at %d expected the end %s", seq, last)
			}
			if previous := m.Header.Get(subjects.HeaderPreviousSequence); previous != "" && m.Header.Get(subjects.HeaderExpectedLastSubjectSequence) == "" {
				w.t.Errorf("the event at %d has no fence of its app", seq)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("it holds %s", strings.Join(got, ", "))
		}
		return nil
	})
}

// unread is a durable consumer that nobody reads.
const unread = "unread"

func (w *world) makeUnread() {
	w.t.Helper()
	_, err := w.js.CreateConsumer(w.t.Context(), subjects.DefaultStream, jetstream.ConsumerConfig{
		Durable: unread, AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: subjects.DefaultPrefix + ".events.*.*.*.*",
	})
	w.must(err)
}

// pending checks how much the consumer that nobody reads has to deliver.
func (w *world) pending(want uint64) {
	w.t.Helper()
	suite.Eventually(w.t, suite.Patience, "the consumer has its messages", func() error {
		c, err := w.js.Consumer(w.t.Context(), subjects.DefaultStream, unread)
		if err != nil {
			return err
		}
		if got := c.CachedInfo().NumPending; got != want {
			return fmt.Errorf("%d messages are pending, want %d", got, want)
		}
		return nil
	})
}

func (w *world) restart(end func(int) error) {
	w.t.Helper()
	for i := range w.nats.Size() {
		w.must(end(i))
	}
	for i := range w.nats.Size() {
		w.must(w.nats.Start(w.t.Context(), i))
	}
	w.must(w.nats.WaitHealthy(w.t.Context()))
}

// Stream and bucket are made, made again behind what was acknowledged, survive a crash and a restart of
// the server with what durable consumers have not read, lose their tails and are healed.
func TestStorage(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		for name, servers := range map[string]int{"one server": 1, "three servers": 3} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				newWorld(t, testenv.NATSOptions{Version: version, Servers: servers}).storage()
			})
		}
	})
}

func (w *world) storage() {
	t, ctx := w.t, w.t.Context()
	w.start()
	one, two := w.create("one"), w.create("two")
	w.events(1, "created one", "created two")
	w.clean()

	// Made again, carried past what was acknowledged.
	ends := [2]uint64{w.info(subjects.DefaultStream).State.LastSeq, w.info(bucketStream).State.LastSeq}
	w.must(w.js.DeleteStream(ctx, bucketStream))
	w.must(w.js.DeleteStream(ctx, subjects.DefaultStream))
	w.create("three")
	w.events(1, "created one", "created two", "created three")
	w.clean()
	for i, name := range []string{subjects.DefaultStream, bucketStream} {
		if info := w.info(name); info.State.FirstSeq <= ends[i] || info.Config.FirstSeq > 1 {
			t.Errorf("%s begins at %d (first_seq %d), it had acknowledged %d", name, info.State.FirstSeq, info.Config.FirstSeq, ends[i])
		}
	}
	first := w.info(subjects.DefaultStream).State.FirstSeq
	w.makeUnread()
	w.pending(3)

	// A crash and a restart take nothing.
	for _, end := range []func(int) error{w.nats.Kill, w.nats.Stop} {
		before := w.info(subjects.DefaultStream).State
		w.restart(end)
		if now := w.info(subjects.DefaultStream).State; now.Msgs != before.Msgs || now.FirstSeq != before.FirstSeq || now.LastSeq != before.LastSeq {
			t.Errorf("the stream had %d messages from %d to %d, now %d from %d to %d", before.Msgs, before.FirstSeq, before.LastSeq, now.Msgs, now.FirstSeq, now.LastSeq)
		}
		w.pending(3)
		w.clean()
	}
	_, err := w.Progressing(ctx, one)
	w.must(err)
	w.must(w.Client.Delete(ctx, two))
	all := []string{"created one", "created two", "created three", "updated one", "deleted two"}
	w.events(first, all...)
	w.pending(5)
	w.clean()

	// Another bridge goes on and has nothing to publish.
	w.must(w.stop())
	last := w.info(subjects.DefaultStream).State.LastSeq
	w.start()
	w.clean()
	if now := w.info(subjects.DefaultStream).State.LastSeq; now != last {
		t.Errorf("a restart published up to %d, the stream ended at %d", now, last)
	}

	// The tails are lost: named, filled, healed, and owed events are published behind.
	saved, err := w.nats.SaveStore(ctx, nil)
	w.must(err)
	w.create("four")
	_, err = w.Failed(ctx, one, "Broken", "it is")
	w.must(err)
	w.events(last+1, "created four", "updated one")
	w.clean()
	lost := w.info(subjects.DefaultStream).State.LastSeq
	for i := range w.nats.Size() {
		w.must(w.nats.Kill(i))
	}
	w.must(w.nats.RestoreStore(saved))
	w.must(saved.Remove())
	w.restart(func(int) error { return nil })
	suite.Eventually(t, suite.Patience, "the loss is named", func() error {
		if w.logs.FilterMessage("the stream lost acknowledged events").FilterField(zap.Uint64("to", lost)).Len() == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	w.events(lost+1, "created four", "updated one")
	w.clean()
	stream, err := w.js.Stream(ctx, subjects.DefaultStream)
	w.must(err)
	notice, err := stream.GetLastMsgForSubject(ctx, subjects.DefaultPrefix+".events.notice")
	w.must(err)
	if from, to := notice.Header.Get(subjects.HeaderLostFrom), notice.Header.Get(subjects.HeaderLostTo); from != fmt.Sprint(last+1) || to != fmt.Sprint(lost) {
		t.Errorf("the notice is of %s to %s, want %d to %d", from, to, last+1, lost)
	}
	w.pending(7)
}

// The commands of docs/compatibility.md take first_seq off a stream that has it: its messages survive a
// restart of every server. The bridge logs such a stream where the server would remove them.
func TestFirstSeqTakenOff(t *testing.T) {
	commands := compatibilityCommands(t)
	onEach(t, func(t *testing.T, version string) {
		w := newWorld(t, testenv.NATSOptions{Version: version})
		_, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: subjects.DefaultStream, Subjects: []string{subjects.DefaultPrefix + ".events.>"}, FirstSeq: 101,
		})
		w.must(err)
		w.start()
		w.create("one")
		w.events(101, "created one")
		if said := strings.Contains(fmt.Sprint(w.logs.FilterMessage("settings to know of").All()), "first_seq 101"); said != (version == "2.11.0") {
			t.Errorf("first_seq is logged: %t", said)
		}
		bin, err := testenv.BinDir()
		folder := t.TempDir() // of one reader
		w.must(err)
		for line := range strings.Lines(commands) {
			cmd := exec.CommandContext(t.Context(), "bash", "-ec", line)
			cmd.Dir = folder
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+cmd.Dir, "NATS_URL="+w.nats.URL())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s\n%v\n%s", line, err, out)
			}
		}
		w.makeUnread()
		for _, end := range []func(int) error{w.nats.Stop, w.nats.Kill} {
			w.restart(end)
			w.pending(1)
			w.clean()
		}
		w.events(101, "created one")
	})
}

func compatibilityCommands(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```sh\n(.*?)```").FindSubmatch(page)
	if found == nil {
		t.Fatal("docs/compatibility.md has no commands")
	}
	return string(found[1])
}
