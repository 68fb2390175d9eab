package appsvc

import (
	"context"
	"sync"

	"github.com/appbridge/appbridge/subjects"
)

// locks serialize the writes of an app. The zero value is ready. They only save work: the versions
// in the writes keep concurrent ones apart, since other programs write too.
type locks struct {
	mu   sync.Mutex
	apps map[subjects.AppID]*lock
}

type lock struct {
	taken chan struct{} // has one item while the lock is taken
	users int           // that have it or wait for it
}

// lock waits for the lock of an app.
func (l *locks) lock(ctx context.Context, id subjects.AppID) (unlock func(), err error) {
	l.mu.Lock()
	if l.apps == nil {
		l.apps = map[subjects.AppID]*lock{}
	}
	one := l.apps[id]
	if one == nil {
		one = &lock{taken: make(chan struct{}, 1)}
		l.apps[id] = one
	}
	one.users++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.apps, id)
		}
	}
	select {
	case one.taken <- struct{}{}:
		return func() {
			<-one.taken
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
