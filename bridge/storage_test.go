package bridge

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

func testMetrics() *metrics { return newMetrics(prometheus.NewRegistry()) }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testCluster is the uid of the cluster of a rig.
const testCluster = "c1"

// rig is a stage with the bucket.
type rig struct {
	*stage
	cfg     Config
	storage *store.Storage
	bucket  *store.Bucket
	metrics *metrics
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOn(t, connectTo(t, testServer(t)), 1, func(_ string, op func() error) {
		t.Helper()
		if err := op(); err != nil {
			t.Fatal(err)
		}
	})
}

// connectTo is a connection, as a bridge makes it, until the test is over.
func connectTo(t *testing.T, urls ...string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(strings.Join(urls, ","), natsconn.Options("test", zap.NewNop())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// newRigOn makes the stream and the bucket. try runs what may have to wait for the servers.
func newRigOn(t *testing.T, nc *nats.Conn, replicas int, try func(what string, op func() error)) *rig {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	e := testEncoder()
	cfg := Config{
		ClusterName: "test", Prefix: subjects.DefaultPrefix, Stream: subjects.DefaultStream, Bucket: subjects.DefaultBucket,
		StreamReplicas: replicas, Encoding: EncodingJSON,
	}
	storage := (&Bridge{cfg: cfg, js: js, log: zap.NewNop(), subjects: e.Subjects, clusterUID: testCluster}).newStorage()
	var stream jetstream.Stream
	try("make the stream and the bucket", func() (err error) {
		if err := errors.Join(storage.Inspect(t.Context()), storage.Identify(store.Witness{}, 0), storage.Establish(t.Context(), store.Witness{})); err != nil {
			return err
		}
		stream, err = js.Stream(t.Context(), subjects.DefaultStream)
		return err
	})
	b := &store.Bucket{JS: js, Name: subjects.DefaultBucket, ContentType: subjects.ContentTypeJSON, Log: zap.NewNop()}
	r := &rig{&stage{t: t, nc: nc, js: js, stream: stream}, cfg, storage, b, testMetrics()}
	r.published = store.NewPublishedReader(store.NewReader(nc, subjects.DefaultStream, e.Subjects), b).PublishedOf
	r.pub = r.next()
	return r
}

func (r *rig) event(version string, prev *app.Record) *app.Event {
	r.t.Helper()
	ev, err := r.pub.encoder.Encode(testID, app.NewUpsert(app.State{Service: testService("u1", version, "True")}, prev == nil), prev)
	if err != nil {
		r.t.Fatal(err)
	}
	return ev
}

// append appends an event, without a publisher, and returns its record.
func (r *rig) append(ev *app.Event) *app.Record {
	r.t.Helper()
	ack, err := r.js.PublishMsg(r.t.Context(), ev.Msg)
	if err != nil || ack.Duplicate {
		r.t.Fatalf("append: %+v, %v", ack, err)
	}
	ev.Record.Sequence = ack.Sequence
	return ev.Record
}

// project runs a projector until the bucket reflects the stream.
func (r *rig) project() *projector {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	snap, err := r.bucket.Load(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	p := newProjector(r.projectorConfig(zap.NewNop()), snap)
	done := make(chan error, 1)
	go func() { done <- p.run(ctx, snap) }()
	wait, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	info, err := r.stream.Info(wait)
	if err == nil {
		err = p.waitWritten(wait, info.State.LastSeq)
	}
	cancel()
	if err := errors.Join(err, <-done); err != nil {
		r.t.Fatal(err)
	}
	return p
}

// A foreign write to the bucket does not stop the projection.
func TestProjectionGoesOn(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	snap, err := r.bucket.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p := newProjector(r.projectorConfig(zap.NewNop()), snap)
	done := make(chan error, 1)
	go func() { done <- p.run(ctx, snap) }()
	kv, err := r.js.KeyValue(ctx, subjects.DefaultBucket)
	if err != nil {
		t.Fatal(err)
	}
	var prev *app.Record
	for i := range 30 {
		prev = r.append(r.event(strconv.Itoa(i+1), prev))
		if i%10 == 5 {
			if _, err := kv.PutString(ctx, "foreign", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	wait, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	if err := p.waitWritten(wait, prev.Sequence); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	entry, err := store.LastMessage(t.Context(), r.nc, subjects.BucketStream(subjects.DefaultBucket), subjects.BucketSubject(subjects.DefaultBucket, "vision.development.stream=2Elit"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := entry.Header.Get(subjects.HeaderEventSequence), strconv.FormatUint(prev.Sequence, 10); got != want {
		t.Errorf("the bucket reflects %s, want %s", got, want)
	}
}

// A damaged entry is written anew from the app's last event.
func TestDamagedEntryIsRestored(t *testing.T) {
	r := newRig(t)
	one := r.append(r.event("1", nil))
	two := r.append(r.event("2", one))
	r.project()
	kv, err := r.js.KeyValue(t.Context(), subjects.DefaultBucket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(t.Context(), "vision.development.stream=2Elit", "{garbage"); err != nil {
		t.Fatal(err)
	}
	// Something later keeps the bucket's position ahead of the damaged entry.
	other := r.event("9", nil)
	other.ID.Name = "other"
	other.Msg.Subject = "flyte.apps.events.vision.development.other.created"
	other.Msg.Header.Set(subjects.HeaderExpectedLastSubjectSequenceSubject, "flyte.apps.events.vision.development.other.*")
	r.append(other)
	p := r.project()
	snap, err := r.bucket.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := snap.Records[testID]
	if got.Damaged || got.Sequence != two.Sequence || got.ResourceVersion != "2" {
		t.Errorf("the bucket holds %+v, want version 2 of sequence %d", got, two.Sequence)
	}
	if got := taken(p)[testID]; got.Damaged || got.Sequence != two.Sequence {
		t.Errorf("the projector knows %+v", got)
	}
}

// A message of somebody else on an event subject is passed over, and said so.
func TestForeignMessage(t *testing.T) {
	r := newRig(t)
	one := r.append(r.event("1", nil))
	for _, subject := range []string{"flyte.apps.events.vision.development.x.updated", "flyte.apps.events.nonsense", "flyte.apps.events.a.b.c.exploded"} {
		if _, err := r.js.Publish(t.Context(), subject, []byte("{")); err != nil {
			t.Fatal(err)
		}
	}
	p := r.project()
	got := taken(p)
	if got[testID].Sequence != one.Sequence || got[testID].Foreign != 0 {
		t.Errorf("the record is %+v", got[testID])
	}
	x := subjects.AppID{Project: "vision", Domain: "development", Name: "x"}
	if len(got) != 1 || got[x] != nil {
		t.Errorf("the records are %v, that of x %+v; want none", got, got[x])
	}
	// What counts for its fence is read when it gets an event.
	read, err := store.NewPublishedReader(store.NewReader(r.nc, subjects.DefaultStream, p.subjects), r.bucket).PublishedOf(t.Context(), x)
	if err != nil || read.Exists() || read.Fence() != 2 || read.Previous() != 0 {
		t.Errorf("got %+v, %v, want the fence at 2", read, err)
	}
	if got := p.written.Load(); got != 4 {
		t.Errorf("the projection stands at %d, want 4", got)
	}
}

// TestClusterRenamed: the name is in each event's ce-source, so a change of it is logged.
func TestClusterRenamed(t *testing.T) {
	r := newRig(t)
	core, logs := observer.New(zap.WarnLevel)
	for _, name := range []string{"test", "other"} {
		storage := *r.storage
		storage.Log, storage.Config.ClusterName = zap.New(core), name
		if err := errors.Join(storage.Inspect(t.Context()), storage.Establish(t.Context(), store.Witness{})); err != nil {
			t.Fatal(err)
		}
	}
	all := logs.All()
	if len(all) != 1 || all[0].Message != "the cluster name has changed: new events have another ce-source" {
		t.Fatalf("got %v", all)
	}
	if got := all[0].ContextMap(); got["before"] != "test" || got["clusterName"] != "other" {
		t.Errorf("got %v", got)
	}
}
