package logsvc

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// resendAfter is how long the first open message may stay the same before all open messages
	// are sent again. It doubles each time.
	resendAfter    = 2 * time.Second
	maxResendAfter = 30 * time.Second
	windowBytes    = 4 << 20 // how much memory open messages may take
)

// window holds the open messages: those that the reader has not acknowledged. In a stream without
// acknowledgements none is opened.
type window struct {
	size   int
	memory *memoryUse

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

type unacked struct {
	msg *nats.Msg
	// batch has the memory of the message's body and is reused afterwards. It is nil when the
	// body is a copy, or still in use.
	batch *batch
	cost  int // the memory that it takes
}

func newWindow(size int, all *memoryUse) *window {
	return &window{size: size, memory: all, open: map[uint64]*unacked{}, wait: resendAfter, freed: make(chan struct{})}
}

// enter waits until there is room for a message and opens it. acknowledge returns the batch.
func (w *window) enter(ctx context.Context, seq uint64, msg *nats.Msg, b *batch) error {
	return w.await(ctx, func() bool { return w.tryEnter(seq, msg, b) })
}

func (w *window) drain(ctx context.Context) error {
	return w.await(ctx, func() bool { return len(w.open) == 0 })
}

// await waits until ready returns true, which it calls with the lock.
func (w *window) await(ctx context.Context, ready func() bool) error {
	for {
		w.mu.Lock()
		done, freed := ready(), w.freed
		w.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tryEnter opens a message if there is room. It is called with the lock.
func (w *window) tryEnter(seq uint64, msg *nats.Msg, b *batch) bool {
	if len(w.open) >= w.size || w.bytes >= windowBytes || w.bytes >= windowFloor && w.memory.scarce() {
		return false
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
	return true
}

func (w *window) grow(n int) {
	w.bytes += n
	w.memory.add(n)
}

func (w *window) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grow(-w.bytes)
	clear(w.open)
}

// acknowledge removes a message if it is open, and returns its batch if it can be reused.
func (w *window) acknowledge(seq uint64) *batch {
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
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.open) == 0 {
		return 0
	}
	return now.Sub(w.began)
}

const (
	// sharedBytes is how much memory all streams together hold before each is limited to its
	// floors: ringFloor of live lines, windowFloor of open messages, keptFloor of an answer
	// to get. So the streams hold at most sharedBytes and the floors of each.
	sharedBytes = 64 << 20
	ringFloor   = existingBytes
	windowFloor = 256 << 10
	keptFloor   = 512 << 10
	// markOverhead, positionOverhead, batchOverhead, messageOverhead and noteOverhead are the memory
	// beside the text, rounded up. That of a batch also bounds the number of batches.
	markOverhead     = 32
	positionOverhead = 24
	batchOverhead    = 1 << 10
	messageOverhead  = 1 << 10
	noteOverhead     = 512
)

// memoryUse counts the bytes that all streams hold. It is safe for concurrent use.
type memoryUse struct{ used atomic.Int64 }

func (m *memoryUse) add(n int) { m.used.Add(int64(n)) }

// scarce reports whether each stream is limited to its floors.
func (m *memoryUse) scarce() bool { return m.used.Load() > sharedBytes }
