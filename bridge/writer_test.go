package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/publisher"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// writer is a publisher with its queue, as a session has them.
type writer struct {
	*publisher.Publisher
	t     *testing.T
	queue *publisher.Queue
	start sync.Once
	stop  func() // set by publish
	ended chan struct{}
	err   error // why it ended
}

func testMetrics() *metrics { return newMetrics(prometheus.NewRegistry()) }

// newTestQueue is a queue for up to 100 changes of an app.
func newTestQueue(maxBytes int64) *publisher.Queue {
	return publisher.NewQueue(publisher.QueueConfig{PerApp: 100, MaxBytes: maxBytes, Metrics: testMetrics().publisher})
}

// next is another publisher with a queue of its own. It goes on behind the stream's last message.
func (r *rig) next() *writer {
	r.t.Helper()
	last := r.lastSequence()
	q := publisher.NewQueue(publisher.QueueConfig{PerApp: 10, MaxBytes: 1 << 30, Empty: last == 0, Reached: last, Metrics: testMetrics().publisher})
	appends, err := publisher.NewJetStream(r.nc, "")
	if err != nil {
		r.t.Fatal(err)
	}
	p := publisher.New(publisher.Config{
		Hold: func(context.Context) error { return nil }, Verified: func(subjects.AppID) {},
		Doubts: func(subjects.AppID) bool { return false },
		NATS:   r.nc, Appends: appends, Stream: subjects.DefaultStream, Subjects: r.encoder.Subjects,
		NewEncoder: func(maxSize func() int) *app.Encoder {
			e := testEncoder()
			e.MaxSize = maxSize
			return e
		},
		Queue: q, Known: &store.Acknowledged{}, Log: zap.NewNop(), Metrics: testMetrics().publisher,
		State:     jetstream.StreamState{LastSeq: last},
		Leads:     func(context.Context) error { return nil },
		Published: store.PublishedReader{Reader: store.NewReader(r.js, subjects.DefaultStream, r.encoder.Subjects), Bucket: r.bucket}.PublishedOf,
		Sent:      func(uint64) {}, Stored: func(uint64, *app.Event) {}, KeyMissing: func(subjects.AppID) {},
	})
	return &writer{Publisher: p, t: r.t, queue: q, ended: make(chan struct{})}
}

// publish publishes what is in the queue and returns why the publisher ended: nil if it published
// everything. It then goes on with what is queued next, until stop.
func (w *writer) publish() error {
	w.start.Do(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
		go func() {
			w.err = w.Run(ctx)
			close(w.ended)
		}()
		w.stop = sync.OnceFunc(func() {
			cancel()
			<-w.ended
		})
		w.t.Cleanup(w.stop)
	})
	select {
	case <-w.queue.Empty():
		return nil
	case <-w.ended:
		return w.err
	case <-time.After(suite.Patience):
		return errors.New("not everything is published")
	}
}

// publishApps publishes the first version of apps.
func (r *rig) publishApps(apps int) {
	r.t.Helper()
	w := r.next()
	for i := range apps {
		w.observe(fmt.Sprint("a", i), "1", true)
	}
	if err := w.publish(); err != nil {
		r.t.Fatal(err)
	}
	w.stop()
}

// knativeService is a Knative Service of an app.
func knativeService(name, version string) *kservice.Service {
	svc := apptest.Service("uid-"+name, version, "True")
	svc.Annotations[kservice.AnnotationAppID] = "p/d/" + name
	return svc
}

// observe queues a state of an app.
func (w *writer) observe(name, version string, first bool) {
	w.queue.Add(otherApp(name), app.NewUpsert(app.State{Service: encodertest.Keep(knativeService(name, version))}, first))
}

// unobserve queues the end of an app.
func (w *writer) unobserve(name, version string) {
	w.queue.Add(otherApp(name), app.Removal(app.State{Service: encodertest.Keep(knativeService(name, version))}, app.Observation{DeletedVersion: version + "0"}))
}

// evictAll has a queue evict every deleted app that the bucket reflects up to written: so many others
// were deleted since.
func evictAll(q *publisher.Queue, written uint64) {
	for i := range 1000 {
		q.Load(otherApp(fmt.Sprint("since", i)), &app.Record{Kind: subjects.Deleted, Sequence: 1})
	}
	q.Evict(written)
}

func (r *rig) header(sequence uint64, name string) string {
	r.t.Helper()
	m, err := store.MessageAt(r.t.Context(), r.js, subjects.DefaultStream, sequence)
	if err != nil {
		r.t.Fatal(err)
	}
	return m.Header.Get(name)
}

func (r *rig) count() uint64 {
	r.t.Helper()
	info, err := r.stream.Info(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return info.State.Msgs
}
