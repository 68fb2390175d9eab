package client

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

// inbox puts messages in order and removes duplicates. It does not wait for the handler, so that a
// slow one does not make the client drop messages: the service sends at most a window ahead.
type inbox struct {
	// window is how many numbered messages there may be: the window of the request, and the end,
	// which is not acknowledged. In a paced stream it bounds only the queue.
	window   int
	paced    bool
	arriving chan *nats.Msg
	queue    chan item // has room for a window and some messages without a number

	mu      sync.Mutex
	next    uint64          // the number that the queue waits for
	held    map[uint64]item // messages that arrived too early
	bytes   int             // of the bodies before and in the handler
	done    uint64          // the last number that was handled
	doneAck string          // the subject that acknowledged it; before the first, that of number 0
	arrived time.Time       // the last message, or the end of an outage
	started bool            // something has arrived
	gap     time.Time       // since when next is missing; zero: it is not
	broken  error           // the error of an invalid message
}

// unnumbered is how many messages without a number may wait: a stream has an error and an end.
const unnumbered = 4

// pacedBytes is how much of a paced stream is queued for its handler. The service does not wait for
// the handler and sends no message again.
const pacedBytes = 64 << 20

func newInbox(window int) *inbox {
	b := &inbox{window: window + 1, paced: window == Paced, next: 1, held: map[uint64]item{}, arrived: time.Now()}
	arriving := 2*b.window + unnumbered
	if b.paced {
		b.window, arriving = MaxWindow+1, 1<<16 // nothing is sent again
	}
	b.arriving, b.queue = make(chan *nats.Msg, arriving), make(chan item, b.window+unnumbered)
	return b
}

// run takes messages until ctx is done. The service ends a stream after a minute without
// acknowledgements, so the last one is repeated while the handler works.
func (b *inbox) run(ctx context.Context, nc *nats.Conn, sign time.Duration) {
	tick := time.Tick(sign)
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-b.arriving:
			if b.take(m, time.Now()) {
				acknowledge(nc, m.Reply)
			}
		case <-tick:
			acknowledge(nc, b.lastAck())
		}
	}
}

// take queues a message. It returns true if the message was handled before and only needs its
// acknowledgement again.
func (b *inbox) take(m *nats.Msg, now time.Time) (again bool) {
	it, err := parse(m)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arrived, b.started = now, b.started || !it.noService
	if b.doneAck == "" && it.ack != "" {
		b.doneAck = it.ack[:strings.LastIndexByte(it.ack, '.')+1] + "0"
	}
	switch {
	case err != nil:
		b.broken = err
	case it.seq == 0:
		select {
		case b.queue <- it:
		default: // more than the protocol has
		}
	case it.seq < b.next:
		return it.seq <= b.done
	case b.beyond(it):
		// It is treated like a lost one.
		b.missed(now)
	default:
		if _, again := b.held[it.seq]; !again {
			b.held[it.seq] = it
			b.bytes += it.size
		}
		b.enqueue(now)
	}
	return false
}

// beyond reports whether a message is outside of the window, or beyond pacedBytes.
func (b *inbox) beyond(it item) bool {
	if b.paced {
		return b.bytes+it.size > pacedBytes && b.bytes > 0
	}
	return it.seq >= b.next+uint64(b.window)
}

// enqueue moves the next messages to the queue, as far as it has room.
func (b *inbox) enqueue(now time.Time) {
	for len(b.queue) < b.window {
		it, ok := b.held[b.next]
		if !ok {
			break
		}
		delete(b.held, b.next)
		b.queue <- it // does not block: there is room, and no other sender
		b.next++
		b.gap = time.Time{}
	}
	if _, waits := b.held[b.next]; len(b.held) > 0 && !waits {
		b.missed(now)
	}
}

func (b *inbox) missed(now time.Time) {
	if b.gap.IsZero() {
		b.gap = now
	}
}

func (b *inbox) handled(it *item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done, b.doneAck = it.seq, it.ack
	b.bytes -= it.size
	b.enqueue(time.Now())
}

// lastAck returns the subject of the last acknowledgement while a message is queued or being
// handled, else the empty string.
func (b *inbox) lastAck() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done+1 < b.next {
		return b.doneAck
	}
	return ""
}

// resetTimers restarts the times without messages, after an outage.
func (b *inbox) resetTimers(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arrived = now
	if !b.gap.IsZero() {
		b.gap = now
	}
}

func (b *inbox) state() (arrived time.Time, started bool, gap time.Time, broken error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.arrived, b.started, b.gap, b.broken
}

func (b *inbox) gapError() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gap.IsZero() {
		return nil
	}
	last := b.next
	for seq := range b.held {
		last = max(last, seq)
	}
	return fmt.Errorf("%w: number %d did not come, %d did", ErrGap, b.next, last)
}

// acknowledge acknowledges a message. If that is lost, the service sends the message again.
func acknowledge(nc *nats.Conn, subject string) {
	if subject != "" {
		_ = nc.Publish(subject, nil)
	}
}

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
