package natsconn

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

const (
	drainTimeout   = time.Second
	reportInterval = time.Second
)

// Config has the servers and the client's identity. Empty fields are not used. The files are read
// for each connection.
type Config struct {
	URLs         []string
	Creds        string // credentials file: user JWT and seed
	NKey         string // file with the seed of a user nkey
	User         string
	PasswordFile string // of User
	TokenFile    string
	TLSCA        string // PEM file with the authorities for the server's certificate
	TLSCert      string // PEM files of the client certificate
	TLSKey       string
}

// Conn is a connection to NATS that reconnects until it is closed or a server refuses
// the client for good. A nil one is no connection. Its methods can be called concurrently.
type Conn struct {
	NATS *nats.Conn

	dialer dialer
	outage outage
	closed chan struct{}
	log    *zap.Logger
	rights rights

	// refused is why the connection was closed, nil when the server is new enough.
	refused   atomic.Pointer[error]
	closing   atomic.Bool   // Close or Cut was called: later failures are not logged
	done      chan struct{} // closed by Close
	reporting sync.WaitGroup
}

// Connect starts to connect under a name and does not wait for success: a server that is
// not up yet is tried until the connection is closed. An error means that no try can
// succeed. When ctx ends before Connect returns, trying ends. more is added to [Options].
func Connect(ctx context.Context, cfg Config, name string, log *zap.Logger, more ...nats.Option) (*Conn, error) {
	c := &Conn{
		outage: outage{servers: ShowURLs(cfg.URLs), log: log},
		closed: make(chan struct{}),
		done:   make(chan struct{}),
		log:    log,
	}
	c.dialer.cfg = cfg
	c.dialer.websocket = len(cfg.URLs) > 0 && strings.HasPrefix(cfg.URLs[0], "ws")
	c.dialer.read, c.dialer.firstErr = cfg.read()
	options := append(Options(name, log), nats.PermissionErrOnSubscribe(true), nats.SetCustomDialer(&c.dialer), nats.DrainTimeout(drainTimeout), c.watch(log))
	options = append(append(options, more...), cfg.options(&c.dialer))
	// The first round of tries happens now, seconds for each server that hangs.
	unwatch := context.AfterFunc(ctx, func() {
		c.closing.Store(true)
		c.dialer.stop()
	})
	defer unwatch()
	nc, err := nats.Connect(strings.Join(cfg.URLs, ","), options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", ShowURLs(cfg.URLs), err)
	}
	c.NATS = nc
	c.dialer.serves(nc)
	refused := c.dialer.refusal()
	if nc.IsConnected() {
		refused = checkVersion(nc.ConnectedAddr(), nc.ConnectedServerVersion())
	}
	if refused != nil {
		c.Cut()
		<-c.closed
		return nil, refused
	}
	c.reporting.Go(c.report)
	c.reporting.Go(c.regain)
	return c, nil
}

// Closed is closed when the connection is closed for good and its last callback has run.
func (c *Conn) Closed() <-chan struct{} { return c.closed }

// watch extends the handlers of [Options]: it closes c.closed at the end, logs the first
// connection and failed tries, and drops errors after Close or Cut.
func (c *Conn) watch(log *zap.Logger) nats.Option {
	return func(o *nats.Options) error {
		before := *o
		o.ClosedCB = func(*nats.Conn) { close(c.closed) }
		o.ConnectedCB = func(nc *nats.Conn) {
			c.dialer.accept()
			c.outage.over()
			c.refuseOld(nc)
			log.Info("NATS connected", zap.String("server", nc.ConnectedUrlRedacted()))
		}
		o.ReconnectedCB = func(nc *nats.Conn) {
			before.ReconnectedCB(nc)
			c.dialer.accept()
			c.outage.over()
			c.refuseOld(nc)
		}
		o.ReconnectErrCB = func(_ *nats.Conn, err error) {
			if !c.closing.Load() {
				c.outage.because(err)
			}
		}
		o.DisconnectedErrCB = func(nc *nats.Conn, err error) {
			if !c.closing.Load() {
				before.DisconnectedErrCB(nc, err)
			}
		}
		o.AsyncErrorCB = func(nc *nats.Conn, sub *nats.Subscription, err error) {
			switch {
			case c.closing.Load():
			case isRefusal(err):
				c.dialer.refuse()
				c.outage.because(err) // at each try
			case errors.Is(err, nats.ErrPermissionViolation) && !c.rights.note(err, inboxes(nc), nc.Stats().Reconnects):
				// It was reported, and is tried now and then.
			case errors.Is(err, nats.ErrMaxSubscriptionsExceeded) && !c.rights.exceed():
				// Likewise.
			default:
				before.AsyncErrorCB(nc, sub, err)
			}
		}
		return nil
	}
}

// refuseOld closes a connection to a server that is too old. Over a websocket the version
// is not known before.
func (c *Conn) refuseOld(nc *nats.Conn) {
	if err := checkVersion(nc.ConnectedAddr(), nc.ConnectedServerVersion()); err != nil && nc.IsConnected() {
		c.refused.CompareAndSwap(nil, &err)
		nc.Close()
	}
}

// Refusal is why the server that was dialed last is not used; nil when it is used, or
// when no server was reached.
func (c *Conn) Refusal() error {
	if c == nil || c.NATS.IsConnected() {
		return nil
	}
	return c.dialer.refusal()
}

// report polls for the errors that the client passes to no handler: those after dialing, for
// example a certificate that is not trusted or a server without nkeys. It returns after Close.
func (c *Conn) report() {
	tick := time.Tick(reportInterval)
	for {
		select {
		case <-c.done:
			return
		case <-tick:
			if err := c.NATS.LastError(); err != nil && !c.NATS.IsConnected() && !c.closing.Load() {
				c.outage.because(err)
			}
		}
	}
}

// Err is why the connection is closed for good, if Close has not closed it. It is nil
// while the client keeps trying.
func (c *Conn) Err() error {
	if !c.NATS.IsClosed() {
		return nil
	}
	if refused := c.refused.Load(); refused != nil {
		return *refused
	}
	err := c.NATS.LastError()
	switch {
	case err == nil:
		return errors.New("the NATS connection was closed")
	case isRefusal(err):
		return fmt.Errorf("NATS at %s refuses this client: %w; check nats-creds, nats-nkey, nats-user, nats-token-file or the user in nats-url",
			ShowURLs(c.NATS.Servers()), err)
	default:
		return fmt.Errorf("NATS at %s %w: %w", ShowURLs(c.NATS.Servers()), ErrClosed, err)
	}
}

// ErrClosed reports that the client closed a connection for good over an error of the server that
// says nothing of who the client is, as a message that is too large since the server's limit was
// lowered. Another connection may be made at once.
var ErrClosed = errors.New("closed the connection for good")

// isRefusal reports whether a server sent err because of the client's identity.
func isRefusal(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) || errors.Is(err, nats.ErrAccountAuthExpired)
}

// Reason is why the last try to connect failed, empty when it is not known.
func (c *Conn) Reason() string { return c.outage.latest() }

// Cut ends the connection at once, whatever the server does.
func (c *Conn) Cut() {
	c.closing.Store(true)
	c.dialer.stop()
	c.NATS.Close()
}

// Close closes the connection in any state. With drain it first sends what is buffered,
// for one second at most. It returns when no callback runs any more.
func (c *Conn) Close(drain bool) {
	if c == nil {
		return
	}
	c.closing.Store(true)
	if drain {
		// The client's own limit ends a part of its draining alone. Without a
		// connection beneath it, everything it waits for ends.
		cut := time.AfterFunc(drainTimeout, c.dialer.stop)
		limit := time.After(drainTimeout)
		if c.NATS.Drain() == nil {
			select {
			case <-c.closed:
			case <-limit:
			}
		}
		cut.Stop()
	}
	c.Cut()
	<-c.closed
	close(c.done)
	c.reporting.Wait()
}

const (
	outageReminder   = time.Minute
	maxOutageReasons = 32
)

// outage logs why there is no connection to NATS. The client tries every server twice a second, so
// each reason is logged once, and after that one line a minute while it lasts.
type outage struct {
	servers string
	log     *zap.Logger

	mu     sync.Mutex
	logged map[string]bool // the reasons logged since the last connection
	last   time.Time       // of the last line
	reason string          // of the last failure, empty after a connection
}

// because records that a try failed with err.
func (o *outage) because(err error) {
	// The first try reports a refused connection as "no servers"; the next one, half a
	// second later, has the reason.
	if errors.Is(err, nats.ErrNoServers) {
		return
	}
	reason := withoutLocalPort(err.Error())
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reason = reason
	if o.logged[reason] || len(o.logged) >= maxOutageReasons {
		if time.Since(o.last) < outageReminder {
			return
		}
	} else {
		if o.logged == nil {
			o.logged = map[string]bool{}
		}
		o.logged[reason] = true
	}
	o.last = time.Now()
	o.log.Warn("waiting for NATS", zap.String("servers", o.servers), zap.String("error", reason))
}

func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.logged, o.reason = nil, ""
}

// latest is why the last try failed, empty when that is not known.
func (o *outage) latest() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reason
}

// withoutLocalPort removes the local port, which changes with every try, from an error of
// package net.
func withoutLocalPort(text string) string {
	return regexp.MustCompile(`:\d+->`).ReplaceAllString(text, "->")
}
