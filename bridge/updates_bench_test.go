package bridge

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/bridge/projector"
	"github.com/appbridge/appbridge/bridge/publisher"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// BenchmarkUpdates is everything behind the decoder: decoded Services go into the source, and the
// time ends when the bucket of a nats-server shows the last of them. The processor time is that of
// this process, without the server's.
//
//	go test ./bridge -run '^$' -bench Updates -benchtime 50000x
func BenchmarkUpdates(b *testing.B) {
	const apps = 5000
	services, settled := updateSession(b)
	object := func(n int) *kservice.Service {
		id := n * 7919 % apps
		svc := apptest.Service("u"+strconv.Itoa(id), strconv.Itoa(100+n), []string{"True", "Unknown"}[n/apps%2])
		svc.Name = fmt.Sprintf("app-%d", id)
		svc.Annotations["flyte.org/app-id"] = fmt.Sprintf("p/d/app-%d", id)
		return svc
	}
	for n := range apps {
		services(object(n))
	}
	settled(apps)
	updates := make([]*kservice.Service, b.N)
	for n := range updates {
		updates[n] = object(apps + n)
	}
	b.ReportAllocs()
	b.ResetTimer()
	before := processorTime(b)
	for _, svc := range updates {
		services(svc)
	}
	settled(apps + b.N)
	b.StopTimer()
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "updates/s")
}

// updateSession is a source, a publisher and a projector. services observes a Service, settled
// waits until the bucket shows the event with a sequence.
func updateSession(b *testing.B) (services func(*kservice.Service), settled func(sequence int)) {
	b.Helper()
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	nc, err := nats.Connect(benchServer(b), natsconn.Options("bench", zap.NewNop())...)
	check(err)
	b.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	check(err)
	appends, err := publisher.NewJetStream(nc, "")
	check(err)
	e := testEncoder()
	storage := store.New(js, e.Subjects, store.Config{
		Stream: subjects.DefaultStream, Bucket: subjects.DefaultBucket, Prefix: subjects.DefaultPrefix,
		ClusterName: "bench", ClusterUID: testCluster, Replicas: 1,
	}, zap.NewNop())
	check(errors.Join(storage.Inspect(b.Context()), storage.Identify(store.Checkpoint{}, 0), storage.Establish(b.Context(), store.Checkpoint{})))
	bucket := &store.Bucket{Entries: app.Entries{Name: subjects.DefaultBucket, ContentType: subjects.ContentTypeJSON}, JS: js, Log: zap.NewNop()}
	snap, err := bucket.Load(b.Context())
	check(err)
	known := &store.Acknowledged{}
	m := newMetrics(prometheus.NewRegistry())
	projection := projector.New(projector.Config{
		Bucket: bucket, Stream: subjects.DefaultStream, Subjects: e.Subjects, Acknowledged: known, Log: zap.NewNop(), Metrics: m.projector,
	}, snap)
	queue := publisher.NewQueue(publisher.QueueConfig{StreamID: storage.ID, Empty: true, PerApp: 1 << 20, MaxBytes: 4 << 30, Metrics: m.publisher})
	p := publisher.New(publisher.Config{
		Hold: func(context.Context) error { return nil }, Verified: func(subjects.AppID) {},
		Doubts: func(subjects.AppID) bool { return false },
		NATS:   nc, Appends: appends, Stream: subjects.DefaultStream, Subjects: e.Subjects,
		NewEncoder: func(func() int) *app.Encoder { return e },
		Queue:      queue, Known: known, Log: zap.NewNop(), Metrics: m.publisher, State: storage.Stream.State,
		Leads:     func(context.Context) error { return nil },
		Published: func(context.Context, subjects.AppID) (*app.Record, error) { return nil, nil },
		Sent:      projection.NoteSent, Stored: projection.NoteStored, KeyMissing: func(subjects.AppID) {},
	})
	keeper := app.Keeper{App: kservice.Config{BaseDomain: "apps.example.com"}, Form: subjects.ContentTypeJSON}
	source := watch.NewSource(zap.NewNop(), keeper, func(reason string) { b.Error(reason) })
	ctx, cancel := context.WithCancelCause(b.Context())
	source.Connect(func(watch.View) watch.Sink { return queue.Add }, cancel)
	var group errgroup.Group
	group.Go(func() error { return projection.Run(ctx, snap) })
	group.Go(func() error { return p.Run(ctx) })
	b.Cleanup(func() {
		cancel(nil)
		_ = group.Wait() // its end is the benchmark's
		source.Close()
	})
	source.Revisions().OnAdd(testRevision("99", 2), true) // the one that all of them name
	handler := source.Services()
	return func(svc *kservice.Service) { handler.OnUpdate(nil, keeper.Keep(svc)) }, func(sequence int) {
		wait, stop := context.WithTimeout(ctx, 5*time.Minute)
		defer stop()
		check(projection.WaitWritten(wait, uint64(sequence)))
	}
}
