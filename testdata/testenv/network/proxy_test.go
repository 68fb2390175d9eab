package network_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv/network"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestMain(m *testing.M) { suite.Main(m, func() error { return nil }) }

// echo is a server that sends back what it gets; received counts its
// connections, ended those that the other side has ended.
type echo struct {
	addr            string
	received, ended chan struct{}
}

func startEcho(t *testing.T) *echo {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{addr: listener.Addr().String(), received: make(chan struct{}, 100), ended: make(chan struct{}, 100)}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			e.received <- struct{}{}
			running.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
				e.ended <- struct{}{}
			})
		}
	})
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		running.Wait()
	})
	return e
}

func startProxy(t *testing.T, target string) *network.Proxy {
	t.Helper()
	p, err := network.NewProxy(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// talk says a line and wants it back within the time.
func talk(conn net.Conn, within time.Duration) error {
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		return err
	}
	got, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && got != "hello\n" {
		return errors.New("got " + got)
	}
	return err
}

func isTimeout(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) && netErr.Timeout()
}

const (
	soon = suite.Patience         // for what has to come
	much = 200 * time.Millisecond // for what must not come
)

func TestProxyCut(t *testing.T) {
	t.Parallel()
	p := startProxy(t, startEcho(t).addr)
	conn, addr := dial(t, p.Addr()), p.Addr()
	if err := talk(conn, soon); err != nil {
		t.Fatal(err)
	}
	for range 2 { // twice: nothing of the first time stays
		if err := p.Cut(); err != nil {
			t.Fatal(err)
		}
		if err := talk(conn, soon); err == nil || isTimeout(err) {
			t.Errorf("over a cut connection: got %v, want it closed", err)
		}
		if refused, err := net.DialTimeout("tcp", p.Addr(), soon); err == nil {
			_ = refused.Close()
			t.Error("connected through a cut proxy")
		}
		if err := p.Heal(); err != nil {
			t.Fatal(err)
		}
		if got, want := p.Addr(), addr; got != want {
			t.Errorf("address = %s, want %s", got, want)
		}
		conn = dial(t, p.Addr())
		if err := talk(conn, soon); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
	if err := talk(conn, soon); err != nil {
		t.Errorf("healing a proxy that was well: %v", err)
	}
}

func TestProxyHang(t *testing.T) {
	t.Parallel()
	server := startEcho(t)
	p := startProxy(t, server.addr)
	before := dial(t, p.Addr())
	if err := talk(before, soon); err != nil {
		t.Fatal(err)
	}
	<-server.received
	if err := p.Hang(); err != nil {
		t.Fatal(err)
	}
	during, ending := dial(t, p.Addr()), dial(t, p.Addr())
	for name, conn := range map[string]net.Conn{"before": before, "during": during} {
		if err := talk(conn, much); !isTimeout(err) {
			t.Errorf("over a connection from %s: got %v, want no answer", name, err)
		}
	}
	if err := ending.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-server.ended:
		t.Error("the end of a connection got through")
	case <-time.After(much):
	}
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]net.Conn{"before": before, "during": during} {
		if err := talk(conn, soon); err == nil || isTimeout(err) {
			t.Errorf("over a connection from %s: got %v, want it closed", name, err)
		}
	}
	for range 3 {
		select {
		case <-server.ended:
		case <-time.After(soon):
			t.Fatal("the server still has connections that hung")
		}
	}
	if err := talk(dial(t, p.Addr()), soon); err != nil {
		t.Fatal(err)
	}
}

// From any state to any other, also with a peer that does not read.
func TestProxyStates(t *testing.T) {
	t.Parallel()
	p := startProxy(t, startEcho(t).addr)
	deaf := dial(t, p.Addr())
	full := make(chan struct{})
	go func() { // ends with the first repair, which closes the connection
		defer close(full)
		chunk := make([]byte, 64<<10)
		for {
			if _, err := deaf.Write(chunk); err != nil {
				return
			}
		}
	}()
	steps := []struct {
		name string
		do   func() error
		want string
	}{
		{"hang", p.Hang, "hangs"},
		{"hang again", p.Hang, "hangs"},
		{"cut", p.Cut, "refuses"},
		{"cut again", p.Cut, "refuses"},
		{"hang from cut", p.Hang, "hangs"},
		{"heal", p.Heal, "works"},
		{"heal again", p.Heal, "works"},
		{"close", p.Close, "refuses"},
	}
	for _, step := range steps {
		done := make(chan error, 1)
		go func() { done <- step.do() }()
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
		case <-time.After(soon):
			t.Fatalf("%s: it waits for a peer", step.name)
		}
		wait := soon
		if step.want == "hangs" {
			wait = 5 * much
		}
		if got := stateOf(t.Context(), p.Addr(), wait); got != step.want {
			t.Errorf("%s: it %s, want %s", step.name, got, step.want)
		}
	}
	<-full
	if err := p.Heal(); err == nil {
		t.Error("healed a closed proxy")
	}
}

func stateOf(ctx context.Context, addr string, wait time.Duration) string {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "refuses"
	}
	defer conn.Close()
	switch err := talk(conn, wait); {
	case err == nil:
		return "works"
	case isTimeout(err):
		return "hangs"
	default:
		return err.Error()
	}
}
