package natsconn

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const dialTimeout = 2 * time.Second

// refusalLimit is how long a client that was accepted once may be refused. It is longer than a
// changed Secret takes to reach a pod. A file that never changes needs a restart.
const refusalLimit = 10 * time.Minute

// refusalGap is the time without a refusal after which the next one is the first again: meanwhile no
// server answered.
const refusalGap = time.Minute

var errCut = errors.New("this process is stopping")

// dialer makes the client's TCP connections and can cut them. The client holds its lock while it
// dials, shakes hands and writes, and closes under the same lock: with a server that hangs, closing
// would wait for up to a minute. The client dials one connection at a time.
//
// It also reads the files of cfg for each connection: a file that cannot be used is the error of
// the dialing, and the client tries again.
type dialer struct {
	cfg      Config
	firstErr error // why the files could not be read for the first time
	// websocket: the client writes first, so the server's version cannot be read here.
	websocket bool

	mu    sync.Mutex
	cut   bool
	abort context.CancelFunc // of the dialing under way, nil without one
	conn  net.Conn           // made last, nil before the first
	// refused is why the server that was dialed last is not used, nil when it is.
	refused error
	// client is nil until it has been made: until then the first reading of the files is valid.
	client *nats.Conn
	read   *identity // as read last, nil if that failed
	// accepted: a server has accepted the client once. refusedSince is the first refusal after the
	// last acceptance or gap, refusedLast the newest; both are zero while there is none.
	accepted                  bool
	refusedSince, refusedLast time.Time
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
	if err := d.identify(); err != nil {
		return nil, err
	}

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

// identify reads the files for the connection that is dialed. The client has callbacks for most of
// the identity. The other options are set here, under the client's lock: it holds that while it dials.
func (d *dialer) identify() error {
	d.mu.Lock()
	client := d.client
	d.mu.Unlock()
	if client == nil {
		return d.firstErr
	}
	read, err := d.cfg.read() // without d's lock: stop must not wait for a file
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.read = read; err != nil {
		return err
	}
	client.Opts.Nkey = read.public
	// What was accepted once may be replaced at present, in the file or in the server.
	now := time.Now()
	client.Opts.IgnoreAuthErrorAbort = d.accepted && (now.Sub(d.refusedLast) > refusalGap || now.Sub(d.refusedSince) < refusalLimit)
	return nil
}

// identity is what the connection that is dialed, or was dialed last, identifies itself with.
func (d *dialer) identity() *identity {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.read == nil {
		return new(identity) // nothing is dialed with it
	}
	return d.read
}

// serves makes d read the files at each connection of the client from now on.
func (d *dialer) serves(client *nats.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.client = client
}

func (d *dialer) accept() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.accepted, d.refusedSince, d.refusedLast = true, time.Time{}, time.Time{}
}

func (d *dialer) refuse() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if now.Sub(d.refusedLast) > refusalGap {
		d.refusedSince = now
	}
	d.refusedLast = now
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
