package bridge

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
)

const (
	// alteredPause is the wait before an event is sent after one that did not come back as itself. It
	// doubles up to maxAlteredPause.
	alteredPause    = 5 * time.Second
	maxAlteredPause = 10 * time.Minute
)

// altered is the newest acknowledged event that did not come back as itself, until another one has.
// Nothing else may be published meanwhile: it would be altered, too, and be owed again. One event is
// sent after a pause that grows, or once the stream's configuration is another. Its zero value is
// none. Safe for concurrent use.
type altered struct {
	mu     sync.Mutex
	err    error
	tries  int
	until  time.Time
	config jetstream.StreamConfig // of the stream at that time
}

func (a *altered) note(err *store.AlteredError, config jetstream.StreamConfig) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err, a.config = err, config
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
