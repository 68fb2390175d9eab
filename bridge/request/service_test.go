package request_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// patience bounds every wait. Nothing is expected to come near it.
const patience = suite.Patience

// runner is a service with one endpoint, "ask", and a client.
type runner struct {
	t    *testing.T
	nc   *nats.Conn // of the client
	stop context.CancelFunc
	done chan error

	mu      sync.Mutex
	ignored []string
}

func connect(t *testing.T, s *server.Server) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), nats.Timeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// run runs a service whose endpoint calls begin.
func run(t *testing.T, begin func(nc *nats.Conn, ctx context.Context, r *request.Request) (func(), error)) *runner {
	t.Helper()
	s := suite.NATS(t, nil)
	r, own := &runner{t: t, nc: connect(t, s), done: make(chan error, 1)}, connect(t, s)
	cfg := request.Config{
		Name: "test", Version: "1.0.0", InboxPrefix: "_INBOX", Stats: func() any { return nil },
		Endpoints: []request.Endpoint{{
			Name: "ask", Subject: "ask", MaxBody: 512 << 10,
			Begin:  func(ctx context.Context, req *request.Request) (func(), error) { return begin(own, ctx, req) },
			Refuse: func(req *request.Request, err error) { refuse(t, req, err) },
			Ignore: func(result string) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.ignored = append(r.ignored, result)
			},
		}},
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.done <- request.Serve(ctx, own, own, cfg, zap.NewNop()) }()
	t.Cleanup(func() {
		if err := r.ended(); err != nil {
			t.Error(err)
		}
	})
	suite.Eventually(t, patience, "the service listens", func() error {
		_, err := r.nc.Request("ask", make([]byte, 512<<10+1), time.Second)
		return err
	})
	return r
}

// The connection for answers may be closed before the service waits for that.
func TestAnswersClosedAtTheStart(t *testing.T) {
	t.Parallel()
	s := suite.NATS(t, nil)
	requests, answers := connect(t, s), connect(t, s)
	answers.Close()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		done <- request.Serve(ctx, requests, answers, request.Config{Name: "test", Version: "1.0.0", Stats: func() any { return nil }}, zap.NewNop())
	}()
	select {
	case err := <-done:
		if !errors.Is(err, nats.ErrConnectionClosed) {
			t.Errorf("got %v, want %v", err, nats.ErrConnectionClosed)
		}
	case <-time.After(patience):
		t.Fatal("the service runs without a connection for its answers")
	}
}

func refuse(t *testing.T, req *request.Request, err error) {
	var failure *request.Error
	if !errors.As(err, &failure) {
		t.Errorf("refused with %v, want a *request.Error", err)
		return
	}
	if err := req.Respond(failure); err != nil {
		t.Error(err)
	}
}

// ended stops the service and returns its error.
func (r *runner) ended() error {
	r.stop()
	select {
	case err := <-r.done:
		r.done <- err // for the next call
		return err
	case <-time.After(patience):
		return errors.New("the service does not stop")
	}
}

// send sends requests with bodies of a size, whose answers arrive at the subscription.
func (r *runner) send(requests, size int) *nats.Subscription {
	r.t.Helper()
	inbox := r.nc.NewInbox()
	answers, err := r.nc.SubscribeSync(inbox)
	if err != nil {
		r.t.Fatal(err)
	}
	for range requests {
		if err := r.nc.PublishRequest("ask", inbox, make([]byte, size)); err != nil {
			r.t.Fatal(err)
		}
	}
	// The connection of the service delivers in order: its answer means that all have arrived.
	if _, err := r.nc.Request("$SRV.PING.test", nil, patience); err != nil {
		r.t.Fatal(err)
	}
	return answers
}

func (r *runner) pending(answers *nats.Subscription) int {
	r.t.Helper()
	n, _, err := answers.Pending()
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// A queue of an endpoint takes a bounded amount of memory.
func TestQueueIsBounded(t *testing.T) {
	const requests, most = 80, 33 // of 512 KiB: 16 MiB are queued, and Begin has one
	release := make(chan struct{})
	r := run(t, func(*nats.Conn, context.Context, *request.Request) (func(), error) {
		<-release
		return nil, request.Errorf(subjects.CodeNotFound, "none")
	})
	answers := r.send(requests, 512<<10)
	close(release)
	suite.Eventually(t, patience, "queued requests are answered", func() error {
		if got := r.pending(answers); got < most-1 {
			return fmt.Errorf("%d answers", got)
		}
		return nil
	})
	if err := r.ended(); err != nil {
		t.Fatal(err)
	}
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := r.pending(answers); got > most {
		t.Errorf("got %d answers, want at most %d", got, most)
	}
}

// At shutdown, running requests end with their answers, and queued ones are refused.
func TestShutdownAnswersAll(t *testing.T) {
	const queued = 100
	entered, release := make(chan struct{}, queued+1), make(chan struct{})
	cause := make(chan error, queued+1)
	r := run(t, func(nc *nats.Conn, ctx context.Context, req *request.Request) (func(), error) {
		entered <- struct{}{}
		<-release
		return func() {
			<-ctx.Done()
			cause <- context.Cause(ctx)
			if err := nc.PublishMsg(request.ErrorMessage(req.Reply, request.ErrShutdown)); err != nil {
				t.Error(err)
			}
		}, nil
	})
	answers := r.send(1, 0)
	<-entered
	more := r.send(queued, 0)
	r.stop()
	close(release)
	if err := r.ended(); err != nil {
		t.Error(err)
	}
	if got := <-cause; !errors.Is(got, request.ErrShutdown) {
		t.Errorf("a running request ends with %v, want %v", got, request.ErrShutdown)
	}
	for i := range queued + 1 {
		from := more
		if i == queued {
			from = answers
		}
		msg, err := from.NextMsg(patience)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		if got, want := msg.Header.Get(subjects.HeaderServiceErrorCode), subjects.CodeUnavailable.HeaderValue(); got != want {
			t.Fatalf("answer %d: got code %q, want %s", i, got, want)
		}
	}
	if _, err := r.nc.Request("ask", nil, patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a request after the end: got %v, want %v", err, nats.ErrNoResponders)
	}
}

// A request that must not be answered is counted and gets nothing.
func TestIgnore(t *testing.T) {
	r := run(t, func(*nats.Conn, context.Context, *request.Request) (func(), error) {
		return nil, errors.New("begun")
	})
	for _, reply := range []string{"", "other.subject"} {
		if err := r.nc.PublishMsg(&nats.Msg{Subject: "ask", Reply: reply}); err != nil {
			t.Fatal(err)
		}
	}
	suite.Eventually(t, patience, "both are counted", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if got, want := fmt.Sprint(r.ignored), fmt.Sprint([]string{request.NoReply, request.ReplyRefused}); got != want {
			return fmt.Errorf("got %s, want %s", got, want)
		}
		return nil
	})
}

// What a running request keeps is its body, not the headers that arrived with it.
func TestHeadersAreNotKept(t *testing.T) {
	const requests, headerBytes = 60, 900 << 10
	admitted, release := make(chan struct{}), make(chan struct{})
	r := run(t, func(_ *nats.Conn, _ context.Context, req *request.Request) (func(), error) {
		return func() {
			admitted <- struct{}{}
			<-release
			runtime.KeepAlive(req)
		}, nil
	})
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for range requests {
		msg := nats.NewMsg("ask")
		msg.Reply, msg.Data = r.nc.NewInbox(), []byte("x")
		msg.Header.Set("Padding", strings.Repeat("x", headerBytes))
		if err := r.nc.PublishMsg(msg); err != nil {
			t.Fatal(err)
		}
	}
	for range requests {
		<-admitted
	}
	if held := heap() - before; held > requests*headerBytes/2 {
		t.Errorf("%d requests with a body of a byte hold %d bytes", requests, held)
	}
	close(release)
}
