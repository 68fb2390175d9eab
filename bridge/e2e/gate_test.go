package e2e_test

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/appbridge/appbridge/bridge"
)

// direction is one of the two ways through a gate.
type direction int

const (
	toServer direction = iota
	toClient
)

// gate stands between a bridge and its server and keeps back one direction or
// both, so that a test reaches the very instant it is about: an event that is
// stored and not acknowledged, an append that is on its way.
type gate struct {
	listener net.Listener
	target   string
	pumps    sync.WaitGroup

	mu      sync.Mutex
	held    [2]bool
	trigger []byte        // holds toServer from the first chunk on that has it
	hit     chan struct{} // closed when the trigger was seen
	changed chan struct{} // closed and replaced when held changes
	closed  chan struct{}
	conns   []net.Conn
}

func newGate(t *testing.T, target string) *gate {
	t.Helper()
	listener := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	g := &gate{listener: listener, target: target, changed: make(chan struct{}), closed: make(chan struct{})}
	g.pumps.Go(g.accept)
	t.Cleanup(g.close)
	return g
}

// natsGate is a gate before the world's NATS server.
func (w *world) natsGate() *gate {
	return newGate(w.t, w.server.Addr().String())
}

func (g *gate) url() string { return "nats://" + g.listener.Addr().String() }

func (g *gate) accept() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", g.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		g.mu.Lock()
		g.conns = append(g.conns, client, server)
		g.mu.Unlock()
		select {
		case <-g.closed: // after the others were closed
			_, _ = client.Close(), server.Close()
		default:
		}
		g.pumps.Go(func() { g.pump(toServer, client, server) })
		g.pumps.Go(func() { g.pump(toClient, server, client) })
	}
}

func (g *gate) pump(d direction, from, to net.Conn) {
	defer func() { _, _ = from.Close(), to.Close() }()
	chunk := make([]byte, 64<<10)
	var tail []byte // of what was read before: a trigger may span two reads
	for {
		n, err := from.Read(chunk)
		if n > 0 {
			if !g.pass(d, append(tail, chunk[:n]...)) {
				return
			}
			if _, err := to.Write(chunk[:n]); err != nil {
				return
			}
			tail = append([]byte(nil), chunk[max(0, n-64):n]...)
		}
		if err != nil {
			return
		}
	}
}

// pass waits while a direction is held; false means that the gate is closed.
func (g *gate) pass(d direction, text []byte) bool {
	g.mu.Lock()
	if d == toServer && g.trigger != nil && bytes.Contains(text, g.trigger) {
		g.trigger, g.held[toServer] = nil, true
		close(g.hit)
	}
	for {
		held, changed := g.held[d], g.changed
		g.mu.Unlock()
		select {
		case <-g.closed:
			return false
		default:
		}
		if !held {
			return true
		}
		select {
		case <-changed:
		case <-g.closed:
			return false
		}
		g.mu.Lock()
	}
}

// deafen keeps back all that the server says from now on.
func (g *gate) deafen() { g.set(toClient, true) }

// release lets through what holdAt kept back, and all that follows.
func (g *gate) release() { g.set(toServer, false) }

func (g *gate) set(d direction, held bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held[d] = held
	close(g.changed)
	g.changed = make(chan struct{})
}

// holdAt keeps back the first thing said to the server that contains text, and
// all that follows. The channel is closed when that happens.
func (g *gate) holdAt(text string) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trigger, g.hit = []byte(text), make(chan struct{})
	return g.hit
}

// hear lets through what deafen kept back, and all that follows.
func (g *gate) hear() { g.set(toClient, false) }

// cut breaks every connection off, and takes new ones. What was kept back is lost.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, conn := range g.conns {
		_ = conn.Close()
	}
	g.conns = nil
}

// close breaks every connection off; what was kept back is lost, as with a
// process that is killed.
func (g *gate) close() {
	g.mu.Lock()
	select {
	case <-g.closed:
		g.mu.Unlock()
		return
	default:
	}
	close(g.closed)
	_ = g.listener.Close()
	for _, conn := range g.conns {
		_ = conn.Close()
	}
	g.mu.Unlock()
	g.pumps.Wait()
}

// startAt starts a bridge behind a gate and waits until it is ready.
func (w *world) startAt(g *gate, cfg bridge.Config) *running {
	w.t.Helper()
	r := w.launchAt(g.url(), cfg, nil)
	r.waitReady()
	return r
}

// kill ends a bridge as a crash would: not a byte goes to NATS any more.
func (r *running) kill(g *gate) {
	r.t.Helper()
	g.close()
	r.nc.Close()
	if err := r.stop(); err != nil {
		r.t.Log("killed:", err)
	}
}

// reached waits for a channel of a gate to be closed.
func reached(t *testing.T, what string, hit <-chan struct{}) {
	t.Helper()
	select {
	case <-hit:
	case <-time.After(patience):
		t.Fatalf("%s: it does not come to that", what)
	}
}

// says checks what an error or a reason tells.
func says(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one that says %q", want)
		return
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
}

// notReady waits until the bridge gives a reason that contains all of want.
func (r *running) notReady(want ...string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("it is not ready and says %q", want), func() error {
		err := r.bridge.Ready()
		if err == nil {
			return fmt.Errorf("it is ready")
		}
		for _, text := range want {
			if !strings.Contains(err.Error(), text) {
				return fmt.Errorf("it says %w", err)
			}
		}
		return nil
	})
}
