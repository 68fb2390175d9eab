package main

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// tracedEvents is how many events a trace has at most.
const tracedEvents = 100

// trace is what happened to a log, the latest last. It is shown at the first fault.
type trace struct {
	began  time.Time
	mu     sync.Mutex
	events []string
}

func newTrace() *trace { return &trace{began: time.Now()} }

func (t *trace) add(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.events) == tracedEvents {
		t.events = t.events[1:]
	}
	t.events = append(t.events, fmt.Sprintf("%9.3f ", time.Since(t.began).Seconds())+fmt.Sprintf(format, args...))
}

func (t *trace) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.events, "\n")
}
