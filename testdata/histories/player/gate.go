package player

import (
	"errors"
	"io"
	"net"
	"sync"
)

// gate is the address that readers connect to. It outlives the servers behind it, and breaks
// connections on demand. The servers themselves listen on no port.
type gate struct {
	listener net.Listener
	dial     func() (net.Conn, error)
	done     sync.WaitGroup

	mu    sync.Mutex
	shut  bool          // new connections are closed at once
	held  chan struct{} // nil: bytes pass; else they wait until it is closed
	conns map[net.Conn]bool
}

// newGate listens on a loopback port of its own; dial reaches the present server.
func newGate(dial func() (net.Conn, error)) (*gate, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &gate{listener: listener, dial: dial, conns: map[net.Conn]bool{}}
	g.done.Go(g.accept)
	return g, nil
}

func (g *gate) url() string { return "nats://" + g.listener.Addr().String() }

func (g *gate) accept() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
		}
		server, err := g.dial()
		if err != nil {
			_ = client.Close()
			continue
		}
		if !g.add(client, server) {
			_ = errors.Join(client.Close(), server.Close())
			continue
		}
		g.done.Go(func() { g.pass(server, client) })
		g.done.Go(func() { g.pass(client, server) })
	}
}

// add keeps a pair of connections to close; not while the gate is shut.
func (g *gate) add(conns ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		if !g.shut {
			g.conns[c] = true
		}
	}
	return !g.shut
}

// pass copies until either side ends, and then ends both.
func (g *gate) pass(to, from net.Conn) {
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, c := range []net.Conn{to, from} {
			_ = c.Close()
			delete(g.conns, c)
		}
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			g.wait()
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				g.wait()
			}
			return
		}
	}
}

// wait returns when bytes may pass.
func (g *gate) wait() {
	g.mu.Lock()
	held := g.held
	g.mu.Unlock()
	if held != nil {
		<-held
	}
}

// cut closes every connection and refuses new ones until open.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	g.release()
	for c := range g.conns {
		_ = c.Close()
	}
}

// open lets connections and their bytes pass.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
	g.release()
}

// hang keeps connections and takes new ones, but no byte passes until cut or open.
func (g *gate) hang() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		g.held = make(chan struct{})
	}
}

func (g *gate) release() {
	if g.held != nil {
		close(g.held)
		g.held = nil
	}
}

func (g *gate) close() {
	_ = g.listener.Close()
	g.cut()
	g.done.Wait()
}
