package projector

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

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
	behind.onIdle = func(n int32) { behind.caughtUp.Store(n >= 2) }
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
	case <-p.CaughtUp:
	case <-time.After(suite.Patience):
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
