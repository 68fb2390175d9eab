package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// numbered is a source of lines that count, in groups as Kubernetes sends them.
type numbered struct {
	groups int
	pause  time.Duration // between groups
}

const group = 500

func (n numbered) Open(_ context.Context, q logsvc.Query) (logsvc.LogStream, error) {
	if q.App.Name != "search" {
		return nil, request.Errorf(subjects.CodeNotFound, "no app %s", q.App)
	}
	return n, nil
}

func (n numbered) Org() string        { return "acme" }
func (n numbered) Replicas() []string { return []string{"pod-a"} }
func (n numbered) Close()             {}

func (n numbered) Run(ctx context.Context, out logsvc.Sink) error {
	lines := make([]logsvc.Line, group)
	padding := strings.Repeat("x", 110)
	for i := range lines {
		lines[i].Text = []byte("00000000 " + padding)
	}
	for g := range n.groups {
		for i := range lines {
			number(lines[i].Text, g*group+i)
		}
		if err := out.Lines(ctx, "pod-a", lines, false, ""); err != nil {
			return err
		}
		if n.pause > 0 {
			select {
			case <-time.After(n.pause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// number writes n into the first eight digits of text.
func number(text []byte, n int) {
	for i := 7; i >= 0; i-- {
		text[i] = '0' + byte(n%10)
		n /= 10
	}
}

// runService serves the source until the test is over.
func runService(t *testing.T, nc *nats.Conn, source logsvc.LogStreamer) {
	t.Helper()
	cfg := logsvc.Config{Prefix: subjects.DefaultPrefix, MaxStreams: 10, InboxPrefix: "_INBOX", Version: "1.0.0"}
	service, err := logsvc.New(cfg, source, nc, nc, zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	deadline := time.After(patience)
	for {
		var info micro.Info
		msg, err := nc.Request("$SRV.INFO."+logsvc.ServiceName, nil, time.Second)
		// It says that it is there a moment before it answers to everything.
		if err == nil && json.Unmarshal(msg.Data, &info) == nil && len(info.Endpoints) == 3 {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatal("the service does not start")
		}
	}
}

// counter checks that every line comes once and in order.
type counter struct {
	next int
	some chan struct{} // closed with the first lines
}

func (c *counter) take(m *Message) error {
	if m.Kind != Lines {
		return nil
	}
	if c.next == 0 && c.some != nil {
		close(c.some)
	}
	// All lines are equally long, and a batch goes on where the one before ended.
	if want := fmt.Sprintf("%08d ", c.next); !bytes.HasPrefix(m.Body, []byte(want)) {
		return fmt.Errorf("got %.9q, want line %s", m.Body, want)
	}
	c.next += bytes.Count(m.Body, []byte("\n"))
	return nil
}

// TestWithTheService: the client and the service itself.
func TestWithTheService(t *testing.T) {
	const groups = 1000
	s := suite.NATS(t, nil)
	runService(t, connect(t, s), numbered{groups: groups})
	nc := connect(t, s)
	c := counter{}
	began := time.Now()
	end, err := Tail(t.Context(), nc, Request{App: testApp(), Timeout: patience, Format: subjects.LogFormatRaw, Follow: new(false)}, c.take)
	if err != nil || end.Reason != subjects.LogEndEOF || end.Lines != groups*group || c.next != groups*group {
		t.Errorf("got %d lines, end %+v, error %v; want %d lines", c.next, end, err, groups*group)
	}
	t.Logf("%.2f million lines a second", groups*group/time.Since(began).Seconds()/1e6)

	_, err = Tail(t.Context(), nc, Request{App: subjects.AppID{Project: "shop", Domain: "production", Name: "x"}, Timeout: patience}, c.take)
	var failure *Error
	if !errors.As(err, &failure) || failure.Code != subjects.CodeNotFound || err.Error() != "no app shop/production/x (404 NotFound)" {
		t.Errorf("got %v", err)
	}
	if _, err = Tail(t.Context(), nc, Request{App: testApp(), Timeout: patience, Include: "("}, c.take); !errors.As(err, &failure) || failure.Code != subjects.CodeInvalidArgument {
		t.Errorf("got %v", err)
	}
}

// TestServerRestarts: NATS goes away and comes back in the middle of a stream.
func TestServerRestarts(t *testing.T) {
	const groups = 300
	s := suite.NATS(t, nil)
	port := portOf(t, s)
	runService(t, connect(t, s), numbered{groups: groups, pause: 5 * time.Millisecond})
	c := counter{some: make(chan struct{})}
	nc := connect(t, s)
	done := make(chan error, 1)
	go func() {
		_, err := Tail(t.Context(), nc, Request{App: testApp(), Timeout: patience, Format: subjects.LogFormatRaw}, c.take)
		done <- err
	}()
	<-c.some
	s.Shutdown()
	s.WaitForShutdown()
	suite.NATS(t, &server.Options{Port: port})
	select {
	case err := <-done:
		if err != nil || c.next != groups*group {
			t.Errorf("got %d lines and %v, want %d lines", c.next, err, groups*group)
		}
	case <-time.After(patience):
		t.Fatal("the stream does not end")
	}
}
