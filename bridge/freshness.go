package bridge

import (
	"sync"
	"time"
)

// maxUnchecked is how long a session counts on what it read last. Its checks follow each other much
// faster.
const maxUnchecked = 30 * time.Second

// freshness is when something was last read, and why not since. Its zero value was never read, which
// is not stale. Safe for concurrent use.
type freshness struct {
	mu   sync.Mutex
	read time.Time // the last time; zero: never
	why  *string   // why the last read failed, nil if it did not
}

// note notes that something was read, or why it was not.
func (f *freshness) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		text := err.Error()
		f.why = &text
		return
	}
	f.read, f.why = time.Now(), nil
}

// trouble is why the last read failed, nil if it did not.
func (f *freshness) trouble() *string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.why
}

// stale returns when something was last read, and why not since; nil unless that is too long ago.
func (f *freshness) stale() (read time.Time, why *string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.read.IsZero() || time.Since(f.read) < maxUnchecked {
		return f.read, nil
	}
	if why = f.why; why == nil {
		none := "no answer yet"
		why = &none
	}
	return f.read, why
}
