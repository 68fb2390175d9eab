package client

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// inbox puts what arrives in order and hands each message on once. It never
// waits for the handler, so that a slow one does not make the client drop
// messages: the service has at most a window of different ones under way.
type inbox struct {
	// window is how many numbered messages may be here at one time: that of the
	// request and the end, which nobody acknowledges. Of a paced stream it bounds
	// the queue alone.
	window int
	paced  bool
	// queue has room for these and for a few without a number.
	queue chan item

	mu      sync.Mutex
	next    uint64          // the number that the queue waits for
	held    map[uint64]item // what arrived before its turn, within the window
	bytes   int             // of the bodies that the handler is not through with
	done    uint64          // the last number that the handler is through with
	doneAck string          // the subject that acknowledged it; before the first, that of number 0
	arrived time.Time       // the last sign of life, or of an outage
	started bool            // something has arrived
	gap     time.Time       // since when next is missed, zero when it is not
	broken  error           // a message that is not to be understood
}

// unnumbered is how many messages without a number may wait: a stream has an
// error and an end.
const unnumbered = 4

// pacedBytes is how much of a paced stream waits for its handler. Nothing of it is
// sent again, and a service that hears no acknowledgements does not wait.
const pacedBytes = 64 << 20

func newInbox(window int, paced bool, now time.Time) *inbox {
	window++
	return &inbox{window: window, paced: paced, queue: make(chan item, window+unnumbered), next: 1, held: map[uint64]item{}, arrived: now}
}

// run takes what arrives until ctx is done. The service gives up on a reader
// that acknowledges nothing for a minute, so while the handler is at work it
// gets a sign: the last acknowledgement once more.
func (b *inbox) run(ctx context.Context, nc *nats.Conn, arriving <-chan *nats.Msg, sign time.Duration) {
	tick := time.NewTicker(sign)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-arriving:
			if b.take(m, time.Now()) {
				acknowledge(nc, m.Reply)
			}
		case <-tick.C:
			acknowledge(nc, b.busy())
		}
	}
}

// take tells whether the message was handled before and only lacks its
// acknowledgement.
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
		default: // more of them than there can be; the first ones tell all
		}
	case it.seq < b.next:
		return it.seq <= b.done
	case b.beyond(it):
		// It is passed over like a lost one.
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

// beyond reports whether there is no room for a message: more than what can be
// under way, or more of a paced stream than this side keeps.
func (b *inbox) beyond(it item) bool {
	if b.paced {
		return b.bytes+it.size > pacedBytes && b.bytes > 0
	}
	return it.seq >= b.next+uint64(b.window)
}

// enqueue moves what is next from held to the queue, as far as it has room.
func (b *inbox) enqueue(now time.Time) {
	moved := false
	for len(b.queue) < b.window {
		it, ok := b.held[b.next]
		if !ok {
			break
		}
		delete(b.held, b.next)
		b.queue <- it // nobody else puts in, and there is room
		b.next++
		moved = true
	}
	if moved {
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

// handled notes that the handler is through with a message.
func (b *inbox) handled(it *item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done, b.doneAck = it.seq, it.ack
	b.bytes -= it.size
	b.enqueue(time.Now())
}

// busy is the subject of the last acknowledgement while there is a message that
// the handler is not through with, else empty.
func (b *inbox) busy() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done+1 < b.next {
		return b.doneAck
	}
	return ""
}

// excuse counts the time until now as an outage: nobody is to blame for not
// having sent anything.
func (b *inbox) excuse(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arrived = now
	if !b.gap.IsZero() {
		b.gap = now
	}
}

// state is what the checks need to know.
func (b *inbox) state() (arrived time.Time, started bool, gap time.Time, broken error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.arrived, b.started, b.gap, b.broken
}

// gapError says what is missing; nil when nothing is known to be.
func (b *inbox) gapError() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gap.IsZero() {
		return nil
	}
	last := b.next
	for seq := range b.held {
		if seq > last {
			last = seq
		}
	}
	return fmt.Errorf("%w: number %d did not come, %d did", ErrGap, b.next, last)
}

// acknowledge tells the service that a message is taken. One that gets lost,
// as while there is no connection, is made up for: the service sends the message
// again.
func acknowledge(nc *nats.Conn, subject string) {
	if subject != "" {
		_ = nc.Publish(subject, nil)
	}
}
