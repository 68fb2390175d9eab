package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// dial is a connection, as a bridge makes it, until the test is over.
func dial(t *testing.T, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(append(natsconn.Options("test", zap.NewNop()), nats.Timeout(suite.Patience)), opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func valueOf(t *testing.T, c prometheus.Counter) int {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return int(m.GetCounter().GetValue())
}

// stage is a JetStream server with a stream of events, and a publisher.
type stage struct {
	t      *testing.T
	nc     *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
	pub    *Publisher
	// published reads the last event of an app that a queue does not know.
	published func(context.Context, subjects.AppID) (*app.Record, error)
}

// newStage makes the stream on a server of its own.
func newStage(t *testing.T) *stage {
	t.Helper()
	return newStageOn(t, dial(t, suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL()), 1, func(_ string, op func() error) {
		t.Helper()
		if err := op(); err != nil {
			t.Fatal(err)
		}
	})
}

// newStageOfThree makes a stream of three replicas.
func newStageOfThree(t *testing.T) (*suite.NATSCluster, *stage) {
	t.Helper()
	c := suite.NewNATSCluster(t)
	return c, newStageOn(t, dial(t, c.URL()), 3, c.Poll)
}

// newStageOn makes the stream. try runs what may have to wait for the servers.
func newStageOn(t *testing.T, nc *nats.Conn, replicas int, try func(what string, op func() error)) *stage {
	t.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(store.JetStreamTimeout))
	if err != nil {
		t.Fatal(err)
	}
	r := &stage{t: t, nc: nc, js: js}
	try("make the stream", func() (err error) {
		r.stream, err = js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{
			Name: subjects.DefaultStream, Subjects: []string{testEncoder().Subjects.Events()}, Replicas: replicas,
			Storage: jetstream.FileStorage, AllowDirect: true, Duplicates: store.DuplicateWindow,
		})
		return err
	})
	r.published = r.lastEventOf
	r.pub = r.next()
	return r
}

func testPublisherMetrics() *Metrics {
	return NewMetrics(prometheus.NewRegistry(), prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rejected"}, []string{"reason"}))
}

// testQueue merges the updates of an app beyond perApp changes.
func testQueue(perApp int, maxBytes int64) *Queue {
	return NewQueue(QueueConfig{PerApp: perApp, MaxBytes: maxBytes, Metrics: testPublisherMetrics()})
}

// next is another publisher of the same bridge, as a new session makes it. It goes on behind the
// stream's last message.
func (r *stage) next() *Publisher {
	r.t.Helper()
	appends, err := NewJetStream(r.nc, "")
	if err != nil {
		r.t.Fatal(err)
	}
	info, err := r.stream.Info(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	last, m := info.State.LastSeq, testPublisherMetrics()
	return New(Config{
		NATS: r.nc, Appends: appends, Stream: subjects.DefaultStream, Subjects: testEncoder().Subjects,
		NewEncoder: func(maxSize func() int) *app.Encoder {
			e := testEncoder()
			e.MaxSize = maxSize
			return e
		},
		Queue: NewQueue(QueueConfig{PerApp: 10, MaxBytes: 1 << 30, Empty: last == 0, Reached: last, Metrics: m}),
		Known: &store.Acknowledged{}, Log: zap.NewNop(), Metrics: m,
		State: jetstream.StreamState{LastSeq: last}, // the first sequence is found when an append is refused
		Hold:  func(context.Context) error { return nil }, Verified: func(subjects.AppID) {},
		Doubts: func(subjects.AppID) bool { return false },
		Leads:  func(context.Context) error { return nil }, Published: r.published, Sent: func(uint64) {}, Stored: func(uint64, *app.Event) {}, KeyMissing: func(subjects.AppID) {},
	})
}

// lastEventOf reads an app's last event, without a bucket.
func (r *stage) lastEventOf(ctx context.Context, id subjects.AppID) (*app.Record, error) {
	e, err := store.NewReader(r.js, subjects.DefaultStream, testEncoder().Subjects).LastEvent(ctx, id, 0)
	if e == nil {
		return nil, err
	}
	return e.Record, err
}

// after is a publisher that knows what p knew at its end.
func (r *stage) after(p *Publisher) *Publisher {
	r.t.Helper()
	next := r.next()
	next.chain, next.accounted, next.known = p.accounted, p.accounted, p.known
	for id, a := range p.queue.apps {
		next.queue.Load(id, a.record)
	}
	return next
}

// publish has a publisher publish what is in its queue and returns why it ended: nil if it
// published everything.
func (r *stage) publish(p *Publisher) error {
	r.t.Helper()
	filled := make(chan struct{})
	close(filled)
	return r.publishAll(p, filled)
}

// publishAll is publish, with a queue that is being filled until filled is closed.
func (r *stage) publishAll(p *Publisher, filled <-chan struct{}) error {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), suite.Patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	ended := func(err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		return err
	}
	select {
	case <-filled:
	case err := <-done:
		return ended(err)
	}
	select {
	case <-p.queue.Empty():
		cancel()
		return <-done
	case err := <-done:
		return ended(err)
	}
}

func appID(name string) subjects.AppID {
	return subjects.AppID{Project: "p", Domain: "d", Name: name}
}

// serviceOf is a Knative Service of an app.
func serviceOf(name, version string, change ...func(*kservice.Service)) *app.CachedService {
	return testService("uid-"+name, version, "True", append(change, func(svc *kservice.Service) {
		svc.Annotations[kservice.AnnotationAppID] = "p/d/" + name
	})...)
}

// observe queues a state of an app.
func observe(p *Publisher, name, version string, first bool) {
	p.queue.Add(appID(name), app.NewUpsert(app.State{Service: serviceOf(name, version)}, first))
}

// publishedOf is what the queue holds as published of an app.
func publishedOf(p *Publisher, name string) *app.Record {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	return p.queue.apps[appID(name)].record
}

// story lists the events of the stream, one "app/kind/version" for each.
func (r *stage) story() []string {
	r.t.Helper()
	var info *jetstream.StreamInfo
	suite.Eventually(r.t, suite.Patience, "the stream is read", func() (err error) { // the connection may be down
		info, err = r.stream.Info(r.t.Context())
		return err
	})
	lines := make([]string, info.State.LastSeq+1)
	ctx, cancel := context.WithTimeout(r.t.Context(), suite.Patience)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(32)
	for sequence := info.State.FirstSeq; sequence <= info.State.LastSeq; sequence++ {
		group.Go(func() error {
			var m *store.Message
			err := retry.Do(ctx, func() (err error) {
				m, err = store.MessageAt(ctx, r.js, subjects.DefaultStream, sequence)
				if errors.Is(err, store.ErrNoMessage) {
					return retry.Permanent(err)
				}
				return err
			}, func(error, time.Duration) {})
			if errors.Is(err, store.ErrNoMessage) {
				return nil
			}
			if err != nil {
				return err
			}
			id, kind, err := testEncoder().Subjects.ParseEvent(m.Subject)
			if err != nil {
				lines[sequence] = m.Subject
				return nil //nolint:nilerr // a message of somebody else
			}
			lines[sequence] = fmt.Sprintf("%s/%s/%s", id.Name, kind, m.Header.Get(subjects.HeaderResourceVersion))
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		r.t.Fatal(err)
	}
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

// checkStory holds the events of every app against the versions 1 to n of it.
func (r *stage) checkStory(apps, versions int) {
	r.t.Helper()
	got := map[string][]string{}
	for _, line := range r.story() {
		name, rest, _ := strings.Cut(line, "/")
		got[name] = append(got[name], rest)
	}
	var want []string
	for v := range versions {
		kind := subjects.Updated
		if v == 0 {
			kind = subjects.Created
		}
		want = append(want, fmt.Sprintf("%s/%d", kind, v+1))
	}
	for i := range apps {
		name := fmt.Sprint("a", i)
		if fmt.Sprint(got[name]) != fmt.Sprint(want) {
			r.t.Errorf("app %s: got %v, want %v", name, got[name], want)
		}
	}
	if len(got) != apps {
		r.t.Errorf("the stream has events of %d apps, want %d", len(got), apps)
	}
}

// observeAll queues versions from to until of all apps.
func observeAll(p *Publisher, apps, from, to int) {
	for v := from; v <= to; v++ {
		for i := range apps {
			observe(p, fmt.Sprint("a", i), fmt.Sprint(v), v == 1)
		}
	}
}

// forget evicts every deleted app whose delete is in the stream.
func (q *Queue) forget(written uint64) {
	q.mu.Lock()
	none := make([]subjects.AppID, recentlyDeleted)
	q.gone = append(q.gone, none...) // which no queue knows
	q.mu.Unlock()
	q.Evict(written)
}

func (r *stage) count() uint64 {
	r.t.Helper()
	info, err := r.stream.Info(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return info.State.Msgs
}
