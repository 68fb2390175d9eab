package publisher

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// through is the stage seen through a wire (suite.Wire).
func (r *stage) through(delay time.Duration) *stage {
	r.t.Helper()
	nc := dial(r.t, suite.Wire(r.t, strings.TrimPrefix(r.nc.ConnectedUrl(), "nats://"), delay, nil), nats.IgnoreDiscoveredServers())
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(store.JetStreamTimeout), jetstream.WithPublishAsyncTimeout(store.JetStreamTimeout)) // as New does
	if err != nil {
		r.t.Fatal(err)
	}
	far := *r
	far.nc, far.js = nc, js
	if far.stream, err = js.Stream(r.t.Context(), subjects.DefaultStream); err != nil {
		r.t.Fatal(err)
	}
	far.published = far.lastEventOf
	return &far
}

// Another bridge has published 1,000 apps, and the leader answers a read within 20 ms.
func TestSettleFarFromTheLeader(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	far := r.through(10 * time.Millisecond)
	p := far.next()
	observeAll(r.pub, 1000, 1, 1)
	if err := r.publish(r.pub); err != nil {
		t.Fatal(err)
	}
	observeAll(p, 1000, 1, 1)
	if err := far.publish(p); !errors.As(err, new(*OtherWriterError)) {
		trouble := ""
		if why := p.Trouble(); why != nil {
			trouble = *why
		}
		t.Errorf("got %v after a minute; accounted for are %d of %d: %s", err, p.accounted, r.count(), trouble)
	}
}

// Another bridge appends while a publisher finds out what was stored: nothing is lost.
func TestSettleBesideAnother(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	late := r.through(5 * time.Millisecond).next() // its answers take a while
	consumer, err := r.js.OrderedConsumer(ctx, subjects.DefaultStream, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	follows, err := consumer.Consume(func(m jetstream.Msg) { // as the projector does
		if meta, err := m.Metadata(); err == nil {
			late.known.NoteStream(meta.Sequence.Stream)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	other := r.next()
	g := make(chan error, 1)
	go func() { g <- other.Run(ctx) }()
	busy.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond) // several times during each look
		defer tick.Stop()
		for v := 1; ; v++ {
			select {
			case <-tick.C:
				for i := range 5 {
					observe(other, fmt.Sprint("b", v%50, "-", i), strconv.Itoa(v), v <= 50)
				}
			case <-ctx.Done():
				return
			}
		}
	})
	lost, looks := 0, 40
	var last error
	for range looks {
		late.accounted = late.known.Checkpoint().Stream
		if err := late.look(t.Context()); errors.Is(err, store.ErrLostTail) {
			lost++
			last = err
		}
	}
	cancel()
	busy.Wait()
	follows.Stop()
	<-follows.Closed()
	t.Log("the other publisher ended:", <-g)
	if lost > 0 {
		t.Errorf("%d of %d looks report a lost tail of a stream that lost nothing: %v", lost, looks, last)
	}
}
