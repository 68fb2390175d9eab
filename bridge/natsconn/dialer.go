package natsconn

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

const dialTimeout = 2 * time.Second

var errCut = errors.New("this process is stopping")

// dialer makes the client's TCP connections and can cut them. The client holds its lock while it
// dials, shakes hands and writes, and closes under the same lock: with a server that hangs, closing
// would wait for up to a minute. The client dials one connection at a time.
type dialer struct {
	mu    sync.Mutex
	cut   bool
	abort context.CancelFunc // of the dialing under way, nil without one
	conn  net.Conn           // made last, nil before the first
	// refused is why the server that was dialed last is not used, nil when it is.
	refused error
	// websocket: the client writes first, so the server's version cannot be read here.
	websocket bool
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	// The interface has no context; stop is what ends this one.
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	d.mu.Lock()
	if d.cut {
		d.mu.Unlock()
		return nil, errCut
	}
	d.abort = cancel
	d.mu.Unlock()

	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err := d.dialed(conn, err); err != nil || d.websocket {
		return conn, err
	}
	greeted, err := greeting(conn, address)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refused = nil; errors.As(err, new(*versionError)) {
		d.refused = err
	}
	if err != nil {
		_ = conn.Close() // nothing was sent yet
		return nil, err
	}
	return greeted, nil
}

func (d *dialer) dialed(conn net.Conn, err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.abort = nil
	switch {
	case err != nil:
		return err
	case d.cut:
		_ = conn.Close() // nothing was sent yet
		return errCut
	}
	d.conn = conn
	return nil
}

func (d *dialer) refusal() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused
}

// stop cuts the connection and refuses to make another.
func (d *dialer) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = true
	if d.abort != nil {
		d.abort()
	}
	if d.conn != nil {
		_ = d.conn.Close() // the client has closed it already, or notices now
	}
}
