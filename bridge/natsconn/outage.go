package natsconn

import (
	"errors"
	"regexp"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

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

// over records that there is a connection.
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
