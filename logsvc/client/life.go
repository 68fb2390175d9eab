package client

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

// liveness probes for the service while no messages arrive: a request on the subject of an
// acknowledgement. The NATS server replies if that has no subscriber. One such reply may be an
// outage of the service's connection; when they last for seconds, the stream ends.
type liveness struct {
	nc      *nats.Conn
	timing  timing
	inbox   string
	answers chan *nats.Msg

	subject   string // of an acknowledgement; empty before the first message
	connected bool   // at the last check
	waiting   bool   // for the reply to a probe
	asked     time.Time
	alive     time.Time // when a probe last had no such reply
	missing   time.Time // when the first such reply after that arrived
}

// check sends a probe when no message has arrived for a while, and after an outage of the client's
// own connection.
func (l *liveness) check(arrived, now time.Time) error {
	back := !l.connected
	l.connected = true
	switch {
	case l.subject == "":
		return nil
	case !l.missing.IsZero() && arrived.After(l.missing):
		l.waiting, l.missing = false, time.Time{}
		return nil
	case l.waiting && now.Sub(l.asked) < l.timing.answer:
		return nil
	case l.waiting:
		l.waiting, l.missing, l.alive = false, time.Time{}, now
		return nil
	case l.missing.IsZero() && !back && min(now.Sub(arrived), now.Sub(l.alive)) < l.timing.quiet:
		return nil
	}
	if err := l.nc.PublishRequest(l.subject, l.inbox, nil); err != nil {
		return nil //nolint:nilerror // the next check finds the lost connection
	}
	l.waiting, l.asked = true, now
	return nil
}

// answered handles the reply to a probe. The error is ErrGone.
func (l *liveness) answered(m *nats.Msg, now time.Time) error {
	l.waiting = false
	if m.Header.Get(subjects.HeaderStatus) != subjects.StatusNoResponders {
		l.alive, l.missing = now, time.Time{}
		return nil
	}
	if l.missing.IsZero() {
		l.missing = now
	}
	if now.Sub(l.missing) < l.timing.gone {
		return nil
	}
	return fmt.Errorf("%w: no subscriber for acknowledgements on %s", ErrGone, l.subject)
}
