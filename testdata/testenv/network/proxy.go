package network

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
)

// Proxy forwards TCP connections to one address, until it is told to break
// them. Its methods may be called from several goroutines.
type Proxy struct {
	addr, target string
	release      func() // of addr
	server       *toxiproxy.ApiServer

	mu     sync.Mutex
	line   *line // nil: cut
	closed bool
}

// line is what a Proxy is between two repairs. Every repair makes a new one:
// toxiproxy can take a toxic away from a live connection, but what waited in
// it may then stay behind.
type line struct {
	proxy *toxiproxy.Proxy
	gates [2]*gate // one per direction
	hung  bool
}

// NewProxy listens on a loopback address of its own and forwards to the target,
// host:port, which need not be there yet. Close ends it.
func NewProxy(target string) (*Proxy, error) {
	addr, release, err := ReserveAddress()
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", target, err)
	}
	toxics.Register(gateType, new(gate))
	p := &Proxy{
		addr: addr, target: target, release: release,
		server: toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()),
	}
	return p, p.Heal()
}

// Addr is the address to connect to, host:port. It stays the same.
func (p *Proxy) Addr() string { return p.addr }

// Cut closes every connection and refuses new ones.
func (p *Proxy) Cut() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
	return nil
}

// Hang is a dropped cable: connections stay and new ones are accepted, but
// nothing gets through, not even the end of a connection. What is sent
// meanwhile is lost.
func (p *Proxy) Hang() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line != nil {
		p.line.hang()
		return nil
	}
	return p.connect(true)
}

// Heal goes back to normal. Connections that hung are closed; those of a proxy
// that was well stay.
func (p *Proxy) Heal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line != nil {
		if !p.line.hung {
			return nil
		}
		p.cut()
	}
	return p.connect(false)
}

// Close closes every connection and ends the proxy. It may be called twice.
func (p *Proxy) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
	p.release()
	p.closed = true
	return nil
}

func (p *Proxy) cut() {
	if p.line == nil {
		return
	}
	for _, g := range p.line.gates {
		close(g.done)
	}
	p.line.proxy.Stop()
	p.line = nil
}

func (p *Proxy) connect(hung bool) error {
	if p.closed {
		return errors.New("the proxy is closed")
	}
	l := &line{proxy: toxiproxy.NewProxy(p.server, p.addr, p.addr, p.target)}
	for i, direction := range []string{"upstream", "downstream"} {
		toxic, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(
			fmt.Sprintf(`{"type": %q, "stream": %q}`, gateType, direction)))
		if err != nil {
			return fmt.Errorf("proxy to %s: %w", p.target, err)
		}
		g, ok := toxic.Toxic.(*gate)
		if !ok {
			return fmt.Errorf("proxy to %s: the toxic is a %T", p.target, toxic.Toxic)
		}
		g.shut, g.done = make(chan struct{}), make(chan struct{})
		l.gates[i] = g
	}
	if hung {
		l.hang()
	}
	if err := l.proxy.Start(); err != nil {
		return fmt.Errorf("proxy to %s: %w", p.target, err)
	}
	p.line = l
	return nil
}

func (l *line) hang() {
	if l.hung {
		return
	}
	l.hung = true
	for _, g := range l.gates {
		close(g.shut)
	}
}

const gateType = "appbridge-gate"

// gate is the toxic of one direction. It is there from the start and shuts by
// itself: toxiproxy's own timeout toxic has to be put into every connection,
// which waits for as long as one of them waits for a reader that has stopped
// reading. And it holds back the end of a connection.
type gate struct {
	shut chan struct{} // closed: nothing gets through
	done chan struct{} // closed: the connections are being closed
}

// Pipe passes on what comes in while the gate is open. After the first chunk
// that it drops it drops all: a stream with a hole would be another stream. It
// returns when the incoming side has ended.
func (g *gate) Pipe(stub *toxics.ToxicStub) {
	defer stub.Close()
	for chunk := range stub.Input {
		select {
		case <-g.shut:
			continue
		case <-g.done:
			continue
		default:
		}
		select {
		case stub.Output <- chunk:
		case <-g.shut:
		case <-g.done: // its reader may be gone
		}
	}
	select {
	case <-g.shut:
		<-g.done
	default:
	}
}
