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
	// resendAfter is how long the first open message may stay the same before all open messages
	// are sent again. It doubles each time.
	resendAfter    = 2 * time.Second
	maxResendAfter = 30 * time.Second
	// windowBytes is how much memory open messages may take.
	windowBytes = 4 << 20
)

// window holds the open messages: those that the reader has not acknowledged. A stream without
// acknowledgements has a nil window.
type window struct {
	size   int
	memory *memory

	mu    sync.Mutex
	open  map[uint64]*unacked
	bytes int           // memory of the open messages
	began time.Time     // when the window was last empty
	first uint64        // the lowest number that may be open
	last  uint64        // the highest
	since time.Time     // when first changed, or all were sent again
	wait  time.Duration // how long to wait after that
	freed chan struct{} // closed when a message is acknowledged
}

// unacked is a message that is not acknowledged.
type unacked struct {
	msg *nats.Msg
	// batch has the memory of the message's body and is reused afterwards. It is nil when the
	// body is a copy, or still in use.
	batch *batch
	cost  int // the memory that it takes
}

func newWindow(size int, all *memory) *window {
	if size == 0 {
		return nil
	}
	return &window{size: size, memory: all, open: map[uint64]*unacked{}, wait: resendAfter, freed: make(chan struct{})}
}

// enter waits until there is room for a message and opens it. acknowledge returns the batch.
func (w *window) enter(ctx context.Context, seq uint64, msg *nats.Msg, b *batch) error {
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

// tryEnter returns nil if there is room, else a channel that is closed when there may be room.
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
	u := &unacked{msg, b, messageOverhead + cap(msg.Data)}
	if b != nil {
		u.cost = messageOverhead + b.cost()
	}
	w.open[seq] = u
	w.grow(u.cost)
	return nil
}

// grow adds n bytes to the memory of the open messages.
func (w *window) grow(n int) {
	w.bytes += n
	w.memory.add(n)
}

// release forgets the open messages.
func (w *window) release() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grow(-w.bytes)
	clear(w.open)
}

// acknowledge removes a message if it is open, and returns its batch if it can be reused.
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

// overdue returns the open messages, in order, when it is time to send them again.
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
		w.open[seq].batch = nil // it is in use again
		msgs = append(msgs, w.open[seq].msg)
	}
	return msgs
}

// waiting returns for how long the window has not been empty, 0 when it is empty.
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
