package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge"
)

const (
	natsDrainTimeout   = 5 * time.Second
	natsReportInterval = time.Second
)

// natsLink is the connection to NATS. A nil one is no connection.
type natsLink struct {
	nc *nats.Conn
	// closed is closed when the connection is closed for good and its last
	// callback has run.
	closed chan struct{}

	mu         sync.Mutex
	lastReason string // why there is no connection, as logged
}

// connectNATS starts to connect and does not wait for it to succeed: a server
// that is not up yet is tried for ever. An error means that no try can.
func connectNATS(cfg config, urls []string, log *zap.Logger) (*natsLink, error) {
	link := &natsLink{closed: make(chan struct{})}
	options := bridge.ConnectOptions("appbridge "+cfg.ClusterName, log)
	options = append(options, nats.RetryOnFailedConnect(true), nats.DrainTimeout(natsDrainTimeout), link.watch(log))
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
	nc, err := nats.Connect(strings.Join(urls, ","), options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", shownURLs(urls), err)
	}
	link.nc = nc
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
// and logs a first connection and the failed tries before and after it.
func (l *natsLink) watch(log *zap.Logger) nats.Option {
	return func(o *nats.Options) error {
		closed, failed, connected := o.ClosedCB, o.ReconnectErrCB, o.ConnectedCB
		o.ClosedCB = func(nc *nats.Conn) {
			if closed != nil {
				closed(nc)
			}
			close(l.closed)
		}
		o.ReconnectErrCB = func(nc *nats.Conn, err error) {
			if failed != nil {
				failed(nc, err)
			}
			l.waiting(err, log)
		}
		o.ConnectedCB = func(nc *nats.Conn) {
			if connected != nil {
				connected(nc)
			}
			log.Info("NATS connected", zap.String("server", nc.ConnectedUrlRedacted()))
		}
		return nil
	}
}

// waiting logs why there is no connection, each reason once in a row: the
// client tries twice a second.
func (l *natsLink) waiting(err error, log *zap.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.lastReason = ""
	// The first try reports a refused connection as "no servers"; the next
	// one, half a second later, says what it was.
	case errors.Is(err, nats.ErrNoServers) || err.Error() == l.lastReason:
	default:
		l.lastReason = err.Error()
		log.Warn("waiting for NATS", zap.Error(err))
	}
}

// report looks now and then for the reasons that the client tells to no
// handler: those of a connection that was made and then failed, as with a
// certificate that is not trusted or a server without nkeys. It returns when
// ctx is done.
func (l *natsLink) report(ctx context.Context, log *zap.Logger) {
	tick := time.NewTicker(natsReportInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if l.nc.IsConnected() {
				l.waiting(nil, log)
			} else if err := l.nc.LastError(); err != nil {
				l.waiting(err, log)
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

// close sends what is still buffered and closes the connection, whatever state
// it is in. It returns when no callback runs any more.
func (l *natsLink) close() {
	if l == nil {
		return
	}
	if err := l.nc.Drain(); err != nil {
		l.nc.Close()
	}
	<-l.closed
}
