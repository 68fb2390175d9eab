package projector

import (
	"sync"
	"time"
)

// lag knows since when the bucket is behind the stream: the acknowledgements
// of events that it does not reflect yet. Safe for concurrent use.
type lag struct {
	mu    sync.Mutex
	marks []mark // oldest first; sequences rise
}

// mark stands for the events up to sequence, the first of which was acknowledged at the time.
type mark struct {
	sequence uint64
	at       time.Time
}

// lagGrain is how many acknowledgements in a row share a mark.
const lagGrain = 250 * time.Millisecond

// note notes that an event was acknowledged.
func (l *lag) note(sequence uint64, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.marks)
	if n > 0 && (now.Sub(l.marks[n-1].at) < lagGrain || sequence <= l.marks[n-1].sequence) {
		l.marks[n-1].sequence = max(l.marks[n-1].sequence, sequence)
		return
	}
	l.marks = append(l.marks, mark{sequence, now})
}

// since is when the oldest event was acknowledged that is newer than what the
// bucket reflects; zero if there is none.
func (l *lag) since(reflected uint64) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.marks) > 0 && l.marks[0].sequence <= reflected {
		l.marks = l.marks[1:]
	}
	if len(l.marks) == 0 {
		return time.Time{}
	}
	return l.marks[0].at
}
