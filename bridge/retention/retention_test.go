package retention

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestMain(m *testing.M) { suite.Main(m, func() error { return nil }) }

// rig is a stream of ten messages on a real server.
type rig struct {
	Config
	t *testing.T
}

func newRig(t *testing.T, stream jetstream.StreamConfig) *rig {
	t.Helper()
	nc := connect(t, suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}))
	return newRigOn(t, nc, stream)
}

func connect(t *testing.T, s *server.Server, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), append(options, nats.Timeout(suite.Patience))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func newRigOn(t *testing.T, nc *nats.Conn, stream jetstream.StreamConfig) *rig {
	t.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	stream.Name, stream.Subjects = "EVENTS", []string{"events.>", "notice"}
	if _, err := js.CreateStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	r := &rig{Config: Config{JS: js, Stream: "EVENTS", Log: zaptest.NewLogger(t)}, t: t}
	r.publish("a", 5)
	r.publish("b", 5)
	return r
}

func (r *rig) publish(app string, n int) {
	r.t.Helper()
	for range n {
		if _, err := r.JS.Publish(r.t.Context(), "events."+app, make([]byte, 1000)); err != nil {
			r.t.Fatal(err)
		}
	}
}

// consumer makes a consumer that has acknowledged n messages.
func (r *rig) consumer(cfg jetstream.ConsumerConfig, n int) jetstream.Consumer {
	r.t.Helper()
	cfg.AckPolicy = jetstream.AckExplicitPolicy
	c, err := r.JS.CreateConsumer(r.t.Context(), "EVENTS", cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	for range n {
		m, err := c.Next(jetstream.FetchMaxWait(suite.Patience))
		if err != nil {
			r.t.Fatal(err)
		}
		if err := m.DoubleAck(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
	}
	return c
}

func (r *rig) measure() map[string]float64 {
	r.t.Helper()
	left, err := measure(r.t.Context(), r.Config)
	if err != nil {
		r.t.Fatal(err)
	}
	return left
}

// same reports whether two values are the same but for rounding, and the bytes of headers.
func same(a, b float64) bool { return a-b < 0.01 && b-a < 0.01 }

func TestMessagesLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.StreamConfig{MaxMsgs: 20})
	r.consumer(jetstream.ConsumerConfig{Durable: "all"}, 10)
	r.consumer(jetstream.ConsumerConfig{Durable: "none"}, 0)
	r.consumer(jetstream.ConsumerConfig{Durable: "half"}, 5)
	r.consumer(jetstream.ConsumerConfig{Durable: "first", FilterSubject: "events.a"}, 5)
	r.consumer(jetstream.ConsumerConfig{Durable: "second", FilterSubject: "events.b"}, 0)
	r.consumer(jetstream.ConsumerConfig{Durable: "both", FilterSubjects: []string{"events.b", "events.a"}}, 0)
	r.consumer(jetstream.ConsumerConfig{Durable: "new", DeliverPolicy: jetstream.DeliverNewPolicy}, 0)
	r.consumer(jetstream.ConsumerConfig{InactiveThreshold: time.Hour}, 0) // ephemeral
	open := r.consumer(jetstream.ConsumerConfig{Durable: "delivered", AckWait: time.Hour}, 8)
	for range 2 {
		if _, err := open.Next(jetstream.FetchMaxWait(suite.Patience)); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]float64{
		"all": 1, "none": 0.5, "half": 0.75, "first": 1, "second": 0.75, "both": 0.5, "new": 1, "delivered": 0.9,
	}
	got := r.measure()
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for name, left := range want {
		if !same(got[name], left) {
			t.Errorf("%s: %v, want %v", name, got[name], left)
		}
	}

	// Retention goes on: what was not read is next, then it is gone and the next one counts.
	r.publish("a", 10)
	if got = r.measure(); !same(got["none"], 0) || !same(got["all"], 0.5) {
		t.Errorf("with a full stream: none %v, want 0; all %v, want 0.5", got["none"], got["all"])
	}
	r.publish("a", 5)
	if got = r.measure(); !same(got["none"], 0) || !same(got["second"], 0) {
		t.Errorf("with messages removed: none %v, second %v, want 0", got["none"], got["second"])
	}
}

func TestBytesLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.StreamConfig{MaxBytes: 1 << 20})
	stream, err := r.JS.Stream(t.Context(), "EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.MaxBytes = int64(stream.CachedInfo().State.Bytes) * 2 //nolint:gosec // of ten messages
	if _, err := r.JS.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	r.consumer(jetstream.ConsumerConfig{Durable: "none"}, 0)
	r.consumer(jetstream.ConsumerConfig{Durable: "half"}, 5)
	if got := r.measure(); !same(got["none"], 0.5) || !same(got["half"], 0.75) {
		t.Errorf("got %v, want none 0.5 and half 0.75", got)
	}
}

func TestAgeLeft(t *testing.T) {
	t.Parallel()
	now := time.Now()
	info := &jetstream.StreamInfo{
		Config: jetstream.StreamConfig{MaxAge: 100 * time.Second, MaxMsgs: 1000},
		State:  jetstream.StreamState{Msgs: 10, FirstSeq: 1, LastSeq: 10},
	}
	for age, want := range map[time.Duration]float64{0: 0.99, 30 * time.Second: 0.7, 99 * time.Second: 0.01, 200 * time.Second: 0} {
		if got := ratio(info, &store.Message{Sequence: 1, Stored: now.Add(-age)}, now); !same(got, want) {
			t.Errorf("a message of %s: %v, want %v", age, got, want)
		}
	}
	if got := ratio(info, nil, now); got != 1 {
		t.Errorf("all read: %v, want 1", got)
	}
}

// A full stream with the discard policy "new" refuses messages and removes none.
func TestDiscardNew(t *testing.T) {
	t.Parallel()
	now := time.Now()
	info := &jetstream.StreamInfo{
		Config: jetstream.StreamConfig{MaxAge: 100 * time.Second, MaxMsgs: 10, Discard: jetstream.DiscardNew},
		State:  jetstream.StreamState{Msgs: 10, FirstSeq: 1, LastSeq: 10},
	}
	if got := ratio(info, &store.Message{Sequence: 1, Stored: now.Add(-30 * time.Second)}, now); !same(got, 0.7) {
		t.Errorf("with an age: got %v, want 0.7", got)
	}
	r := newRig(t, jetstream.StreamConfig{MaxMsgs: 10, Discard: jetstream.DiscardNew})
	r.consumer(jetstream.ConsumerConfig{Durable: "none"}, 0)
	if got := r.measure(); len(got) != 0 {
		t.Errorf("got %v of a stream that removes nothing", got)
	}
}

// TestReadRefused: the end of the tests finds a goroutine that lists consumers for ever.
func TestReadRefused(t *testing.T) {
	t.Parallel()
	s := suite.NATS(t, &server.Options{
		JetStream: true, StoreDir: t.TempDir(),
		Users: []*server.User{{Username: "bridge", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: []string{">"}, Deny: []string{"$JS.API.STREAM.MSG.GET.>"}},
		}}},
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	nc := connect(t, s, nats.UserInfo("bridge", ""), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) { cancel() }))
	r := newRigOn(t, nc, jetstream.StreamConfig{MaxMsgs: 20})
	r.consumer(jetstream.ConsumerConfig{Durable: "one"}, 0)
	r.consumer(jetstream.ConsumerConfig{Durable: "two"}, 0)
	if left, err := measure(ctx, r.Config); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v, want the end that the refused read caused", left, err)
	}
}

// Without a connection there is no value: the one before says nothing about now.
func TestNoValueWithoutServer(t *testing.T) {
	t.Parallel()
	s := suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	r := newRigOn(t, connect(t, s, nats.ReconnectBufSize(-1)), jetstream.StreamConfig{MaxMsgs: 20})
	r.consumer(jetstream.ConsumerConfig{Durable: "none"}, 0)
	w := New(prometheus.NewRegistry())
	if err := w.update(t.Context(), r.Config); err != nil || w.left.Load() == nil {
		t.Fatalf("no value: %v", err)
	}
	r.JS.Conn().Close()
	if err := w.update(t.Context(), r.Config); err == nil || w.left.Load() != nil {
		t.Errorf("got %v, %v without a connection", w.left.Load(), err)
	}
}

// A consumer without a filter reads every subject of the stream, not only those of events.
func TestNoFilter(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.StreamConfig{MaxMsgs: 20})
	if _, err := r.JS.Publish(t.Context(), "notice", make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	r.consumer(jetstream.ConsumerConfig{Durable: "most"}, 10)
	if got := r.measure(); !same(got["most"], 0.95) {
		t.Errorf("got %v, want most 0.95", got)
	}
}

func TestNoLimitNoValue(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.StreamConfig{})
	r.consumer(jetstream.ConsumerConfig{Durable: "none"}, 0)
	if got := r.measure(); len(got) != 0 {
		t.Errorf("got %v of a stream without a limit", got)
	}
}

// The gauge is there while the watch runs, and gone after it: another replica has it then.
func TestGaugeFollowsRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.StreamConfig{MaxMsgs: 20})
	r.consumer(jetstream.ConsumerConfig{Durable: "none"}, 0)
	reg := prometheus.NewRegistry()
	w := New(reg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx, r.Config)
	}()
	series := func(want int) error {
		families, err := reg.Gather()
		if err == nil && len(families) != want {
			err = fmt.Errorf("%d metrics, want %d: %v", len(families), want, families)
		}
		return err
	}
	suite.Eventually(t, suite.Patience, "the gauge is there", func() error { return series(1) })
	cancel()
	<-done
	if err := series(0); err != nil {
		t.Error("after the end:", err)
	}
}
