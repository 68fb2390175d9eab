package e2e_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// quick is enough where no bridge runs.
const quick = 50 * time.Millisecond

// verify compares; what it says can be checked, whatever it is.
func (w *world) verify(cfg bridge.Config, opts audit.Options) (*audit.Report, error) {
	w.t.Helper()
	log := zap.NewNop()
	nc := must[*nats.Conn](w.t)(nats.Connect(w.server.ClientURL(), append(natsconn.Options("verify", log), nats.Timeout(patience))...))
	defer nc.Close()
	eventually(w.t, "connected", func() error {
		if !nc.IsConnected() {
			return errors.New("not yet")
		}
		return nil
	})
	if opts.Timeout == 0 {
		opts.Timeout = patience
	}
	kube := rest.CopyConfig(w.Config)
	kube.QPS = -1
	return bridge.Verify(w.t.Context(), cfg, kube, nc, log, opts)
}

// holdings is everything that Verify must leave alone.
func (w *world) holdings(cfg bridge.Config) map[string]string {
	w.t.Helper()
	all := map[string]string{}
	for _, name := range []string{cfg.Stream, subjects.BucketStream(cfg.Bucket)} {
		stream, err := w.js.Stream(w.t.Context(), name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			all[name] = "none"
			continue
		}
		if err != nil {
			w.t.Fatal(err)
		}
		info := must[*jetstream.StreamInfo](w.t)(stream.Info(w.t.Context(), jetstream.WithSubjectFilter(">")))
		all[name] = fmt.Sprint(info.Created, info.Config, info.State.Msgs, info.State.FirstSeq, info.State.LastSeq, info.State.Consumers)
		for subject := range info.State.Subjects {
			all[subject] = strconv.FormatUint(must[*jetstream.RawStreamMsg](w.t)(stream.GetLastMsgForSubject(w.t.Context(), subject)).Sequence, 10)
		}
	}
	return all
}

// kinds are the differences of a report as "app kind", sorted.
func kinds(report *audit.Report) []string {
	found := []string{}
	for _, d := range report.Differences {
		name := d.Key
		if d.App != nil {
			name = d.App.Name
		}
		found = append(found, strings.TrimSpace(name+" "+string(d.Kind)))
	}
	slices.Sort(found)
	return found
}

// findsNothing fails unless there is no difference.
func (w *world) findsNothing(cfg bridge.Config, confirmFor time.Duration) *audit.Report {
	w.t.Helper()
	report, err := w.verify(cfg, audit.Options{ConfirmFor: confirmFor})
	if err != nil || len(report.Differences) > 0 {
		w.t.Fatalf("got %v, %v", report.Differences, err)
	}
	return report
}

// finds fails unless the differences are want, and nothing was changed.
func (w *world) finds(cfg bridge.Config, want ...string) *audit.Report {
	w.t.Helper()
	before := w.holdings(cfg)
	report, err := w.verify(cfg, audit.Options{ConfirmFor: quick})
	if err != nil {
		w.t.Fatal(err)
	}
	slices.Sort(want)
	if got := kinds(report); !slices.Equal(got, want) {
		w.t.Errorf("got %q, want %q\n%v", got, want, report.Differences)
	}
	if after := w.holdings(cfg); !maps.Equal(before, after) {
		w.t.Errorf("the comparison changed something: from %v\nto %v", before, after)
	}
	return report
}

// repair fails unless nothing is left to repair, and everything is alone that
// is not about the given keys. It returns what was published.
func (w *world) repair(cfg bridge.Config, keys ...string) []string {
	w.t.Helper()
	before, end := w.holdings(cfg), w.lastSequence()
	var repairs []audit.Repair
	report, err := w.verify(cfg, audit.Options{ConfirmFor: quick, Repair: true, Repaired: func(r audit.Repair) { repairs = append(repairs, r) }})
	if err != nil || len(report.Differences) > 0 {
		w.t.Fatalf("after the repair: %v, %v", report.Differences, err)
	}
	if report.Repaired == 0 || len(repairs) != report.Repaired || len(report.Repairs) != report.Repaired {
		w.t.Errorf("%d repairs, made %v, reported %v", report.Repaired, repairs, report.Repairs)
	}
	for _, r := range report.Repairs {
		w.t.Log(r)
	}
	after := w.holdings(cfg)
	for subject, sequence := range before {
		key, err := subjects.ParseBucketSubject(cfg.Bucket, subject)
		if err == nil && !slices.Contains(keys, key) && after[subject] != sequence {
			w.t.Errorf("%s was right and is written anew", subject)
		}
	}
	var published []string
	for _, e := range w.events(end) {
		if e.header(subjects.HeaderSynthesized) != subjects.FlagTrue {
			w.t.Errorf("%s is not marked", e)
		}
		published = append(published, fmt.Sprintf("%s %s", e.kind, e.id.Name))
	}
	return published
}

// plantEntry puts a message into the bucket, whatever it says.
func (w *world) plantEntry(cfg bridge.Config, key string, h nats.Header, data []byte) {
	w.t.Helper()
	h = maps.Clone(h)
	maps.DeleteFunc(h, func(name string, _ []string) bool { return strings.HasPrefix(name, "Nats-") })
	must[*jetstream.PubAck](w.t)(w.js.PublishMsg(w.t.Context(), &nats.Msg{Subject: subjects.BucketSubject(cfg.Bucket, key), Header: h, Data: data}))
}

// TestVerifyRepairs plants each difference by hand, finds it, repairs it, and
// sees that nothing else was touched.
func TestVerifyRepairs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	one := w.create(w.app("one"))
	w.create(w.app("two"))
	gone := w.create(w.app("gone"))
	ready := w.create(w.app("ready"))
	w.waitFor(0, "created one", "created two", "created gone", "created ready")
	must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
	must[any](t)(nil, w.Client.Delete(t.Context(), gone))
	must[*servingv1.Service](t)(w.Ready(t.Context(), ready, "ready-00001", 2))
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
	w.findsNothing(cfg, 30*time.Second) // the replicas of ready may come later than its state
	must[any](t)(nil, r.stop())
	if got := w.findsNothing(cfg, 0); got.Apps != 4 || got.Sequence != w.lastSequence() || len(got.Notes) != 0 {
		t.Errorf("got %+v", got)
	}

	kv := must[jetstream.KeyValue](t)(w.js.KeyValue(t.Context(), cfg.Bucket))
	bucket := must[jetstream.Stream](t)(w.js.Stream(t.Context(), subjects.BucketStream(cfg.Bucket)))
	key := func(name string) string { return "vision.development." + name }
	purge := func(name string) {
		must[any](t)(nil, bucket.Purge(t.Context(), jetstream.WithPurgeSubject(subjects.BucketSubject(cfg.Bucket, key(name)))))
	}
	entry := func(name string) (nats.Header, []byte) {
		msg := must[*jetstream.RawStreamMsg](t)(bucket.GetLastMsgForSubject(t.Context(), subjects.BucketSubject(cfg.Bucket, key(name))))
		return maps.Clone(msg.Header), msg.Data
	}
	// first is the entry that the first event of an app led to.
	first := func(name string) (nats.Header, []byte) {
		for _, e := range w.events(0) {
			if e.id.Name == name {
				h := maps.Clone(e.msg.Header)
				h.Set(subjects.HeaderEventSequence, strconv.FormatUint(e.sequence, 10))
				return h, must[[]byte](t)(protojson.Marshal(e.app()))
			}
		}
		t.Fatalf("%s has no event", name)
		return nil, nil
	}
	set := func(name, header, value string) {
		h, data := entry(name)
		h.Set(header, value)
		w.plantEntry(cfg, key(name), h, data)
	}
	for _, test := range []struct {
		kind      plan.Kind
		app       string
		plant     func()
		published []string
	}{
		{plan.MissingEntry, "two", func() { purge("two") }, nil},
		{plan.MissingMarker, "gone", func() { purge("gone") }, nil},
		{plan.EntryForMarker, "gone", func() { h, data := first("gone"); w.plantEntry(cfg, key("gone"), h, data) }, nil},
		{plan.MarkerForEntry, "one", func() { must[any](t)(nil, kv.Delete(t.Context(), key("one"))) }, nil},
		{plan.BucketBehind, "one", func() { h, data := first("one"); w.plantEntry(cfg, key("one"), h, data) }, nil},
		{plan.BucketAhead, "two", func() { set("two", subjects.HeaderEventSequence, fmt.Sprint(w.lastSequence())) }, nil},
		{plan.BucketVersion, "two", func() { set("two", subjects.HeaderResourceVersion, "1") }, nil},
		{plan.BucketApp, "ready", func() {
			h, data := entry("ready")
			app := &appv1.App{}
			must[any](t)(nil, protojson.Unmarshal(data, app))
			app.Status.CurrentReplicas = 7
			w.plantEntry(cfg, key("ready"), h, must[[]byte](t)(protojson.Marshal(app)))
		}, nil},
		{plan.BucketHeaders, "two", func() { set("two", subjects.CETime, "2026-01-01T00:00:00Z") }, nil},
		{plan.BucketHeaders, "two", func() { set("two", subjects.HeaderSynthesized, "true") }, nil},
		{plan.BucketEncoding, "one", func() {
			h, data := entry("one")
			app := &appv1.App{}
			must[any](t)(nil, protojson.Unmarshal(data, app))
			h.Set(subjects.CEDataContentType, subjects.ContentTypeProtobuf)
			w.plantEntry(cfg, key("one"), h, must[[]byte](t)(proto.Marshal(app)))
		}, nil},
		{plan.DamagedEntry, "one", func() { must[uint64](t)(kv.Put(t.Context(), key("one"), []byte("hello"))) }, nil},
		{plan.DamagedEntry, "ghost", func() { must[uint64](t)(kv.Put(t.Context(), key("ghost"), []byte("hello"))) }, nil},
		{plan.MissingEvent, "new", func() { w.create(w.app("new")) }, []string{"created new"}},
		{plan.OtherVersion, "two", func() {
			svc := &servingv1.Service{}
			must[any](t)(nil, w.Client.Get(t.Context(), w.key("two"), svc))
			must[*servingv1.Service](t)(w.Failed(t.Context(), svc, "Broken", "it is"))
		}, []string{"updated two"}},
		{plan.OtherApp, "ready", func() { must[any](t)(w.Scale(t.Context(), ready, 3)) }, []string{"updated ready"}},
		{plan.OtherUID, "two", func() {
			svc := &servingv1.Service{}
			must[any](t)(nil, w.Client.Get(t.Context(), w.key("two"), svc))
			must[any](t)(nil, w.Client.Delete(t.Context(), svc))
			w.create(w.app("two"))
		}, []string{"deleted two", "created two"}},
		{plan.MissingDelete, "one", func() { must[any](t)(nil, w.Client.Delete(t.Context(), one)) }, []string{"deleted one"}},
	} {
		t.Run(string(test.kind)+" "+test.app, func(t *testing.T) {
			w := *w
			w.t = t
			test.plant()
			report := w.finds(cfg, test.app+" "+string(test.kind))
			for _, d := range report.Differences {
				t.Log(d)
			}
			if got := w.repair(cfg, key(test.app)); !slices.Equal(got, test.published) {
				t.Errorf("published %q, want %q", got, test.published)
			}
			w.findsNothing(cfg, 0)
		})
	}
	t.Run("foreign keys", func(t *testing.T) {
		w := *w
		w.t = t
		must[uint64](t)(kv.Put(t.Context(), "x", []byte("hello")))
		must[uint64](t)(kv.Put(t.Context(), "a.b.c.d", []byte("hello")))
		w.finds(cfg, "x foreign_key", "a.b.c.d foreign_key")
		if got := w.repair(cfg, "x", "a.b.c.d"); len(got) > 0 {
			t.Errorf("published %v", got)
		}
	})
	t.Run("several at once", func(t *testing.T) {
		w := *w
		w.t = t
		purge("two")
		purge("gone")
		w.create(w.app("more"))
		must[*servingv1.Service](t)(w.Progressing(t.Context(), ready))
		w.finds(cfg, "two missing_entry", "gone missing_marker", "more missing_event", "ready other_version")
		got := w.repair(cfg, key("two"), key("gone"), key("more"), key("ready"))
		slices.Sort(got)
		if want := []string{"created more", "updated ready"}; !slices.Equal(got, want) {
			t.Errorf("published %q, want %q", got, want)
		}
		w.checkHeaders(w.events(0))
	})
	t.Run("an event that the stream lost", func(t *testing.T) {
		w := *w
		w.t = t
		stream := must[jetstream.Stream](t)(w.js.Stream(t.Context(), cfg.Stream))
		events := w.events(0)
		last := events[slices.IndexFunc(events, func(e stored) bool { return e.id.Name == "ready" && e.sequence == w.lastOf("ready") })]
		must[any](t)(nil, stream.DeleteMsg(t.Context(), last.sequence))
		// Within the duplicate window the server would take the very same event
		// for one that it has.
		must[*servingv1.Service](t)(w.Failed(t.Context(), ready, "Broken", "it is"))
		w.finds(cfg, "ready bucket_ahead", "ready other_version")
		report, err := w.verify(cfg, audit.Options{ConfirmFor: quick, Repair: true})
		if err != nil || len(report.Differences) > 0 {
			t.Fatalf("after the repair: %v, %v", report.Differences, err)
		}
		if got := w.lastOf("ready"); got <= last.sequence {
			t.Errorf("the app's last event is at %d", got)
		}
	})
}

// TestVerifyRemovedEvent: an app whose only event was removed by hand is not one that retention has passed.
// The entry says so.
func TestVerifyRemovedEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	for i, name := range []string{"old", "one", "two"} {
		w.create(w.app(name))
		w.waitFor(uint64(i), "created "+name)
	}
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
	must[any](t)(nil, r.stop())
	stream := must[jetstream.Stream](t)(w.js.Stream(t.Context(), cfg.Stream))
	must[any](t)(nil, stream.Purge(t.Context(), jetstream.WithPurgeSequence(2)))
	w.findsNothing(cfg, 0)
	must[any](t)(nil, stream.DeleteMsg(t.Context(), w.lastOf("two")))
	report, err := w.verify(cfg, audit.Options{ConfirmFor: quick})
	if got := kinds(report); err != nil || !slices.Equal(got, []string{"two removed_event"}) {
		t.Errorf("got %v, %v", report.Differences, err)
	}
	report, err = w.verify(cfg, audit.Options{ConfirmFor: quick, Repair: true})
	if err != nil || len(report.Differences) > 0 || report.Repaired != 1 {
		t.Errorf("after the repair: %v, %v, %v", report.Differences, report.Repairs, err)
	}
	if got := w.lastOf("two"); got != 4 || w.lastSequence() != got {
		t.Errorf("the app's last event is at %d, the stream ends at %d", got, w.lastSequence())
	}
	w.findsNothing(cfg, 0)
}

// TestVerifyMissingStorage: a stream or bucket that is gone is found, not made
// without being told to, and made anew with what there is.
func TestVerifyMissingStorage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	w.create(w.app("one"))
	gone := w.create(w.app("gone"))
	w.finds(cfg, "stream_missing", "bucket_missing", "gone missing_event", "one missing_event")
	report, err := w.verify(cfg, audit.Options{ConfirmFor: quick, Repair: true})
	if err != nil || len(report.Differences) > 0 {
		t.Fatalf("after the repair: %v, %v", report.Differences, err)
	}
	w.waitFor(0, "created one", "created gone")
	must[any](t)(nil, w.Client.Delete(t.Context(), gone))
	w.finds(cfg, "gone missing_deleted")
	if got := w.repair(cfg, "vision.development.gone"); !slices.Equal(got, []string{"deleted gone"}) {
		t.Errorf("published %q", got)
	}

	must[any](t)(nil, w.js.DeleteKeyValue(t.Context(), cfg.Bucket))
	w.finds(cfg, "bucket_missing")
	if got := w.repair(cfg); len(got) > 0 {
		t.Errorf("published %q for a bucket that is gone", got)
	}
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })

	must[any](t)(nil, w.js.DeleteStream(t.Context(), cfg.Stream))
	w.create(w.app("two"))
	w.finds(cfg, "stream_missing", "two missing_event")
	report, err = w.verify(cfg, audit.Options{ConfirmFor: quick, Repair: true})
	if err != nil || len(report.Differences) > 0 {
		t.Fatalf("after the repair: %v, %v", report.Differences, err)
	}
	w.waitFor(0, "created two")
	if got := w.lastSequence(); got != 4 {
		t.Errorf("the stream goes on at %d, want 4", got)
	}
	w.findsNothing(cfg, 0)
}

// TestVerifyBucketBehind: what the bucket does not reflect yet is written in
// the order of the stream.
func TestVerifyBucketBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	services := map[string]*servingv1.Service{}
	for _, name := range []string{"a", "b", "c"} {
		services[name] = w.create(w.app(name))
	}
	w.waitFor(0, "created a", "created b", "created c")
	eventually(t, "bucket equals cluster", func() error { return w.bucketDrift(cfg.App, w.events(0)) })
	before := w.entries()
	for _, name := range []string{"c", "a"} {
		must[*servingv1.Service](t)(w.Progressing(t.Context(), services[name]))
	}
	must[any](t)(nil, w.Client.Delete(t.Context(), services["b"]))
	w.waitFor(3, "updated a", "updated c", "deleted b")
	must[any](t)(nil, r.stop())
	// As if nothing had been written since, and one entry were lost too.
	must[any](t)(nil, must[jetstream.Stream](t)(w.js.Stream(t.Context(), subjects.BucketStream(cfg.Bucket))).Purge(t.Context()))
	for id, msg := range before {
		if id.Name != "a" {
			w.plantEntry(cfg, "vision.development."+id.Name, msg.Header, msg.Data)
		}
	}
	w.finds(cfg, "a missing_entry", "b entry_for_marker", "c bucket_behind")
	if got := w.repair(cfg, "vision.development.a", "vision.development.b", "vision.development.c"); len(got) > 0 {
		t.Errorf("published %v", got)
	}
	sequences := map[uint64]uint64{}
	for _, msg := range w.entries() {
		sequences[msg.Sequence] = must[uint64](t)(strconv.ParseUint(msg.Header.Get(subjects.HeaderEventSequence), 10, 64))
	}
	var last uint64
	for _, stored := range slices.Sorted(maps.Keys(sequences)) {
		if sequences[stored] < last {
			t.Errorf("the bucket reflects %d after %d", sequences[stored], last)
		}
		last = sequences[stored]
	}
}

// TestVerifyBaseDomain: in a stream of an older version, which has no shape, another configuration
// makes every live app differ, and a repair publishes it.
func TestVerifyBaseDomain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	gone := w.create(w.app("gone"))
	w.create(w.app("one"))
	w.waitFor(0, "created one", "created gone")
	must[any](t)(nil, w.Client.Delete(t.Context(), gone))
	w.waitFor(0, "created one", "created gone", "deleted gone")
	must[any](t)(nil, r.stop())
	w.findsNothing(cfg, 0)
	w.changeStream(cfg.Stream, func(c *jetstream.StreamConfig) {
		delete(c.Metadata, subjects.MetadataShape)
		delete(c.Metadata, subjects.MetadataShapeOf)
	})
	cfg.App.BaseDomain = "example.org"
	report := w.finds(cfg, "one other_app")
	if got := fmt.Sprint(report.Differences); !strings.Contains(got, "URL") || !strings.Contains(got, "example.org") {
		t.Errorf("got %s", got)
	}
	if got := w.repair(cfg, "vision.development.one"); !slices.Equal(got, []string{"updated one"}) {
		t.Errorf("published %q", got)
	}
}

// TestVerifyNotes: what is no difference is said all the same.
func TestVerifyNotes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	one := w.create(w.app("one"))
	w.create(w.app("two"))
	w.waitFor(0, "created one", "created two")
	must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
	w.waitFor(0, "created one", "created two", "updated one")
	w.create(testenv.App{Project: "vision", Domain: "", Name: "empty", Namespace: w.namespace, ObjectName: "empty"})
	twin := w.app("one")
	twin.ObjectName = "twin"
	w.create(twin)
	// A foreign message as an app's last one, and one that is no app's.
	must[*jetstream.PubAck](t)(w.js.Publish(t.Context(), "flyte.apps.events.vision.development.one.updated", []byte("hello")))
	must[*jetstream.PubAck](t)(w.js.Publish(t.Context(), "flyte.apps.events.hello", []byte("hello")))
	must[any](t)(nil, r.stop())
	stream := must[jetstream.Stream](t)(w.js.Stream(t.Context(), cfg.Stream))
	// Retention takes an event; the bucket still agrees with the cluster.
	must[any](t)(nil, stream.Purge(t.Context(), jetstream.WithPurgeSequence(w.lastOf("two")+1)))
	report := w.findsNothing(cfg, 0)
	text := fmt.Sprint(report.Notes)
	for _, want := range []string{
		"Knative Service " + w.namespace + "/empty is skipped", "Knative Service " + w.namespace + "/twin is skipped",
		"sequence 4", "sequence 5, subject flyte.apps.events.hello",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the notes lack %q: %s", want, text)
		}
	}
	if got := len(report.Notes); got != 4 {
		t.Errorf("got %d notes: %s", got, text)
	}
	// A lost entry behind a foreign message.
	bucket := must[jetstream.Stream](t)(w.js.Stream(t.Context(), subjects.BucketStream(cfg.Bucket)))
	must[any](t)(nil, bucket.Purge(t.Context(), jetstream.WithPurgeSubject(subjects.BucketSubject(cfg.Bucket, "vision.development.one"))))
	w.finds(cfg, "one missing_entry")
	end := w.lastSequence()
	if report, err := w.verify(cfg, audit.Options{ConfirmFor: quick, Repair: true}); err != nil || len(report.Differences) > 0 || w.lastSequence() != end {
		t.Errorf("after the repair: %v, %v, the stream ends at %d", report.Differences, err, w.lastSequence())
	}

	must[any](t)(nil, w.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}}))
	cfg.Namespaces = []string{"elsewhere"}
	report = w.findsNothing(cfg, 0)
	if text := fmt.Sprint(report.Notes); !strings.Contains(text, "left alone: its namespace "+w.namespace+" is not watched") {
		t.Errorf("got %s", text)
	}
	if report, err := w.verify(cfg, audit.Options{Repair: true}); err != nil || report.Repaired > 0 || w.lastSequence() != end {
		t.Errorf("got %+v, %v", report, err)
	}
}

// TestVerifyRefuses: what an operator has to decide is reported and left alone.
func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	must[jetstream.Stream](t)(w.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: cfg.Stream, Subjects: []string{"flyte.apps.events.>"}, Storage: jetstream.FileStorage, Duplicates: time.Second,
	}))
	r := w.start(cfg)
	w.create(w.app("one"))
	w.create(w.app("two"))
	w.waitFor(0, "created one", "created two")
	must[any](t)(nil, r.stop())
	w.create(w.app("three")) // would be published
	stream := must[jetstream.Stream](t)(w.js.Stream(t.Context(), cfg.Stream))
	original := stream.CachedInfo().Config
	one := w.entries()[w.app("one").ID()]
	refused := func(want ...string) {
		t.Helper()
		report := w.finds(cfg, want...)
		t.Log(report.Differences)
		before := w.holdings(cfg)
		report, err := w.verify(cfg, audit.Options{ConfirmFor: quick, Repair: true})
		if err == nil || !strings.Contains(err.Error(), "nothing is repaired, since this is for an operator to decide") || len(report.Differences) != len(want) {
			t.Errorf("got %v, %v", report.Differences, err)
		}
		if after := w.holdings(cfg); !maps.Equal(before, after) {
			t.Errorf("the refused repair changed something: from %v\nto %v", before, after)
		}
	}
	change := func(edit func(*jetstream.StreamConfig)) {
		c := original
		c.Metadata = maps.Clone(c.Metadata)
		edit(&c)
		must[jetstream.Stream](t)(w.js.UpdateStream(t.Context(), c))
	}
	change(func(c *jetstream.StreamConfig) { c.Metadata[subjects.MetadataClusterUID] = "another" })
	refused("other_cluster")
	change(func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 })
	refused("unfit")
	change(func(*jetstream.StreamConfig) {})

	h := maps.Clone(one.Header)
	h.Set(subjects.HeaderResourceVersion, "99999999999")
	must[any](t)(nil, stream.Purge(t.Context(), jetstream.WithPurgeSubject("flyte.apps.events.vision.development.one.*")))
	w.plantEntry(cfg, "vision.development.one", h, one.Data)
	refused("history", "one other_version", "three missing_event")

	h = maps.Clone(one.Header)
	h.Set(subjects.HeaderEventSequence, "1000")
	w.plantEntry(cfg, "vision.development.one", h, one.Data)
	refused("one bucket_ahead", "three missing_event")

	// One that the stream has another event for is purged; the app is published.
	h.Set(subjects.HeaderEventSequence, "2")
	h.Set(subjects.CEID, "nothing")
	w.plantEntry(cfg, "vision.development.one", h, one.Data)
	w.finds(cfg, "one bucket_other_event", "three missing_event")
	got := w.repair(cfg, "vision.development.one", "vision.development.three")
	slices.Sort(got)
	if want := []string{"created one", "created three"}; !slices.Equal(got, want) {
		t.Errorf("published %q, want %q", got, want)
	}
}

// lastOf is the sequence of an app's last event.
func (w *world) lastOf(name string) uint64 {
	w.t.Helper()
	stream := must[jetstream.Stream](w.t)(w.js.Stream(w.t.Context(), subjects.DefaultStream))
	s := must[subjects.Subjects](w.t)(subjects.New(subjects.DefaultPrefix))
	filter := must[string](w.t)(s.EventFilter(w.app(name).ID()))
	return must[*jetstream.RawStreamMsg](w.t)(stream.GetLastMsgForSubject(w.t.Context(), filter)).Sequence
}

// key is where the Knative Service of an app is.
func (w *world) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: w.namespace, Name: kservice.Name(w.app(name).ID())}
}
