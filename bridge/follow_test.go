package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// laggingJetStream places consumers on a replica that has nothing past
// sequence ends, until caughtUp.
type laggingJetStream struct {
	jetstream.JetStream
	ends      uint64
	caughtUp  atomic.Bool
	consumers atomic.Int32
	idle      atomic.Int32 // reads that brought nothing
	onIdle    func(n int32)
}

func (l *laggingJetStream) OrderedConsumer(ctx context.Context, stream string, cfg jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	consumer, err := l.JetStream.OrderedConsumer(ctx, stream, cfg)
	l.consumers.Add(1)
	return &laggingConsumer{consumer, l}, err
}

type laggingConsumer struct {
	jetstream.Consumer
	replica *laggingJetStream
}

func (c *laggingConsumer) Messages(opts ...jetstream.PullMessagesOpt) (jetstream.MessagesContext, error) {
	messages, err := c.Consumer.Messages(opts...)
	return &laggingMessages{MessagesContext: messages, replica: c.replica}, err
}

type laggingMessages struct {
	jetstream.MessagesContext
	replica *laggingJetStream
	held    []jetstream.Msg
}

func (m *laggingMessages) Next(opts ...jetstream.NextOpt) (jetstream.Msg, error) {
	for {
		if m.replica.caughtUp.Load() && len(m.held) > 0 {
			msg := m.held[0]
			m.held = m.held[1:]
			return msg, nil
		}
		msg, err := m.MessagesContext.Next(opts...)
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) && m.replica.onIdle != nil {
				m.replica.onIdle(m.replica.idle.Add(1))
			}
			return nil, err
		}
		meta, err := msg.Metadata()
		if err != nil || m.replica.caughtUp.Load() {
			return msg, err
		}
		if meta.Sequence.Stream > m.replica.ends {
			m.held = append(m.held, msg)
			continue
		}
		return laggingMsg{msg, m.replica}, nil
	}
}

type laggingMsg struct {
	jetstream.Msg
	replica *laggingJetStream
}

func (m laggingMsg) Metadata() (*jetstream.MsgMetadata, error) {
	meta, err := m.Msg.Metadata()
	if err == nil {
		copied := *meta
		copied.NumPending = m.replica.ends - meta.Sequence.Stream
		meta = &copied
	}
	return meta, err
}

// otherApp is an app beside that of testID.
func otherApp(name string) subjects.AppID {
	return subjects.AppID{Project: "p", Domain: "d", Name: name}
}

// eventOn makes an event of any app.
func (r *rig) eventOn(id subjects.AppID, version string, prev *app.Record) *app.Event {
	r.t.Helper()
	ev, err := r.pub.encoder.Encode(id, app.NewUpsert(app.State{Service: testService("u-"+id.Name, version, "True")}, prev == nil), prev)
	if err != nil {
		r.t.Fatal(err)
	}
	return ev
}

// removalOn makes the delete of an app.
func (r *rig) removalOn(id subjects.AppID, prev *app.Record) *app.Event {
	r.t.Helper()
	ev, err := r.pub.encoder.Encode(id, &app.Change{Remove: true, DeletedVersion: "1000"}, prev)
	if err != nil {
		r.t.Fatal(err)
	}
	return ev
}

// A consumer that shows less than the leader has makes no snapshot, whatever
// it says of messages that are pending.
func TestLoadWaitsForTheReplica(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 5 {
		r.append(r.eventOn(otherApp(fmt.Sprint("a", i)), fmt.Sprint(i+1), nil))
	}
	r.project()
	behind := &laggingJetStream{JetStream: r.js, ends: 3}
	behind.onIdle = func(n int32) { behind.caughtUp.Store(n == 2) }
	b := *r.bucket
	b.JS = behind
	snap, err := b.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(snap.Records) != 5 || snap.Position != 5 || snap.Last != 5 || behind.consumers.Load() != 1 {
		t.Errorf("got %d records up to %d, last sequence %d, with %d consumers", len(snap.Records), snap.Position, snap.Last, behind.consumers.Load())
	}
}

// What was removed since the leader named it is not waited for.
func TestLoadOfRemovedMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 5 {
		r.append(r.eventOn(otherApp(fmt.Sprint("a", i)), fmt.Sprint(i+1), nil))
	}
	r.project()
	behind := &laggingJetStream{JetStream: r.js, ends: 3}
	behind.onIdle = func(n int32) {
		if n == 1 {
			for i := 3; i < 5; i++ {
				if err := r.bucket.PurgeApp(t.Context(), otherApp(fmt.Sprint("a", i)), uint64(i+1)); err != nil {
					t.Error(err)
				}
			}
		}
	}
	b := *r.bucket
	b.JS = behind
	snap, err := b.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(snap.Records) != 3 || snap.Position != 3 || snap.Last != 5 {
		t.Errorf("got %d records up to %d, last sequence %d", len(snap.Records), snap.Position, snap.Last)
	}
}

// A session starts from the end of the stream that the leader has.
func TestCaughtUpWithTheLeader(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 5 {
		r.append(r.eventOn(otherApp(fmt.Sprint("a", i)), fmt.Sprint(i+1), nil))
	}
	behind := &laggingJetStream{JetStream: r.js, ends: 3}
	released := make(chan struct{})
	behind.onIdle = func(n int32) {
		if n == 2 {
			close(released)
			behind.caughtUp.Store(true)
		}
	}
	b := *r.bucket
	b.JS = behind
	r.bucket = &b
	p := r.follow()
	select {
	case <-p.caughtUp:
	case <-time.After(20 * time.Second):
		t.Fatal("it does not catch up")
	}
	select {
	case <-released:
	default:
		t.Error("it calls itself caught up before the replica is")
	}
	if got := len(taken(p)); got != 5 {
		t.Errorf("got %d records, want 5", got)
	}
}

// threeServers is a JetStream cluster.
type threeServers struct {
	t       *testing.T
	opts    []*server.Options
	servers []*server.Server
}

func newThreeServers(t *testing.T) *threeServers {
	t.Helper()
	suite.Slow(t, "uses three servers")
	c := &threeServers{t: t}
	// The ports stay reserved until all are known.
	var ports []int
	var listeners []net.Listener
	for range 6 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	for _, l := range listeners {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var routes []*url.URL
	for _, port := range ports[:3] {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	t.Cleanup(func() {
		for _, s := range c.servers {
			s.Shutdown()
			s.WaitForShutdown()
		}
	})
	for i := range 3 {
		c.opts = append(c.opts, &server.Options{
			ServerName: fmt.Sprint("s", i), Host: "127.0.0.1", Port: ports[3+i], JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: ports[i]}, Routes: routes,
		})
		c.servers = append(c.servers, c.start(i))
	}
	return c
}

func (c *threeServers) start(i int) *server.Server {
	c.t.Helper()
	s, err := server.NewServer(c.opts[i].Clone())
	if err != nil {
		c.t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(30 * time.Second) {
		c.t.Fatal("nats-server does not come up")
	}
	return s
}

// poll tries op until it works.
func (c *threeServers) poll(what string, op func() error) {
	c.t.Helper()
	deadline := time.After(time.Minute)
	for {
		err := op()
		if err == nil {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			c.t.Fatalf("%s: %v", what, err)
		}
	}
}

// connect is a connection that knows all servers.
func (c *threeServers) connect() *nats.Conn {
	c.t.Helper()
	var urls []string
	for _, s := range c.servers {
		urls = append(urls, s.ClientURL())
	}
	return connectTo(c.t, urls...)
}

// index is the place of a server in servers.
func (c *threeServers) index(name string) int {
	c.t.Helper()
	i := slices.IndexFunc(c.opts, func(o *server.Options) bool { return o.ServerName == name })
	if i < 0 {
		c.t.Fatalf("no server is called %q", name)
	}
	return i
}

// A snapshot is never older than what was acknowledged, also while a replica of
// the bucket that was started again catches up, and may have the consumer.
func TestLoadWhileReplicaCatchesUp(t *testing.T) {
	c := newThreeServers(t)
	nc := c.connect()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(store.JetStreamTimeout), jetstream.WithPublishAsyncMaxPending(500))
	if err != nil {
		t.Fatal(err)
	}
	name := subjects.BucketStream(subjects.DefaultBucket)
	c.poll("make the bucket", func() error {
		_, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: subjects.DefaultBucket, History: 1, Replicas: 3, Storage: jetstream.FileStorage})
		return err
	})
	b := &store.Bucket{JS: js, Name: subjects.DefaultBucket, ContentType: subjects.ContentTypeJSON, Log: zap.NewNop()}
	const keys = 1200
	e := testEncoder()
	write := func(round int) {
		t.Helper()
		var futures []jetstream.PubAckFuture
		for i := range keys {
			id := otherApp(fmt.Sprint("a", i))
			svc := testService(fmt.Sprint("u", i), fmt.Sprint(round*keys+i+1), "True")
			svc.Status.Conditions[0].Message = strings.Repeat("x", 10000)
			ev, err := e.Encode(id, app.NewUpsert(app.State{Service: svc}, true), nil)
			if err != nil {
				t.Fatal(err)
			}
			ev.Record.Sequence = uint64(round*keys + i + 1)
			msg, err := b.Entry(id, ev.Record, ev.Msg.Header)
			if err != nil {
				t.Fatal(err)
			}
			f, err := js.PublishMsgAsync(msg)
			if err != nil {
				t.Fatal(err)
			}
			futures = append(futures, f)
		}
		for _, f := range futures {
			select {
			case <-f.Ok():
			case err := <-f.Err():
				t.Fatal(err)
			case <-time.After(time.Minute):
				t.Fatal("no acknowledgement")
			}
		}
	}
	write(0)
	var down int
	c.poll("all replicas are current", func() error {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			return err
		}
		cluster := stream.CachedInfo().Cluster
		for _, replica := range cluster.Replicas {
			if !replica.Current {
				return fmt.Errorf("%s is not", replica.Name)
			}
		}
		for i, o := range c.opts {
			if o.ServerName != cluster.Leader && o.ServerName != nc.ConnectedServerName() {
				down = i
			}
		}
		return nil
	})
	c.servers[down].Shutdown()
	c.servers[down].WaitForShutdown()
	c.poll("the bucket has a leader", func() error {
		_, err := js.Stream(t.Context(), name)
		return err
	})
	write(1)
	c.servers[down] = c.start(down)
	replica := func() *jetstream.PeerInfo {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			return nil
		}
		for _, peer := range stream.CachedInfo().Cluster.Replicas {
			if peer.Name == c.opts[down].ServerName {
				return peer
			}
		}
		return nil
	}
	loads := 0
	c.poll("the replica catches up", func() error {
		peer := replica() // before the load, so that one more follows the end
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		snap, err := b.Load(ctx)
		if err != nil {
			return err
		}
		loads++
		if want := uint64(2 * keys); snap.Position != want || snap.Last != want || len(snap.Records) != keys {
			t.Fatalf("%d keys up to %d, last sequence %d; want %d keys up to %d", len(snap.Records), snap.Position, snap.Last, keys, want)
		}
		if peer == nil || !peer.Current || peer.Lag > 0 {
			return errors.New("it is behind")
		}
		return nil
	})
	t.Logf("%d snapshots", loads)
}
