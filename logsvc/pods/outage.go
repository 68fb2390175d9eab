package pods

import (
	"context"
	"sync"
	"time"
)

// outage is a time in which a replica cannot be read. The zero value is none.
type outage struct {
	since    time.Time // zero: there is none
	reported bool
}

// failed records a failure and returns the time since the first one.
func (o *outage) failed() time.Duration {
	if o.since.IsZero() {
		o.since = time.Now()
	}
	return time.Since(o.since)
}

func (o *outage) end() { *o = outage{} }

// followedLog is the log that a tailer follows. Others cancel the follow when its container has
// ended: the connection to a node that is lost stays open.
type followedLog struct {
	mu      sync.Mutex
	id      string // of the instance; empty: none is followed
	cancel  context.CancelCauseFunc
	suspect bool
}

func (f *followedLog) begin(id string, cancel context.CancelCauseFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.id, f.cancel, f.suspect = id, cancel, false
}

func (f *followedLog) end() { f.begin("", nil) }

// recheck receives the state of the container from each resync. A follow whose instance has
// ended is cancelled by the second resync that finds it so.
func (f *followedLog) recheck(s containerState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.id == "" {
		return
	}
	stale := s.gone || !s.running || s.current != f.id
	if stale && f.suspect {
		f.cancel(errStale)
	}
	f.suspect = stale
}

// observe receives each change of the container. When another instance runs, the follow is
// cancelled at once: the rest of the log is that of the previous instance now.
func (f *followedLog) observe(s containerState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.id != "" && s.running && s.current != f.id {
		f.cancel(errStale)
	}
}
