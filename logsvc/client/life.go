package client

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

// life finds out whether the service is still there while nothing comes: a
// message to the subject of an acknowledgement, with an inbox of its own for the
// reply, is answered by the server itself when nobody listens there. One such
// answer may be an outage of the service's connection; only seconds of them are
// an end.
type life struct {
	nc      *nats.Conn
	timing  timing
	inbox   string
	answers chan *nats.Msg

	subject   string // of an acknowledgement; empty before the first message
	connected bool   // at the last look
	waiting   bool   // a question is out
	asked     time.Time
	alive     time.Time // when a question was last left without an answer
	missing   time.Time // the first answer of those since, zero when there is none
}

func newLife(nc *nats.Conn, t timing) *life {
	return &life{nc: nc, timing: t, inbox: nc.NewInbox(), answers: make(chan *nats.Msg, 16), connected: true}
}

// check asks when nothing has come for a while, and right after an outage of
// this side's own.
func (l *life) check(arrived, now time.Time) error {
	back := !l.connected
	l.connected = true
	quietSince := arrived
	if l.alive.After(quietSince) {
		quietSince = l.alive
	}
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
	case l.missing.IsZero() && !back && now.Sub(quietSince) < l.timing.quiet:
		return nil
	}
	if err := l.nc.PublishRequest(l.subject, l.inbox, nil); err != nil {
		return nil //nolint:nilerror // the connection is going: the next look sees that
	}
	l.waiting, l.asked = true, now
	return nil
}

// answered takes the answer to a question. The error is that the service is gone.
func (l *life) answered(m *nats.Msg, now time.Time) error {
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
	return fmt.Errorf("%w: nobody takes acknowledgements on %s", ErrGone, l.subject)
}
