package watch

import (
	"sync"
	"time"
)

// outage is why nothing can be read at present, and since when.
type outage struct {
	mu     sync.Mutex
	reason string
	since  time.Time
}

func (o *outage) set(reason string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reason == "" || reason == "" {
		o.since = now
	}
	o.reason = reason
}

func (o *outage) get() (reason string, since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reason, o.since
}
