package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge"
)

const (
	natsDrainTimeout   = time.Second
	natsReportInterval = time.Second
)

// natsLink is the connection to NATS. A nil one is no connection.
type natsLink struct {
	nc     *nats.Conn
	dialer dialer
	outage outage
	// closed is closed when the connection is closed for good and its last
	// callback has run.
	closed chan struct{}

	// refused is why the connection was closed, nil when the server is new enough.
	refused   atomic.Pointer[error]
	closing   atomic.Bool   // close or cut was called: what fails now is no news
	done      chan struct{} // closed by close
	reporting sync.WaitGroup
}

// connectNATS starts to connect and does not wait for it to succeed: a server
// that is not up yet is tried for ever. An error means that no try can. When
// ctx ends meanwhile, no more is tried.
func connectNATS(ctx context.Context, cfg config, urls []string, log *zap.Logger, more ...nats.Option) (*natsLink, error) {
	link := &natsLink{
		outage: outage{servers: shownURLs(urls), log: log},
		closed: make(chan struct{}),
		done:   make(chan struct{}),
	}
	link.dialer.websocket = len(urls) > 0 && strings.HasPrefix(urls[0], "ws")
	options := bridge.ConnectOptions("appbridge "+cfg.ClusterName, log)
	options = append(options, nats.RetryOnFailedConnect(true), nats.SetCustomDialer(&link.dialer), nats.DrainTimeout(natsDrainTimeout), link.watch(log))
	options = append(options, more...)
	if cfg.NATSCreds != "" {
		options = append(options, nats.UserCredentials(cfg.NATSCreds))
	}
	if cfg.NATSNKey != "" {
		nkey, err := nats.NkeyOptionFromSeed(cfg.NATSNKey)
		if err != nil {
			return nil, fmt.Errorf("nats-nkey %s: %w", cfg.NATSNKey, err)
		}
		options = append(options, nkey)
	}
	if cfg.NATSTLSCA != "" {
		options = append(options, nats.RootCAs(cfg.NATSTLSCA))
	}
	if cfg.NATSTLSCert != "" {
		options = append(options, nats.ClientCert(cfg.NATSTLSCert, cfg.NATSTLSKey))
	}
	// The first round of tries happens now, seconds for each server that hangs.
	unwatch := context.AfterFunc(ctx, func() {
		link.closing.Store(true)
		link.dialer.stop()
	})
	defer unwatch()
	nc, err := nats.Connect(strings.Join(urls, ","), options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", shownURLs(urls), err)
	}
	link.nc = nc
	refused := link.dialer.refusal()
	if nc.IsConnected() {
		refused = checkNATSVersion(nc.ConnectedAddr(), nc.ConnectedServerVersion())
	}
	if refused != nil {
		link.cut()
		<-link.closed
		return nil, refused
	}
	link.reporting.Go(link.report)
	return link, nil
}

// shownURLs is a list of URLs without what is secret in them.
func shownURLs(urls []string) string {
	shown := make([]string, len(urls))
	for i, u := range urls {
		shown[i] = redactURLs(u)
	}
	return strings.Join(shown, ",")
}

// watch adds to the handlers that are there: it closes link.closed at the end,
// logs a first connection and the failed tries before and after it, and keeps
// still about what fails because this process closes the connection.
func (l *natsLink) watch(log *zap.Logger) nats.Option {
	return func(o *nats.Options) error {
		before := *o
		o.ClosedCB = func(nc *nats.Conn) {
			if before.ClosedCB != nil {
				before.ClosedCB(nc)
			}
			close(l.closed)
		}
		o.ConnectedCB = func(nc *nats.Conn) {
			if before.ConnectedCB != nil {
				before.ConnectedCB(nc)
			}
			l.outage.over()
			l.refuseOld(nc)
			log.Info("NATS connected", zap.String("server", nc.ConnectedUrlRedacted()))
		}
		o.ReconnectedCB = func(nc *nats.Conn) {
			if before.ReconnectedCB != nil {
				before.ReconnectedCB(nc)
			}
			l.outage.over()
			l.refuseOld(nc)
		}
		o.ReconnectErrCB = func(nc *nats.Conn, err error) {
			if l.closing.Load() {
				return
			}
			if before.ReconnectErrCB != nil {
				before.ReconnectErrCB(nc, err)
			}
			l.outage.because(err)
		}
		o.DisconnectedErrCB = func(nc *nats.Conn, err error) {
			if before.DisconnectedErrCB != nil && !l.closing.Load() {
				before.DisconnectedErrCB(nc, err)
			}
		}
		o.AsyncErrorCB = func(nc *nats.Conn, sub *nats.Subscription, err error) {
			if before.AsyncErrorCB != nil && !l.closing.Load() {
				before.AsyncErrorCB(nc, sub, err)
			}
		}
		return nil
	}
}

// refuseOld closes a connection to a server that is too old. Over a websocket this is the
// first look at its version.
func (l *natsLink) refuseOld(nc *nats.Conn) {
	if err := checkNATSVersion(nc.ConnectedAddr(), nc.ConnectedServerVersion()); err != nil && nc.IsConnected() {
		l.refused.CompareAndSwap(nil, &err)
		nc.Close()
	}
}

// unready is why the server that is there is not used, nil when there is nothing to say.
func (l *natsLink) unready() error {
	if l == nil || l.nc.IsConnected() {
		return nil
	}
	return l.dialer.refusal()
}

// report looks now and then for the reasons that the client tells to no
// handler: those of a connection that was made and then failed, as with a
// certificate that is not trusted or a server without nkeys. It returns when
// the connection is closed by close.
func (l *natsLink) report() {
	tick := time.NewTicker(natsReportInterval)
	defer tick.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-tick.C:
			if err := l.nc.LastError(); err != nil && !l.nc.IsConnected() && !l.closing.Load() {
				l.outage.because(err)
			}
		}
	}
}

// failure says why the connection is closed for good, for a connection that
// close has not closed. It is nil as long as the client keeps trying.
func (l *natsLink) failure() error {
	if !l.nc.IsClosed() {
		return nil
	}
	if refused := l.refused.Load(); refused != nil {
		return *refused
	}
	err := l.nc.LastError()
	switch {
	case err == nil:
		return errors.New("the NATS connection was closed")
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		return fmt.Errorf("NATS at %s refuses this client: %w; check nats-creds, nats-nkey or the user in nats-url",
			shownURLs(l.nc.Servers()), err)
	default:
		return fmt.Errorf("NATS at %s closed the connection for good: %w", shownURLs(l.nc.Servers()), err)
	}
}

// cut ends the connection at once, whatever the server does.
func (l *natsLink) cut() {
	l.closing.Store(true)
	l.dialer.stop()
	l.nc.Close()
}

// close closes the connection, whatever state it is in: with drain after what
// is still buffered is sent, for natsDrainTimeout at most. It returns when no
// callback runs any more.
func (l *natsLink) close(drain bool) {
	if l == nil {
		return
	}
	l.closing.Store(true)
	if drain {
		// The client's own limit ends a part of its draining alone. Without a
		// connection beneath it, everything it waits for ends.
		cut := time.AfterFunc(natsDrainTimeout, l.dialer.stop)
		limit := time.After(natsDrainTimeout)
		if l.nc.Drain() == nil {
			select {
			case <-l.closed:
			case <-limit:
			}
		}
		cut.Stop()
	}
	l.cut()
	<-l.closed
	close(l.done)
	l.reporting.Wait()
}
