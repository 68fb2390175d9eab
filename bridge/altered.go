package bridge

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// alteredPause is the wait before an event is sent after one that did not come back as itself. It
	// doubles up to maxAlteredPause.
	alteredPause    = 5 * time.Second
	maxAlteredPause = 10 * time.Minute
)

// altered is the newest acknowledged event that did not come back as itself, until one of the same app
// has. Nothing is published during a pause that grows, or until the stream's configuration is another:
// it might be altered, too, and be owed again. Its zero value is none. Safe for concurrent use.
type altered struct {
	mu     sync.Mutex
	err    error
	app    subjects.AppID // of the event
	tries  int
	until  time.Time
	config jetstream.StreamConfig // of the stream at that time
}

func (a *altered) note(err *store.AlteredError, id subjects.AppID, config jetstream.StreamConfig) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err, a.app, a.config = err, id, config
	a.until = time.Now().Add(min(alteredPause<<min(a.tries, 16), maxAlteredPause))
	a.tries++
}

func (a *altered) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err, a.tries, a.until = nil, 0, time.Time{}
}

// configured notes the present configuration of the stream.
func (a *altered) configured(config jetstream.StreamConfig) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if config.Metadata = a.config.Metadata; a.err != nil && !reflect.DeepEqual(config, a.config) {
		a.config, a.tries, a.until = config, 0, time.Time{}
	}
}

// doubts reports whether the event was of this app.
func (a *altered) doubts(id subjects.AppID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err != nil && a.app == id
}

// verified notes that an event of an app has come back as itself.
func (a *altered) verified(id subjects.AppID) {
	if a.doubts(id) {
		a.clear()
	}
}

func (a *altered) reason() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// wait blocks until the next event may be sent.
func (a *altered) wait(ctx context.Context) error {
	due := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return time.Now().After(a.until)
	}
	for !due() {
		if err := retry.Wait(ctx, reconnectCheck); err != nil {
			return err
		}
	}
	return nil
}
