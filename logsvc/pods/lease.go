package pods

import (
	"context"
	"sync"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// lease holds the slots of one stream. When a project needs slots and another one has more than
// its share, the newest streams of that project end.
type lease struct {
	slots   *request.Limiter
	project string

	mu      sync.Mutex
	held    []*request.Slot         // those with units left
	revoked error                   // set when the stream has to end, or has ended
	end     context.CancelCauseFunc // ends the stream; nil before it runs
}

// take takes n slots or none. Nothing can be taken after close.
func (l *lease) take(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	slot, err := l.slots.Acquire(ctx, request.Claim{Project: l.project, Units: n, Revoke: l.revoke})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revoked != nil {
		slot.Release()
		return l.revoked
	}
	l.held = append(l.held, slot)
	return nil
}

// revoke ends the stream, now or as soon as it runs. A stream that waits for its reader does not
// run yet: its slots are released at once.
func (l *lease) revoke(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revoked != nil {
		return
	}
	l.revoked = cause
	if l.end == nil {
		l.releaseAll()
		return
	}
	l.end(cause)
}

// run returns a context for the stream that ends when slots are revoked.
func (l *lease) run(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = end
	if l.revoked != nil {
		end(l.revoked)
	}
	return ctx, end
}

func (l *lease) giveBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := len(l.held) - 1; last >= 0 && l.held[last].Return(1) == 0 {
		l.held = l.held[:last]
	}
}

func (l *lease) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revoked == nil {
		l.revoked = request.Errorf(subjects.CodeInternal, "the log stream is closed")
	}
	l.releaseAll()
}

// releaseAll is called with the lock.
func (l *lease) releaseAll() {
	for _, slot := range l.held {
		slot.Release()
	}
	l.held = nil
}
