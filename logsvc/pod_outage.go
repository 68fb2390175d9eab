package logsvc

import (
	"context"
	"sync"
	"time"
)

// podOutage is a time in which a replica cannot be read.
type podOutage struct {
	since time.Time // zero: there is none
	told  bool
}

// failed is called for each failure, and tells for how long there were only such.
func (o *podOutage) failed() time.Duration {
	if o.since.IsZero() {
		o.since = time.Now()
	}
	return time.Since(o.since)
}

func (o *podOutage) end() { *o = podOutage{} }

// watchdog ends a read that brings nothing for too long, counted while it is
// waited for: a reader that takes its time is not the log's fault.
type watchdog struct {
	timer *time.Timer // nil: it sleeps
	limit time.Duration
}

// newWatchdog starts one, unless it is to sleep.
func newWatchdog(limit time.Duration, sleep bool, cancel context.CancelCauseFunc) watchdog {
	if sleep {
		return watchdog{}
	}
	return watchdog{timer: time.AfterFunc(limit, func() { cancel(errSilent) }), limit: limit}
}

func (w watchdog) start() {
	if w.timer != nil {
		w.timer.Reset(w.limit)
	}
}

func (w watchdog) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// podFollow is the log that a reader follows, for those who know that it has
// ended. A node that is gone does not end it.
type podFollow struct {
	mu      sync.Mutex
	id      string // empty: none
	cancel  context.CancelCauseFunc
	suspect bool
}

func (f *podFollow) begin(id string, cancel context.CancelCauseFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.id, f.cancel, f.suspect = id, cancel, false
}

func (f *podFollow) end() { f.begin("", nil) }

// judge is told from time to time what state the container is in. A follow that
// has not ended by the second time that it should have is given up.
func (f *podFollow) judge(s podState) {
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

// hear is told of a change. A follow of what is not the latest instance is given up
// at once: what is left of its log is that of the previous one now.
func (f *podFollow) hear(s podState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.id != "" && s.running && s.current != f.id {
		f.cancel(errStale)
	}
}
