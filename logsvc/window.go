package logsvc

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// resendAfter is how long a message may be the first that is not acknowledged
	// before all of them are sent again; twice as long for each further time.
	resendAfter    = 2 * time.Second
	maxResendAfter = 30 * time.Second
	// windowBytes is how much open messages may take.
	windowBytes = 4 << 20
)

// window is the messages that a reader has not acknowledged. A nil one is that
// of a stream without acknowledgements.
type window struct {
	size   int
	memory *memory

	mu    sync.Mutex
	open  map[uint64]*unread
	bytes int           // that the open messages take
	began time.Time     // when the first of those came that are open without a break
	first uint64        // the lowest number that may be open
	last  uint64        // the highest
	since time.Time     // when the first moved on, or all was sent again
	wait  time.Duration // how long to wait from then on
	freed chan struct{} // closed when a message is acknowledged
}

// unread is a message that is not acknowledged.
type unread struct {
	msg *nats.Msg
	// batch is where the message's body lies, to be used again afterwards; nil
	// when the body is a copy, or may be in use by somebody else.
	batch *batch
	cost  int // the memory that it takes
}

func newWindow(size int, all *memory) *window {
	if size == 0 {
		return nil
	}
	return &window{size: size, memory: all, open: map[uint64]*unread{}, wait: resendAfter, freed: make(chan struct{})}
}

// enter waits until the message may be sent. A window that lets go of it gives
// the batch back, if there is one.
func (w *window) enter(ctx context.Context, seq uint64, msg *nats.Msg, b *batch) error {
	if w == nil {
		return nil
	}
	for {
		freed := w.tryEnter(seq, msg, b)
		if freed == nil {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tryEnter returns nil when the message may be sent, else what to wait for.
func (w *window) tryEnter(seq uint64, msg *nats.Msg, b *batch) (freed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.open) >= w.size || w.bytes >= windowBytes || w.bytes >= windowFloor && w.memory.scarce() {
		return w.freed
	}
	if len(w.open) == 0 {
		w.since = time.Now()
		w.began, w.first = w.since, seq
	}
	w.last = seq
	u := &unread{msg, b, messageOverhead + cap(msg.Data)}
	if b != nil {
		u.cost = messageOverhead + b.cost()
	}
	w.open[seq] = u
	w.grow(u.cost)
	return nil
}

// grow counts n bytes more that open messages take.
func (w *window) grow(n int) {
	w.bytes += n
	w.memory.add(n)
}

// release gives back the memory of what nobody has acknowledged.
func (w *window) release() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grow(-w.bytes)
	clear(w.open)
}

// acknowledge takes a message out, and gives back the batch that it was, if
// nobody else uses it. A message that is not open is no matter.
func (w *window) acknowledge(seq uint64) *batch {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	u := w.open[seq]
	if u == nil {
		return nil
	}
	delete(w.open, seq)
	w.grow(-u.cost)
	if seq == w.first {
		w.since, w.wait = time.Now(), resendAfter
		for w.open[w.first] == nil && w.first < w.last {
			w.first++
		}
	}
	close(w.freed)
	w.freed = make(chan struct{})
	return u.batch
}

// overdue are the open messages, in order, when it is time to send them again.
func (w *window) overdue(now time.Time) []*nats.Msg {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.open) == 0 || now.Sub(w.since) < w.wait {
		return nil
	}
	w.since, w.wait = now, min(2*w.wait, maxResendAfter)
	msgs := make([]*nats.Msg, 0, len(w.open))
	for _, seq := range slices.Sorted(maps.Keys(w.open)) {
		w.open[seq].batch = nil // it is about to be read again
		msgs = append(msgs, w.open[seq].msg)
	}
	return msgs
}

// waiting is for how long something has been open without a break, 0 when
// nothing is.
func (w *window) waiting(now time.Time) time.Duration {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.open) == 0 {
		return 0
	}
	return now.Sub(w.began)
}

// drain waits until every message is acknowledged.
func (w *window) drain(ctx context.Context) error {
	if w == nil {
		return nil
	}
	for {
		w.mu.Lock()
		open, freed := len(w.open), w.freed
		w.mu.Unlock()
		if open == 0 {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
