package logsvc

import "sync/atomic"

const (
	// sharedBytes is how much memory all streams together hold before each is limited to its
	// floors: ringFloor of live lines, windowFloor of open messages, keptFloor of an answer
	// to get. So the streams hold at most sharedBytes and the floors of each.
	sharedBytes = 64 << 20
	ringFloor   = existingBytes
	windowFloor = 256 << 10
	keptFloor   = 512 << 10
	// markOverhead, batchOverhead, messageOverhead and noteOverhead are the memory beside the
	// text, rounded up. That of a batch also bounds the number of batches.
	markOverhead    = 32
	batchOverhead   = 1 << 10
	messageOverhead = 1 << 10
	noteOverhead    = 512
)

// memory counts the bytes that all streams hold. It is safe for concurrent use.
type memory struct{ used atomic.Int64 }

func (m *memory) add(n int) { m.used.Add(int64(n)) }

// scarce reports whether each stream is limited to its floors.
func (m *memory) scarce() bool { return m.used.Load() > sharedBytes }
