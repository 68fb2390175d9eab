package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const testStream = "stream-1"

// patience bounds every wait. Nothing is expected to come near it.
const patience = suite.Patience

func testApp() subjects.AppID {
	return subjects.AppID{Project: "shop", Domain: "production", Name: "search"}
}

func connect(t *testing.T, s *server.Server) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	nc, err := nats.Connect(s.ClientURL(), nats.Timeout(patience), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ReconnectBufSize(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nc.Close()
		<-closed
	})
	return nc
}

func portOf(t *testing.T, s *server.Server) int {
	t.Helper()
	addr, ok := s.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("got address %v, want one of TCP", s.Addr())
	}
	return addr.Port
}

// service speaks the service's side of the protocol, as a test tells it.
type service struct {
	t       *testing.T
	nc      *nats.Conn
	scheme  subjects.Subjects
	acks    chan uint64 // the numbers that were acknowledged, in this order
	stopped chan struct{}
	ackSub  *nats.Subscription

	mu       sync.Mutex
	tailSub  *nats.Subscription // of the requests
	requests []wireRequest
	reply    string
}

// serve answers each request with script, which must not block for long.
func serve(t *testing.T, s *server.Server, script func(*service)) *service {
	t.Helper()
	scheme, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	// No test sends as many messages as acks has room for.
	v := &service{t: t, nc: connect(t, s), scheme: scheme, acks: make(chan uint64, 1<<14), stopped: make(chan struct{}, 4)}
	filter, err := scheme.LogsAckFilter(testApp().Project, testStream)
	if err != nil {
		t.Fatal(err)
	}
	if v.ackSub, err = v.nc.Subscribe(filter, v.acknowledged); err != nil {
		t.Fatal(err)
	}
	stop, err := scheme.LogsStop(testApp().Project, testStream)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = v.nc.Subscribe(stop, func(*nats.Msg) { v.stopped <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	tailing, err := scheme.LogsFilter(subjects.LogTail)
	if err != nil {
		t.Fatal(err)
	}
	v.mu.Lock()
	v.tailSub, err = v.nc.Subscribe(tailing, func(m *nats.Msg) {
		var w wireRequest
		if err := json.Unmarshal(m.Data, &w); err != nil {
			t.Errorf("request %q: %v", m.Data, err)
		}
		v.mu.Lock()
		v.requests, v.reply = append(v.requests, w), m.Reply
		v.mu.Unlock()
		script(v)
	})
	v.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if err := v.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return v
}

func (v *service) acknowledged(m *nats.Msg) {
	_, _, token, err := v.scheme.ParseLogsAck(m.Subject)
	if err != nil {
		v.t.Error(err)
		return
	}
	seq, err := strconv.ParseUint(token, 10, 64)
	if err != nil || len(m.Data) > 0 {
		v.t.Errorf("acknowledgement %s %q: %v", m.Subject, m.Data, err)
	}
	select {
	case v.acks <- seq:
	default:
		v.t.Error("too many acknowledgements")
	}
}

// message publishes to the reader. seq 0: without a number and without a reply
// subject. Headers are pairs.
func (v *service) message(seq int, body string, headers ...string) {
	v.mu.Lock()
	m := nats.NewMsg(v.reply)
	v.mu.Unlock()
	m.Data = []byte(body)
	m.Header.Set(subjects.HeaderLogStream, testStream)
	if seq > 0 {
		ack, err := v.scheme.LogsAck(testApp().Project, testStream, strconv.Itoa(seq))
		if err != nil {
			v.t.Error(err)
		}
		m.Reply = ack
		m.Header.Set(subjects.HeaderLogSeq, strconv.Itoa(seq))
	}
	for i := 0; i+1 < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	if err := v.nc.PublishMsg(m); err != nil {
		v.t.Logf("publish: %v", err)
	}
}

func (v *service) lines(seq int, body string) {
	v.message(seq, body, subjects.HeaderLogReplica, "pod-a")
}

func (v *service) replicas(list string) {
	v.message(1, subjects.LogNotePrefix+"replicas: "+list+"\n", subjects.HeaderLogNote, string(subjects.LogNoteReplicas), subjects.HeaderLogReplicas, list)
}

func (v *service) end(reason subjects.LogEnd, lines int) {
	v.message(0, "", subjects.HeaderLogEnd, string(reason), subjects.HeaderLogLines, strconv.Itoa(lines), subjects.HeaderStatus, subjects.StatusNoResponders)
}

func (v *service) fail(code subjects.Code, text string) {
	v.message(0, text, subjects.HeaderServiceError, text, subjects.HeaderServiceErrorCode, code.HeaderValue())
}

// wantAcks waits for the acknowledgements of the numbers from first to last, in
// order.
func (v *service) wantAcks(want ...uint64) {
	v.t.Helper()
	for _, want := range want {
		select {
		case got := <-v.acks:
			if got != want {
				v.t.Fatalf("got an acknowledgement of %d, want %d", got, want)
			}
		case <-time.After(patience):
			v.t.Fatalf("got no acknowledgement of %d", want)
		}
	}
}

// wantAck waits for the acknowledgement of a number. Those below it may come again.
func (v *service) wantAck(want uint64) {
	v.t.Helper()
	for {
		select {
		case got := <-v.acks:
			if got > want {
				v.t.Fatalf("got an acknowledgement of %d, want %d", got, want)
			}
			if got == want {
				return
			}
		case <-time.After(patience):
			v.t.Fatalf("got no acknowledgement of %d", want)
		}
	}
}

// collector keeps what a handler was given.
type collector struct {
	mu   sync.Mutex
	got  []string
	seen chan struct{} // one for each message
}

func newCollector() *collector { return &collector{seen: make(chan struct{}, 4096)} }

func (c *collector) take(m *Message) error {
	text := ""
	switch m.Kind {
	case Lines:
		text = m.Replica + ": " + string(m.Body)
	case Note:
		text = fmt.Sprintf("%s %v: %s", m.Note, m.Replicas, m.Body)
	case Last:
		text = fmt.Sprintf("end %s %d", m.End.Reason, m.End.Lines)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, text)
	c.seen <- struct{}{}
	return nil
}

func (c *collector) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.got...)
}

// wait waits for the next message.
func (c *collector) wait(t *testing.T) {
	t.Helper()
	select {
	case <-c.seen:
	case <-time.After(patience):
		t.Fatalf("waited in vain for a message, got %q", c.all())
	}
}

// quick is a timing for tests: it checks often, and gives up nothing. A test of what follows when a
// time is over makes that time short.
func quick() timing {
	return timing{
		check: 5 * time.Millisecond, quiet: patience, answer: time.Second,
		gone: patience, gap: patience, end: patience, keepAlive: patience,
	}
}

type outcome struct {
	end End
	err error
}

// start runs tail in the background.
func start(ctx context.Context, nc *nats.Conn, req Request, handle Handler, t timing) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		end, err := tail(ctx, nc, req, handle, t)
		done <- outcome{end, err}
	}()
	return done
}

func wait(t *testing.T, done <-chan outcome) outcome {
	t.Helper()
	select {
	case o := <-done:
		return o
	case <-time.After(patience):
		t.Fatal("the stream does not end")
		return outcome{}
	}
}
