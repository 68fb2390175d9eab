package logsvc

import "sync/atomic"

const (
	// sharedBytes is how much all streams together hold before each is kept to its
	// floors: ringFloor of live lines, windowFloor of open messages, keptFloor of an answer
	// to get. So the streams hold sharedBytes and the floors of each at most.
	sharedBytes = 64 << 20
	ringFloor   = existingBytes
	windowFloor = 256 << 10
	keptFloor   = 512 << 10
	// markOverhead, batchOverhead, messageOverhead and noteOverhead are what is held beside
	// text, rounded up. That of a batch also bounds how many wait.
	markOverhead    = 32
	batchOverhead   = 1 << 10
	messageOverhead = 1 << 10
	noteOverhead    = 512
)

// memory counts what all streams hold. It is safe for use by many goroutines.
type memory struct{ used atomic.Int64 }

// add counts n bytes more, or fewer where n is negative.
func (m *memory) add(n int) { m.used.Add(int64(n)) }

// scarce reports whether streams hold so much together that each is kept to its floors.
func (m *memory) scarce() bool { return m.used.Load() > sharedBytes }
