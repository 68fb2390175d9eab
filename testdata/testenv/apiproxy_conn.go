package testenv

import (
	"net"
	"sync"
)

// gateListener knows its connections, so that they can be made half open.
type gateListener struct {
	net.Listener

	mu   sync.Mutex
	open map[*gateConn]struct{}
}

// gateConn is a connection that can stop to pass anything.
type gateConn struct {
	net.Conn
	listener *gateListener
	shut     chan struct{} // closed: nothing gets through
	gone     chan struct{} // closed with the connection
	once     sync.Once
	hung     bool // guarded by the listener's mu
}

func (l *gateListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &gateConn{Conn: conn, listener: l, shut: make(chan struct{}), gone: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = struct{}{}
	return c, nil
}

func (l *gateListener) halfOpen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if !c.hung {
			c.hung = true
			close(c.shut)
		}
	}
}

// heal closes the connections that are half open.
func (l *gateListener) heal() { l.close(func(c *gateConn) bool { return c.hung }) }

func (l *gateListener) closeAll() { l.close(func(*gateConn) bool { return true }) }

func (l *gateListener) close(which func(*gateConn) bool) {
	l.mu.Lock()
	var closing []*gateConn
	for c := range l.open {
		if which(c) {
			closing = append(closing, c)
		}
	}
	l.mu.Unlock()
	for _, c := range closing {
		_ = c.end() // it may have ended
	}
}

func (c *gateConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.passes() {
		return n, err
	}
	return 0, net.ErrClosed
}

func (c *gateConn) Write(p []byte) (int, error) {
	if c.passes() {
		return c.Conn.Write(p)
	}
	return 0, net.ErrClosed
}

// passes waits for the end of a connection that is half open.
func (c *gateConn) passes() bool {
	select {
	case <-c.shut:
		<-c.gone
		return false
	default:
		return true
	}
}

// Close does not end a connection that is half open: its client must not see it.
func (c *gateConn) Close() error {
	c.listener.mu.Lock()
	hung := c.hung
	c.listener.mu.Unlock()
	if hung {
		return nil
	}
	return c.end()
}

func (c *gateConn) end() error {
	c.once.Do(func() { close(c.gone) })
	c.listener.mu.Lock()
	delete(c.listener.open, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
