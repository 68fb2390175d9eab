package e2e_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// NATS that is not up yet is waited for, and said so; NATS that goes away
// while changes happen gets them all when it is back.
func TestNATSAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	port := w.port()
	w.server.Shutdown()
	w.server.WaitForShutdown()

	r := w.launch(cfg, nil)
	eventually(t, "it says what it waits for", func() error {
		if err := r.bridge.Ready(); err == nil || !strings.Contains(err.Error(), "NATS") {
			return fmt.Errorf("ready says %w", errors.Join(err))
		}
		return nil
	})
	w.create(w.app("early"))
	w.startNATS(port)
	r.waitReady()
	w.waitFor(0, "created early")

	recorder := must[*testenv.Recorder](t)(w.Record(t.Context(), w.namespace))
	w.server.Shutdown()
	w.server.WaitForShutdown()
	eventually(t, "it is not ready", func() error {
		if r.bridge.Ready() == nil {
			return errors.New("it is")
		}
		return nil
	})
	if err := w.begin(40, 8, 5, recreateEvery(4)).Wait(); err != nil {
		t.Fatal(err)
	}
	observations := w.finish(recorder)
	w.startNATS(port)
	w.holdsAll(observations)
	r.waitReady()
	events := w.events(0)
	w.checkOrder(w.truth(observations), events)
	w.checkHeaders(events)
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, events) })
}

// Beyond the buffer, updates of one app merge, and the event says how many;
// creates and deletes do not.
func TestMerge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.WatchBufferSize = 3
	r := w.start(cfg)
	port := w.port()
	w.server.Shutdown()
	w.server.WaitForShutdown()

	if err := w.live(life{app: w.app("busy"), end: "recreate"}, 12); err != nil {
		t.Fatal(err)
	}
	eventually(t, "updates are merged", func() error {
		if got := r.metric("appbridge_updates_merged_total"); got == 0 {
			return errors.New("none")
		}
		return nil
	})
	w.startNATS(port)
	var events []stored
	eventually(t, "the recreated app is there", func() error {
		events = w.events(0)
		if n := len(events); n == 0 || events[n-1].kind != subjects.Created || n < 4 {
			return fmt.Errorf("%d events", n)
		}
		return nil
	})
	var kinds []string
	states := 0
	for _, e := range events {
		kinds = append(kinds, string(e.kind))
		states++
		if merged := e.header(subjects.HeaderMergedUpdates); merged != "" {
			n := 0
			must[int](t)(fmt.Sscan(merged, &n))
			states += n
		}
	}
	// A create, 12 updates, a delete and a create, whatever was merged.
	if states != 15 {
		t.Errorf("%v stand for %d states, want 15", kinds, states)
	}
	if got := strings.Join(kinds, " "); !strings.HasPrefix(got, "created updated") || !strings.HasSuffix(got, "updated deleted created") {
		t.Errorf("got %s", got)
	}
	if len(events) >= 15 {
		t.Errorf("nothing was merged: %d events", len(events))
	}
	w.checkHeaders(events)
}

// The stream or the bucket deleted under a running bridge is made again,
// positions go on, and the bucket is right again.
func TestStorageDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	ctx := t.Context()
	svc := w.create(w.app("one"))
	w.create(w.app("two"))
	w.waitFor(0, "created one", "created two")

	eventually(t, "the bucket has both", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
	if err := w.js.DeleteKeyValue(ctx, cfg.Bucket); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the bucket is written anew", func() error {
		if _, err := w.js.KeyValue(ctx, cfg.Bucket); err != nil {
			return err
		}
		return w.bucketDrift(cfg.App, w.events(0))
	})
	r.waitReady()

	if err := w.js.DeleteStream(ctx, cfg.Stream); err != nil {
		t.Fatal(err)
	}
	must[*servingv1.Service](t)(w.Progressing(ctx, svc))
	var events []stored
	eventually(t, "the stream goes on", func() error {
		stream, err := w.js.Stream(ctx, cfg.Stream)
		if err != nil {
			return err
		}
		if stream.CachedInfo().State.LastSeq < 3 {
			return fmt.Errorf("it ends at %d", stream.CachedInfo().State.LastSeq)
		}
		events = w.events(2)
		if len(events) != 1 {
			return fmt.Errorf("%v", events)
		}
		return nil
	})
	// At 4 if it was sent before the bridge learned that the stream is gone.
	if e := events[0]; e.kind != subjects.Updated || (e.sequence != 3 && e.sequence != 4) || e.header(subjects.HeaderPreviousSequence) == "" {
		t.Errorf("got %s at %d after %q, want an update at 3 or 4 that knows its predecessor", e, e.sequence, e.header(subjects.HeaderPreviousSequence))
	}
	r.waitReady()
}

// Two bridges without election do not harm the order: the fence holds. Every version that etcd held
// is in the stream, once, and none behind a newer one.
func TestTwoBridges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	history := must[*testenv.History](t)(w.History(t.Context(), w.namespace))
	cfg := w.config()
	a, b := w.start(cfg), w.start(cfg)
	ends := []string{"", "recreate", "relabel", "delete"}
	if err := w.begin(20, 8, 6, func(i int) string { return ends[i%len(ends)] }).Wait(); err != nil {
		t.Fatal(err)
	}
	last := w.create(w.app("last"))
	must[any](t)(nil, history.WaitFor(t.Context(), must[int64](t)(strconv.ParseInt(last.ResourceVersion, 10, 64))))
	for name, r := range map[string]*running{"first": a, "second": b} {
		eventually(t, "no lag in the "+name, func() error {
			if lag, pending := r.metric("appbridge_snapshot_lag_events"), r.metric("appbridge_changes_pending"); lag != 0 || pending != 0 {
				return fmt.Errorf("%v events, and %v changes are pending", lag, pending)
			}
			return nil
		})
	}
	if err := a.stop(); err != nil {
		t.Error(err)
	}
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	events := w.events(0)
	w.checkHeaders(events)
	seen := map[string]bool{}
	for _, e := range events {
		if seen[e.String()] {
			t.Errorf("%s is there twice", e)
		}
		seen[e.String()] = true
	}
	if a.metric("appbridge_fence_conflicts_total")+b.metric("appbridge_fence_conflicts_total") == 0 {
		t.Error("the two never met: this test tests nothing")
	}
	must[any](t)(nil, history.Stop())
	var messages []audit.Message
	for sequence, m := range w.messages(cfg.Stream) {
		messages = append(messages, audit.Message{Subject: m.Subject, Sequence: sequence, Header: m.Header, Data: m.Data, Stored: m.Time})
	}
	slices.SortFunc(messages, func(a, b audit.Message) int { return cmp.Compare(a.Sequence, b.Sequence) })
	w.judge(history.Changes(), messages, nil, false)
}

// Two bridges that start at one time: the stream is made by the other one while the first looks for
// it, which is no reason to end.
func TestStartTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gate := w.natsGate()
	looked := gate.holdAt("$JS.API.STREAM.NAMES")
	first := w.launchAt(gate.url(), w.config(), nil)
	reached(t, "the first looks for the stream of the subjects", looked)
	w.start(w.config())
	gate.release()
	first.waitReady()
}

// A bridge reads the last event of an app that it does not know, and finds that another one has just
// published the state that it was about to publish. The state is published once.
func TestTwoBridgesCreateAnApp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	w.start(cfg)
	w.create(w.app("zero"))
	w.waitFor(0, "created zero")
	gate := w.natsGate()
	late := w.startAt(gate, cfg)
	reads := gate.holdAt("$JS.API.STREAM.MSG.GET." + cfg.Stream)
	w.create(w.app("one"))
	reached(t, "the second reads the last event of the app", reads)
	w.waitFor(0, "created zero", "created one")
	gate.release()
	eventually(t, "the second finds the event of the other one", func() error {
		if late.metricOf("appbridge_resyncs_total", "cause", "other_writer") == 0 {
			return errNotYet
		}
		return late.bridge.Ready()
	})
	w.create(w.app("two"))
	events := w.waitFor(0, "created zero", "created one", "created two")
	must[any](t)(nil, late.stop())
	w.endsAt(events[2].sequence)
	w.checkHeaders(events)
	w.converged(events)
}

// With election one publishes and the other stands by, and takes over at once
// when the first leaves.
func TestLeaderElection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.LeaderElect, cfg.LeaseNamespace, cfg.LeaseName = true, w.namespace, "appbridge"
	cfg.Identity = "first"
	first := w.start(cfg)
	cfg.Identity = "second"
	second := w.start(cfg)
	if got := second.metric("appbridge_leader"); got != 0 {
		t.Error("the second leads as well")
	}
	w.create(w.app("one"))
	w.waitFor(0, "created one")
	if err := first.stop(); err != nil {
		t.Error(err)
	}
	w.create(w.app("two"))
	events := w.waitFor(0, "created one", "created two")
	if got := second.metric("appbridge_leader"); got != 1 {
		t.Error("the second does not lead")
	}
	if got := second.metric("appbridge_fence_conflicts_total"); got != 0 {
		t.Errorf("%v fence conflicts", got)
	}
	w.checkHeaders(events)
}

// A change of encoding rewrites the bucket and publishes nothing.
func TestEncodingChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	svc := w.create(w.app("one"))
	must[*servingv1.Service](t)(w.Ready(t.Context(), svc, "", 0))
	w.waitFor(0, "created one", "updated one")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	id := w.app("one").ID()
	json := w.entries()[id]

	cfg.Encoding = bridge.EncodingProtobuf
	r = w.start(cfg)
	eventually(t, "the bucket is rewritten", func() error {
		entry := w.entries()[id]
		if got := entry.Header.Get(subjects.CEDataContentType); got != subjects.ContentTypeProtobuf {
			return errors.New(got)
		}
		app := &appv1.App{}
		if err := proto.Unmarshal(entry.Data, app); err != nil {
			return fmt.Errorf("%w: %w", errFatal, err)
		}
		for _, name := range []string{subjects.HeaderEventSequence, subjects.CEID, subjects.HeaderUID} {
			if entry.Header.Get(name) != json.Header.Get(name) {
				return fmt.Errorf("%w: header %s changed", errFatal, name)
			}
		}
		return nil
	})
	if got := w.lastSequence(); got != 2 {
		t.Errorf("the stream ends at %d, want 2", got)
	}
	must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
	events := w.waitFor(2, "updated one")
	if got := events[0].header(subjects.CEDataContentType); got != subjects.ContentTypeProtobuf {
		t.Errorf("the new event is %s", got)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// A changed base domain gives every app another URL: an update each.
func TestBaseDomainChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	w.create(w.app("one"))
	w.waitFor(0, "created one")
	must[any](t)(nil, r.stop())
	cfg.App.BaseDomain = "apps.example.org"
	w.start(cfg)
	events := w.waitFor(1, "updated one")
	if got := events[0].app().GetStatus().GetIngress().GetPublicUrl(); !strings.HasSuffix(got, ".apps.example.org") {
		t.Errorf("URL %q", got)
	}
	if events[0].header(subjects.HeaderSynthesized) != "true" {
		t.Error("it is not marked as synthesized")
	}
}

// Apps of a namespace that is no longer watched are left as they are.
func TestNamespaceDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	svc := w.create(w.app("one"))
	must[*servingv1.Service](t)(w.StopApp(t.Context(), svc)) // a stopped App does not carry its namespace
	w.waitFor(0, "created one", "updated one")
	must[any](t)(nil, r.stop())
	cfg.Namespaces = []string{"default"}
	must[any](t)(nil, w.start(cfg).stop())
	if got := w.lastSequence(); got != 2 {
		t.Errorf("dropping a namespace published %v", w.events(2))
	}
}

// What only an operator can fix ends the bridge with one line that names the
// object and what to do.
func TestRefuses(t *testing.T) {
	t.Parallel()
	stream := func(change func(*jetstream.StreamConfig)) func(*world) {
		return func(w *world) {
			cfg := jetstream.StreamConfig{Name: subjects.DefaultStream, Subjects: []string{"flyte.apps.events.>"}, Storage: jetstream.FileStorage}
			change(&cfg)
			must[jetstream.Stream](w.t)(w.js.CreateStream(w.t.Context(), cfg))
		}
	}
	otherCluster := map[string]string{subjects.MetadataClusterUID: "0000", subjects.MetadataClusterName: "prod"}
	for _, test := range []struct {
		name    string
		prepare func(*world)
		want    []string
	}{
		{
			"a stream with other subjects", stream(func(c *jetstream.StreamConfig) { c.Subjects = []string{"orders.>"} }),
			[]string{`stream "FLYTE_APPS"`, "orders.>", "flyte.apps.events.>", "--stream"},
		},
		{
			"another stream with our subjects", stream(func(c *jetstream.StreamConfig) { c.Name = "MINE" }),
			[]string{`prefix "flyte.apps"`, "flyte.apps.events.>", "--prefix"},
		},
		{
			"another cluster's stream", stream(func(c *jetstream.StreamConfig) { c.Metadata = otherCluster }),
			[]string{`stream "FLYTE_APPS"`, `"prod"`, "uid 0000", "--accept-reset"},
		},
		{
			"memory storage", stream(func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }),
			[]string{`stream "FLYTE_APPS"`, "storage memory", "--allow-unsafe-stream"},
		},
		{
			"a limit per subject", stream(func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 }),
			[]string{"max_msgs_per_subject 1"},
		},
		{
			"a work queue", stream(func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }),
			[]string{"retention"},
		},
		{
			"no acknowledgements", stream(func(c *jetstream.StreamConfig) { c.NoAck = true }),
			[]string{"no_ack"},
		},
		{"a bucket with a TTL", func(w *world) {
			must[jetstream.KeyValue](w.t)(w.js.CreateKeyValue(w.t.Context(), jetstream.KeyValueConfig{Bucket: subjects.DefaultBucket, TTL: time.Hour}))
		}, []string{`bucket "flyte-apps"`, "max_age 1h0m0s"}},
		{"a bucket with a limit on its values", func(w *world) {
			must[jetstream.KeyValue](w.t)(w.js.CreateKeyValue(w.t.Context(), jetstream.KeyValueConfig{Bucket: subjects.DefaultBucket, MaxValueSize: 8192}))
		}, []string{`bucket "flyte-apps"`, "max_msg_size 8192"}},
		{"a bucket of another history", func(w *world) {
			cfg := w.config()
			r := w.start(cfg)
			w.create(w.app("one"))
			w.waitFor(0, "created one")
			must[any](w.t)(nil, r.stop())
			must[any](w.t)(nil, w.js.DeleteStream(w.t.Context(), cfg.Stream))
			stream(func(c *jetstream.StreamConfig) {})(w)
		}, []string{`bucket "flyte-apps"`, "reflects sequence 1", "ends at 0", "nats kv del flyte-apps"}},
		{"a history before what was published", func(w *world) {
			cfg := w.config()
			r := w.start(cfg)
			w.create(w.app("one"))
			w.waitFor(0, "created one")
			must[any](w.t)(nil, r.stop())
			// What a restored etcd looks like: the published version is ahead.
			old := w.entries()[w.app("one").ID()]
			h := old.Header
			h.Set(subjects.HeaderResourceVersion, "99999999999")
			h.Del(subjects.HeaderExpectedLastSequence)
			must[*jetstream.PubAck](w.t)(w.js.PublishMsg(w.t.Context(), &nats.Msg{Subject: old.Subject, Header: h, Data: old.Data}))
		}, []string{"history is older", "vision/development/one", "--accept-reset"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			test.prepare(w)
			err := w.launch(w.config(), nil).ended()
			if err == nil {
				t.Fatal("it goes on")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is more than a line", err)
			}
		})
	}
}

// A cluster that was rebuilt under its old name is accepted when told so.
func TestAcceptReset(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must[jetstream.Stream](t)(w.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: subjects.DefaultStream, Subjects: []string{"flyte.apps.events.>"}, Storage: jetstream.FileStorage,
		Metadata: map[string]string{subjects.MetadataClusterUID: "0000", subjects.MetadataClusterName: "test"},
	}))
	cfg := w.config()
	cfg.AcceptReset = true
	w.create(w.app("one"))
	must[any](t)(nil, w.start(cfg).stop())
	cfg.AcceptReset = false
	must[any](t)(nil, w.start(cfg).stop())
	w.waitFor(0, "created one")
}

func TestKubernetesTrouble(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Run("not up yet", func(t *testing.T) {
		r := w.launch(w.config(), &rest.Config{Host: "https://127.0.0.1:1"})
		eventually(t, "it says what it waits for", func() error {
			if err := r.bridge.Ready(); err == nil || !strings.Contains(err.Error(), "waiting for Kubernetes: kubernetes is not reachable") {
				return fmt.Errorf("ready says %w", errors.Join(err))
			}
			return nil
		})
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	t.Run("no credentials", func(t *testing.T) {
		kube := rest.AnonymousClientConfig(w.Config)
		kube.BearerToken = "nobody"
		err := w.launch(w.config(), kube).ended()
		if err == nil || !strings.Contains(err.Error(), "does not accept the credentials of --kubeconfig") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no rights", func(t *testing.T) {
		kube := must[*rest.Config](t)(w.User("mallory"))
		err := w.launch(w.config(), kube).ended()
		if err == nil || !strings.Contains(err.Error(), "serving.knative.dev in namespace "+w.namespace+": grant it by RBAC") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no CRDs", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		bare := must[*testenv.Cluster](t)(testenv.Start(ctx, testenv.Options{NoCRDs: true}))
		defer func() {
			if err := bare.Stop(); err != nil {
				t.Error(err)
			}
		}()
		err := w.launch(w.config(), rest.CopyConfig(bare.Config)).ended()
		if err == nil || !strings.Contains(err.Error(), "serving.knative.dev/v1: install the CRDs of Knative Serving") {
			t.Errorf("got %v", err)
		}
	})
}

// Past the hard limit the waiting changes are dropped, said so, and found
// again by comparing once NATS is back.
func TestOverflow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	cfg.PendingBytes = 4 << 10
	r := w.start(cfg)
	kept := w.create(w.app("kept"))
	w.waitFor(0, "created kept")
	port := w.port()
	w.server.Shutdown()
	w.server.WaitForShutdown()
	want := []string{"created kept", "updated kept"}
	for i := range 20 {
		name := fmt.Sprintf("app-%02d", i)
		svc := w.create(w.app(name))
		must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
		want = append(want, "created "+name)
	}
	must[*servingv1.Service](t)(w.Progressing(t.Context(), kept))
	eventually(t, "the limit is passed", func() error {
		if r.logs.FilterField(zap.String("cause", "overflow")).Len() == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	w.startNATS(port)
	r.waitReady()
	events := w.waitFor(0, want...)
	w.checkHeaders(events)
	for _, e := range events[1:] {
		if e.header(subjects.HeaderSynthesized) != "true" {
			t.Errorf("%s %s was found by comparing and does not say so", e.kind, e.id)
		}
	}
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
}

// An API server that goes away is told in log and metrics, and its return
// brings no event but those of what changed.
func TestAPIServerRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := must[*testenv.Cluster](t)(testenv.Start(t.Context(), testenv.Options{Namespaces: []string{w.namespace}}))
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	w.Cluster = own
	cfg := w.config()
	r := w.start(cfg)
	svc := w.create(w.app("one"))
	w.create(w.app("two"))
	w.waitFor(0, "created one", "created two")
	reachable := func(want float64) {
		t.Helper()
		eventually(t, fmt.Sprintf("kubernetes_reachable is %v", want), func() error {
			if got := r.metric("appbridge_kubernetes_reachable"); got != want {
				return fmt.Errorf("it is %v", got)
			}
			return nil
		})
	}
	reachable(1)
	must[any](t)(nil, own.StopAPIServer(t.Context()))
	reachable(0)
	must[any](t)(nil, own.StartAPIServer(t.Context()))
	must[*servingv1.Service](t)(w.Progressing(t.Context(), svc))
	reachable(1)
	w.waitFor(2, "updated one")
	for _, message := range []string{"Kubernetes is unavailable; its changes are read once it is back", "Kubernetes is available again"} {
		if r.logs.FilterMessage(message).Len() == 0 {
			t.Errorf("the log does not say %q", message)
		}
	}
	must[any](t)(nil, r.stop())
	all := w.events(0)
	w.checkHeaders(all)
	if err := w.bucketDrift(cfg.App, all); err != nil {
		t.Error(err)
	}
}
