package publisher

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// impatient has p use another connection and wait for an acknowledgement no longer than timeout, so
// that missing and late ones are frequent.
func (r *stage) impatient(p *Publisher, nc *nats.Conn, timeout time.Duration) {
	r.t.Helper()
	var err error
	p.nc = nc
	if p.js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(store.JetStreamTimeout), jetstream.WithPublishAsyncTimeout(timeout)); err != nil {
		r.t.Fatal(err)
	}
}

// publishing has p publish what is in its queue, which is being filled until filled is closed.
// reached waits until p has published up to a sequence of the stream, and returns false if p ended
// before. ended waits for the end.
func (r *stage) publishing(p *Publisher, filled <-chan struct{}) (reached func(sequence uint64) bool, ended func() error) {
	done := make(chan error, 1)
	go func() { done <- r.publishAll(p, filled) }()
	var over bool
	var result error
	ended = func() error {
		if !over {
			result, over = <-done, true
		}
		return result
	}
	reached = func(sequence uint64) bool {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for !over && p.Highest() < sequence {
			select {
			case result = <-done:
				over = true
			case <-tick.C:
			}
		}
		return !over
	}
	return reached, ended
}

// leader is the server that leads the stream.
func (r *stage) leader(c *suite.NATSCluster) (name string) {
	r.t.Helper()
	c.Poll("the stream has a leader", func() error {
		info, err := r.stream.Info(r.t.Context())
		if err != nil {
			return err
		}
		if name = info.Cluster.Leader; name == "" {
			return errors.New("it has none")
		}
		return nil
	})
	return name
}

// The stream gets another leader again and again, with everything under way.
func TestPublisherLeaderStepsDown(t *testing.T) {
	c, r := newStageOfThree(t)
	const apps, most = 300, 60
	r.impatient(r.pub, r.nc, 300*time.Millisecond)
	observeAll(r.pub, apps, 1, 1)
	filled := make(chan struct{})
	reached, ended := r.publishing(r.pub, filled)
	leaders := map[string]bool{}
	changes, versions := 0, 1
	for (changes < 5 || len(leaders) < 2) && versions < most && reached(uint64(apps*(versions-1)+50)) {
		leaders[r.leader(c)] = true
		versions++
		observeAll(r.pub, apps, versions, versions)
		if _, err := r.nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+subjects.DefaultStream, nil, store.JetStreamTimeout); err == nil {
			changes++
		}
	}
	close(filled)
	if err := ended(); err != nil {
		t.Fatal(err)
	}
	r.checkStory(apps, versions)
	if changes < 5 || len(leaders) < 2 {
		t.Errorf("the stream was led by %v; its leader stepped down %d times", slices.Collect(maps.Keys(leaders)), changes)
	}
	t.Logf("%d changes of the leader, %v times sending stopped", changes, valueOf(t, r.pub.metrics.retries))
}

// The server that leads the stream stops and starts again, with everything under way.
func TestPublisherLeaderRestarts(t *testing.T) {
	c, r := newStageOfThree(t)
	const apps, versions = 300, 8
	r.impatient(r.pub, r.nc, time.Second)
	observeAll(r.pub, apps, 1, versions/2)
	filled := make(chan struct{})
	reached, ended := r.publishing(r.pub, filled)
	if !reached(apps) {
		t.Fatal("it ends too soon: ", ended())
	}
	down := c.Index(r.leader(c))
	c.Stop(down)
	observeAll(r.pub, apps, versions/2+1, versions)
	if reached(r.pub.Highest() + apps) {
		c.Start(down)
	}
	close(filled)
	if err := ended(); err != nil {
		t.Fatal(err)
	}
	r.checkStory(apps, versions)
}

// other is a publisher of another bridge: it knows what the stream holds, and nothing else.
func (r *stage) other(nc *nats.Conn, apps, versions int) *Publisher {
	r.t.Helper()
	p := r.next()
	r.impatient(p, nc, publishTimeout)
	for i := range apps {
		name, from := fmt.Sprint("a", i), 1
		m, err := store.LastMessage(r.t.Context(), r.js, subjects.DefaultStream, "flyte.apps.events.p.d."+name+".*")
		switch {
		case errors.Is(err, store.ErrNoMessage):
		case err != nil:
			r.t.Fatal(err)
		case m.Sequence <= p.accounted:
			record, err := m.Record(p.encoder.Subjects)
			if err != nil {
				r.t.Fatal(err)
			}
			p.queue.Load(appID(name), record)
			if from, err = strconv.Atoi(record.ResourceVersion); err != nil {
				r.t.Fatal(err)
			}
			from++
		}
		for v := from; v <= versions; v++ {
			observe(p, name, fmt.Sprint(v), v == 1)
		}
	}
	return p
}

// Two bridges publish the same changes at the same time. A publisher that finds an event of the
// other ends, and the next one goes on behind it.
func TestPublisherBesideAnother(t *testing.T) {
	c, r := newStageOfThree(t)
	const apps, versions = 60, 8
	conns := []*nats.Conn{r.nc, dial(t, c.URL())}
	type result struct {
		bridge int
		err    error
	}
	results := make(chan result)
	begin := func(bridge int, p *Publisher) {
		go func() { results <- result{bridge, r.publish(p)} }()
	}
	// Both start from the same: what the other appends is news to each.
	first, second := r.other(conns[0], apps, versions), r.other(conns[1], apps, versions)
	begin(0, first)
	begin(1, second)
	met := make([]int, len(conns))
	var failed error
	for running := len(conns); running > 0; {
		end := <-results
		if !errors.As(end.err, new(*OtherWriterError)) {
			failed = errors.Join(failed, end.err)
			running--
			continue
		}
		met[end.bridge]++
		begin(end.bridge, r.other(conns[end.bridge], apps, versions))
	}
	if failed != nil {
		t.Fatal(failed)
	}
	r.checkStory(apps, versions)
	if met[0]+met[1] == 0 {
		t.Error("the two never met: this test tests nothing")
	}
	t.Logf("sessions that ran into the other: %v", met)
}

// answering replaces the answers to some appends by an error, whatever becomes of the message.
type answering struct {
	jetstream.JetStream
	every int
	code  jetstream.ErrorCode
	fate  string
	tries int
	held  *nats.Msg
}

// The outcomes of a message whose append is answered with an error.
const (
	neverSent = "it is never sent"
	landsSoon = "it lands"
	landsLate = "it lands after the publisher has looked" // an earlier try of it is in process
)

func (a *answering) PublishMsgAsync(msg *nats.Msg, opts ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	if a.held != nil && expectedLast(msg) <= expectedLast(a.held) {
		if _, err := a.JetStream.PublishMsgAsync(a.held, opts...); err != nil {
			return nil, err
		}
		a.held = nil
	}
	if a.tries++; a.tries%a.every != 0 {
		return a.JetStream.PublishMsgAsync(msg, opts...)
	}
	switch a.fate {
	case landsSoon:
		if _, err := a.JetStream.PublishMsgAsync(msg, opts...); err != nil {
			return nil, err
		}
	case landsLate:
		a.held = &nats.Msg{Subject: msg.Subject, Header: maps.Clone(msg.Header), Data: msg.Data}
	}
	return refusedFuture{msg, &jetstream.APIError{Code: 400, ErrorCode: a.code, Description: a.fate}}, nil
}

// expectedLast is where a message expects the stream to end.
func expectedLast(msg *nats.Msg) uint64 {
	sequence, _ := strconv.ParseUint(msg.Header.Get(subjects.HeaderExpectedLastSequence), 10, 64)
	return sequence
}

// refusedFuture is the answer of a stream that refuses.
type refusedFuture struct {
	msg *nats.Msg
	err error
}

func (f refusedFuture) Ok() <-chan *jetstream.PubAck { return nil }
func (f refusedFuture) Msg() *nats.Msg               { return f.msg }
func (f refusedFuture) Err() <-chan error {
	failed := make(chan error, 1)
	failed <- f.err
	return failed
}

// A stream of several replicas refuses an append while an earlier try of it, or another append with
// its filter, is in process. That leaves open what becomes of it.
func TestPublisherWhileInProcess(t *testing.T) {
	t.Parallel()
	for _, code := range []jetstream.ErrorCode{codeDuplicateInProcess, codeFilterInProcess} {
		for _, fate := range []string{neverSent, landsSoon, landsLate} {
			t.Run(fmt.Sprint(code, " ", fate), func(t *testing.T) {
				t.Parallel()
				r := newStage(t)
				answers := &answering{JetStream: r.pub.js, every: 97, code: code, fate: fate}
				r.pub.js = answers
				observeAll(r.pub, 100, 1, 6)
				if err := r.publish(r.pub); err != nil {
					t.Fatal(err)
				}
				r.checkStory(100, 6)
				if got, want := valueOf(t, r.pub.metrics.fenceConflicts), 5; got < want {
					t.Errorf("%d appends were refused, want %d at least", got, want)
				}
			})
		}
	}
}

// Some acknowledgements get lost on the way.
func TestPublisherAcksGetLost(t *testing.T) {
	t.Parallel()
	r := newStage(t)
	var acks, lost atomic.Int64
	url := suite.Wire(t, strings.TrimPrefix(r.nc.ConnectedUrl(), "nats://"), 0, func(payload []byte) bool {
		if !bytes.HasPrefix(payload, []byte(`{"stream":`)) || acks.Add(1)%60 != 0 {
			return false
		}
		lost.Add(1)
		return true
	})
	r.impatient(r.pub, dial(t, url), 200*time.Millisecond)
	observeAll(r.pub, 200, 1, 6)
	if err := r.publish(r.pub); err != nil {
		t.Fatal(err)
	}
	r.checkStory(200, 6)
	if got := lost.Load(); got < 10 {
		t.Errorf("%d acknowledgements of %d got lost, want 10 at least", got, acks.Load())
	}
}
