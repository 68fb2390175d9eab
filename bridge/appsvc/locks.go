package appsvc

import (
	"context"
	"sync"

	"github.com/appbridge/appbridge/subjects"
)

// locks let one write of an app go on at a time. The zero value is ready. They save
// work alone: what keeps two writes apart are the versions that they carry, since
// others write, too.
type locks struct {
	mu   sync.Mutex
	held map[subjects.AppID]*lock
}

type lock struct {
	free  chan struct{} // holds one item while nobody has the lock
	users int           // who have it or wait for it
}

// lock waits for the lock of an app, and returns what gives it back.
func (l *locks) lock(ctx context.Context, id subjects.AppID) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[subjects.AppID]*lock{}
	}
	one := l.held[id]
	if one == nil {
		one = &lock{free: make(chan struct{}, 1)}
		one.free <- struct{}{}
		l.held[id] = one
	}
	one.users++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.held, id)
		}
	}
	select {
	case <-one.free:
		return func() {
			one.free <- struct{}{}
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
