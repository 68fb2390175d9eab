package client

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestNobodyServesLogs(t *testing.T) {
	s := suite.NATS(t, nil)
	_, err := Tail(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience}, newCollector().take)
	if !errors.Is(err, ErrNoService) || err.Error() != "nobody serves logs on flyte.apps.logs.tail.shop.production.search" {
		t.Errorf("got %v", err)
	}
}

func TestSilentService(t *testing.T) {
	s := suite.NATS(t, nil)
	serve(t, s, func(*service) {})
	_, err := tail(t.Context(), connect(t, s), Request{App: testApp(), Timeout: 50 * time.Millisecond}, newCollector().take, quick())
	if !errors.Is(err, ErrNoAnswer) {
		t.Errorf("got %v, want %v", err, ErrNoAnswer)
	}
}

func TestGap(t *testing.T) {
	for name, script := range map[string]func(*service){
		"silence": func(v *service) { v.lines(1, "1\n"); v.lines(3, "3\n"); v.lines(4, "4\n") },
		"end": func(v *service) {
			v.lines(1, "1\n")
			v.lines(3, "3\n")
			v.lines(4, "4\n")
			v.end(subjects.LogEndEOF, 4)
		},
		"numbered end":    func(v *service) { v.lines(1, "1\n"); v.message(4, "", subjects.HeaderLogEnd, "eof") },
		"over the window": func(v *service) { v.lines(1, "1\n"); v.lines(400, "400\n") },
	} {
		t.Run(name, func(t *testing.T) {
			s := suite.NATS(t, nil)
			serve(t, s, script)
			c := newCollector()
			timing := quick()
			timing.gap = 100 * time.Millisecond
			_, err := tail(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience}, c.take, timing)
			if !errors.Is(err, ErrGap) || !strings.Contains(err.Error(), "number 2 did not come") {
				t.Errorf("got %v, want %v", err, ErrGap)
			}
			if diff := cmp.Diff(c.all(), []string{"pod-a: 1\n"}); diff != "" {
				t.Errorf("got - want +:\n%s", diff)
			}
		})
	}
}

// TestServiceAbsent: a service that is missing for a moment ends nothing.
func TestServiceAbsent(t *testing.T) {
	s := suite.NATS(t, nil)
	v := serve(t, s, func(v *service) { v.lines(1, "x\n") })
	c := newCollector()
	timing := quick()
	timing.quiet, timing.answer = 60*time.Millisecond, 60*time.Millisecond
	done := start(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience}, c.take, timing)
	v.wantAcks(1, 1, 1) // it probes, and the silent service is there
	if err := v.ackSub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	// Only a subscription of its own can take the acknowledgements after this one.
	select {
	case o := <-done:
		t.Fatalf("got %v while the service was missing for a moment", o.err)
	case <-time.After(5 * timing.quiet):
	}
	for len(v.acks) > 0 {
		<-v.acks
	}
	filter, err := v.scheme.LogsAckFilter(testApp().Project, testStream)
	if err != nil {
		t.Fatal(err)
	}
	if v.ackSub, err = v.nc.Subscribe(filter, v.acknowledged); err != nil {
		t.Fatal(err)
	}
	v.wantAcks(1, 1)
	v.lines(2, "y\n")
	v.end(subjects.LogEndEOF, 2)
	if o := wait(t, done); o.err != nil {
		t.Error(o.err)
	}
}

// TestServiceGone: a service that is missing for longer ends the stream.
func TestServiceGone(t *testing.T) {
	s := suite.NATS(t, nil)
	v := serve(t, s, func(v *service) { v.lines(1, "x\n") })
	timing := quick()
	timing.quiet, timing.gone = 60*time.Millisecond, 150*time.Millisecond
	done := start(t.Context(), connect(t, s), Request{App: testApp(), Timeout: patience}, newCollector().take, timing)
	v.wantAcks(1)
	v.nc.Close()
	if o := wait(t, done); !errors.Is(o.err, ErrGone) {
		t.Errorf("got %v, want %v", o.err, ErrGone)
	}
}

// TestMissingSince: a service is gone when the replies that it has no subscription have lasted for
// so long, with none of another kind between them.
func TestMissingSince(t *testing.T) {
	missing := nats.NewMsg("x")
	missing.Header.Set(subjects.HeaderStatus, subjects.StatusNoResponders)
	there := nats.NewMsg("x")
	now := time.Now()
	l := &liveness{timing: timing{gone: 10 * time.Second}}
	for _, step := range []struct {
		at   time.Duration
		msg  *nats.Msg
		gone bool
	}{{0, missing, false}, {9 * time.Second, missing, false}, {11 * time.Second, there, false}, {12 * time.Second, missing, false}, {21 * time.Second, missing, false}, {22 * time.Second, missing, true}} {
		if err := l.answered(step.msg, now.Add(step.at)); errors.Is(err, ErrGone) != step.gone {
			t.Errorf("after %s: got %v, want that it is gone: %t", step.at, err, step.gone)
		}
	}
}

// TestReconnect: the connection of the reader breaks, and what was under way is
// sent again, after newer messages.
func TestReconnect(t *testing.T) {
	s := suite.NATS(t, nil)
	port := portOf(t, s)
	v := serve(t, s, func(v *service) { v.lines(1, "1\n") })
	nc := connect(t, s)
	c := newCollector()
	done := start(t.Context(), nc, Request{App: testApp(), Timeout: patience}, c.take, quick())
	c.wait(t)
	s.Shutdown()
	s.WaitForShutdown()
	suite.NATS(t, &server.Options{Port: port})
	for _, nc := range []*nats.Conn{nc, v.nc} {
		deadline := time.After(patience)
		// The connection may not know yet that it is broken.
		for !nc.IsConnected() || nc.FlushTimeout(time.Second) != nil {
			select {
			case <-time.After(5 * time.Millisecond):
			case <-deadline:
				t.Fatal("no connection")
			}
		}
	}
	v.lines(3, "3\n")
	v.lines(1, "1\n") // its acknowledgement may have been lost
	v.lines(2, "2\n")
	v.end(subjects.LogEndEOF, 3)
	if o := wait(t, done); o.err != nil {
		t.Error(o.err)
	}
	if diff := cmp.Diff(c.all(), []string{"pod-a: 1\n", "pod-a: 2\n", "pod-a: 3\n", "end eof 3"}); diff != "" {
		t.Errorf("got - want +:\n%s", diff)
	}
}

func TestConnectionClosed(t *testing.T) {
	s := suite.NATS(t, nil)
	serve(t, s, func(v *service) { v.lines(1, "x\n") })
	nc := connect(t, s)
	c := newCollector()
	done := start(t.Context(), nc, Request{App: testApp(), Timeout: patience}, c.take, quick())
	c.wait(t)
	nc.Close()
	if o := wait(t, done); !errors.Is(o.err, nats.ErrConnectionClosed) {
		t.Errorf("got %v, want %v", o.err, nats.ErrConnectionClosed)
	}
}
