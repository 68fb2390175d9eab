package projector

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testCluster is the uid of the cluster of a rig.
const testCluster = "c1"

// rig is a JetStream server with a stream and a bucket.
type rig struct {
	t       testing.TB
	nc      *nats.Conn
	js      jetstream.JetStream
	stream  jetstream.Stream
	storage *store.Storage
	bucket  *store.Bucket
	encoder *app.Encoder
	metrics *Metrics
}

func newRig(t testing.TB) *rig {
	t.Helper()
	nc := connectTo(t, suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL())
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(store.JetStreamTimeout))
	if err != nil {
		t.Fatal(err)
	}
	e := testEncoder()
	storage := store.New(js, e.Subjects, store.Config{
		Stream: subjects.DefaultStream, Bucket: subjects.DefaultBucket, Prefix: subjects.DefaultPrefix,
		ClusterName: "test", ClusterUID: testCluster, Replicas: 1,
	}, zap.NewNop())
	if err := errors.Join(storage.Inspect(t.Context()), storage.Identify(store.Checkpoint{}, 0), storage.Establish(t.Context(), store.Checkpoint{})); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subjects.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	bucket := &store.Bucket{Entries: app.Entries{Name: subjects.DefaultBucket, ContentType: subjects.ContentTypeJSON}, JS: js, Log: zap.NewNop()}
	return &rig{t, nc, js, stream, storage, bucket, e, NewMetrics(prometheus.NewRegistry())}
}

// connectTo is a connection, as a bridge makes it, until the test is over.
func connectTo(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(append(natsconn.Options("test", zap.NewNop()), nats.Timeout(suite.Patience)), opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func (r *rig) event(version string, prev *app.Record) *app.Event {
	r.t.Helper()
	ev, err := r.encoder.Encode(testID, app.NewUpsert(app.State{Service: testService("u1", version, "True")}, prev == nil || prev.Kind == subjects.Deleted), prev)
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
func (r *rig) project() *Projector {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	snap, err := r.bucket.Load(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	p := New(r.projectorConfig(zap.NewNop()), snap)
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, snap) }()
	wait, stop := context.WithTimeout(ctx, suite.Patience)
	defer stop()
	info, err := r.stream.Info(wait)
	if err == nil {
		err = p.WaitWritten(wait, info.State.LastSeq)
	}
	cancel()
	if err := errors.Join(err, <-done); err != nil {
		r.t.Fatal(err)
	}
	return p
}

// otherApp is an app beside that of testID.
func otherApp(name string) subjects.AppID {
	return subjects.AppID{Project: "p", Domain: "d", Name: name}
}

// eventOn makes an event of any app.
func (r *rig) eventOn(id subjects.AppID, version string, prev *app.Record) *app.Event {
	r.t.Helper()
	ev, err := r.encoder.Encode(id, app.NewUpsert(app.State{Service: testService("u-"+id.Name, version, "True")}, prev == nil || prev.Kind == subjects.Deleted), prev)
	if err != nil {
		r.t.Fatal(err)
	}
	return ev
}

// removalOn makes the delete of an app.
func (r *rig) removalOn(id subjects.AppID, prev *app.Record) *app.Event {
	r.t.Helper()
	ev, err := r.encoder.Encode(id, &app.Change{Remove: true, DeletedVersion: "1000"}, prev)
	if err != nil {
		r.t.Fatal(err)
	}
	return ev
}

// keysIn lists the apps whose keys the bucket holds.
func (r *rig) keysIn() []string {
	r.t.Helper()
	names, err := store.Subjects(r.t.Context(), r.js, subjects.BucketStream(subjects.DefaultBucket), ">")
	if err != nil {
		r.t.Fatal(err)
	}
	var ids []string
	for _, name := range names {
		key, err := subjects.ParseBucketSubject(subjects.DefaultBucket, name)
		if err != nil {
			r.t.Fatal(err)
		}
		id, err := subjects.ParseKey(key)
		if err != nil {
			r.t.Fatal(err)
		}
		ids = append(ids, id.Name)
	}
	return ids
}

// bucketKeys counts the keys as guard does.
func (r *rig) bucketKeys() uint64 {
	r.t.Helper()
	stream, err := r.js.Stream(r.t.Context(), subjects.BucketStream(subjects.DefaultBucket))
	if err != nil {
		r.t.Fatal(err)
	}
	return stream.CachedInfo().State.NumSubjects
}

func (r *rig) lastSequence() uint64 {
	r.t.Helper()
	info, err := r.stream.Info(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return info.State.LastSeq
}

// follow has a projector run until the test is over.
func (r *rig) follow() *Projector {
	r.t.Helper()
	empty := &store.Snapshot{Records: map[subjects.AppID]*app.Record{}}
	p := New(r.projectorConfig(zap.NewNop()), empty)
	r.run(p, nil)
	return p
}

// run has a projector run from snap until the test is over.
func (r *rig) run(p *Projector, snap *store.Snapshot) {
	r.t.Helper()
	r.t.Cleanup(r.start(p, snap))
}

// start has a projector run from snap until it is stopped.
func (r *rig) start(p *Projector, snap *store.Snapshot) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, snap) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

func (r *rig) reflects(p *Projector, sequence uint64) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), suite.Patience)
	defer cancel()
	if err := p.WaitWritten(ctx, sequence); err != nil {
		r.t.Fatalf("the bucket does not get to sequence %d: %v", sequence, err)
	}
}

// poll waits until ok.
func (r *rig) poll(what string, ok func() bool) {
	r.t.Helper()
	suite.Eventually(r.t, suite.Patience, what, func() error {
		if !ok() {
			return errors.New("not yet")
		}
		return nil
	})
}

// startOver has a projector read the bucket again, and waits until it has nothing left to write.
func (r *rig) startOver(p *Projector) {
	r.t.Helper()
	before := counted(r.t, p.metrics.restarts)
	p.lookAgain(errForeignWrite)
	r.poll("it does not start over", func() bool { return counted(r.t, p.metrics.restarts) > before })
	r.poll("starting over counts as a failure for good", func() bool { return p.failures.Load() == 0 })
}

func counted(t testing.TB, c prometheus.Counter) int {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return int(m.GetCounter().GetValue())
}

func (r *rig) projectorConfig(log *zap.Logger) Config {
	return Config{
		Bucket: r.bucket, Stream: subjects.DefaultStream, Subjects: r.storage.Subjects, Acknowledged: &store.Acknowledged{},
		Log: log, Metrics: r.metrics,
	}
}

// newProjector makes one for what the bucket holds.
func (r *rig) newProjector(log *zap.Logger) (*Projector, *store.Snapshot) {
	r.t.Helper()
	snap, err := r.bucket.Load(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return New(r.projectorConfig(log), snap), snap
}

// taken are the records that a projector has collected.
func taken(p *Projector) map[subjects.AppID]*app.Record {
	records, _ := p.TakeRecords()
	return records
}

// runUntil runs a projector until the bucket reflects sequence or it ends by itself.
func (r *rig) runUntil(p *Projector, snap *store.Snapshot, sequence uint64) error {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), suite.Patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, snap) }()
	wait, stop := context.WithCancel(ctx)
	defer stop()
	written := make(chan error, 1)
	go func() { written <- p.WaitWritten(wait, sequence) }()
	select {
	case err := <-done:
		stop()
		if reached := <-written; err == nil {
			r.t.Fatalf("the bucket stands at sequence %d of %d: %v", p.Position(), sequence, reached)
		}
		return err
	case err := <-written:
		cancel()
		return errors.Join(err, <-done)
	}
}

// held reads an app's entry.
func (r *rig) held(id subjects.AppID) *plan.Entry {
	r.t.Helper()
	subject, err := r.bucket.Subject(id)
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := store.LastMessage(r.t.Context(), r.js, subjects.BucketStream(subjects.DefaultBucket), subject)
	if errors.Is(err, store.ErrNoMessage) {
		return nil
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return store.EntryOf(m)
}

// differs compares an app's entry with its last event as verify does.
func (r *rig) differs(id subjects.AppID) (detail string, differs bool) {
	r.t.Helper()
	last, err := store.NewReader(r.js, subjects.DefaultStream, r.encoder.Subjects).LastEvent(r.t.Context(), id, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	m := plan.Check(&r.bucket.Entries, id, last, r.held(id), time.Now())
	if m == nil {
		return "", false
	}
	return m.Detail, true
}

func (r *rig) bucketEnd() uint64 {
	r.t.Helper()
	stream, err := r.js.Stream(r.t.Context(), subjects.BucketStream(subjects.DefaultBucket))
	if err != nil {
		r.t.Fatal(err)
	}
	return stream.CachedInfo().State.LastSeq
}
