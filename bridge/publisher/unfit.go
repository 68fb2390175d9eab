package publisher

import (
	"errors"
	"fmt"
	"sync"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// unfit are the apps of which nothing can be published: not the smallest event fits, or a delete
// cannot be made. Its zero value has none. Safe for concurrent use.
type unfit struct {
	mu   sync.Mutex
	apps map[subjects.AppID]error
}

func (u *unfit) note(id subjects.AppID, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.apps == nil {
		u.apps = map[subjects.AppID]error{}
	}
	u.apps[id] = err
}

func (u *unfit) forget(id subjects.AppID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.apps, id)
}

// largest returns how many apps there are, and the one that needs most, whose error is err. need is
// the size of its smallest event, 0 if size is not why.
func (u *unfit) largest() (n int, id subjects.AppID, need int, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for of, why := range u.apps {
		size := 0
		if tooLarge, ok := errors.AsType[*app.TooLargeError](why); ok {
			size = tooLarge.Smallest
		}
		if err == nil || size > need || size == need && of.String() < id.String() {
			id, need, err = of, size, why
		}
	}
	return len(u.apps), id, need, err
}

// Unfit returns why nothing of some apps can be published, nil if there is no such app: with the
// limit that is too small and the size that would do for all of them.
func (p *Publisher) Unfit() error {
	n, id, need, err := p.unfit.largest()
	switch {
	case n == 0:
		return nil
	case need > 0:
		return fmt.Errorf("no event of app %s fits (apps: %d): %s", id, n, store.SizeNeeded(p.nc, p.cfg.Stream, p.maxMsgSize.Load(), need))
	default:
		return fmt.Errorf("a delete of app %s cannot be published (apps: %d): %w", id, n, err)
	}
}
