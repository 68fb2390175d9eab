package logsvc

import (
	"cmp"
	"context"
	"sync"

	"github.com/appbridge/appbridge/bridge/request"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/appbridge/appbridge/subjects"
)

// newPodSlots makes the limit of the logs that are read.
func newPodSlots(most int) *request.Limiter {
	return request.NewLimiter(request.Limit{Option: optionPodStreams, What: "Kubernetes log streams", Max: most})
}

// podLease is what one stream holds of the slots. A project that has too much of them while
// another needs some loses its newest streams.
type podLease struct {
	slots   *request.Limiter
	most    int
	taken   prometheus.Gauge
	project string

	mu      sync.Mutex
	held    []*podSlot
	closed  bool
	revoked error                   // why the stream ends, nil: it does not
	end     context.CancelCauseFunc // ends the stream, nil before it runs
}

// podSlot is some units that were taken at once.
type podSlot struct {
	*request.Slot
	units int
}

// beyondShare ends a stream whose project has too many of what an option limits.
func beyondShare(option, project string, most int, what string, cause error) *Error {
	return Errorf(subjects.CodeResourceExhausted, "%s: project %q has more than its share of %d %s: %v, try again later", option, project, most, what, cause)
}

// newLease is what a stream of a project takes its slots by.
func (k *Kubernetes) newLease(project string) *podLease {
	return &podLease{slots: k.slots, most: k.slots.Usage().Max, taken: k.metrics.streams, project: project}
}

// take takes n slots or none. Nothing can be taken after close.
func (l *podLease) take(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	slot, err := l.slots.Acquire(ctx, request.Claim{Project: l.project, Units: n, Revoke: l.revoke})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.revoked != nil {
		slot.Release()
		return cmp.Or(l.revoked, error(Errorf(subjects.CodeInternal, "the log stream is closed")))
	}
	l.held = append(l.held, &podSlot{slot, n})
	l.taken.Add(float64(n))
	return nil
}

// revoke ends the stream, now or as soon as it runs. One that does not run yet, because it
// waits for its reader, reads nothing: its slots come back at once.
func (l *podLease) revoke(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revoked != nil {
		return
	}
	l.revoked = beyondShare(optionPodStreams, l.project, l.most, "Kubernetes log streams", cause)
	if l.end == nil {
		l.releaseAll()
		return
	}
	l.end(l.revoked)
}

// run returns a context for the stream that ends when slots are revoked.
func (l *podLease) run(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = end
	if l.revoked != nil {
		end(l.revoked)
	}
	return ctx, end
}

// give gives one slot back.
func (l *podLease) give() {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.held) - 1
	if last < 0 {
		return
	}
	slot := l.held[last]
	slot.Return(1)
	l.taken.Dec()
	if slot.units--; slot.units == 0 {
		l.held = l.held[:last]
	}
}

// close gives back what is left.
func (l *podLease) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.releaseAll()
}

// releaseAll is called with the lock.
func (l *podLease) releaseAll() {
	for _, slot := range l.held {
		slot.Release()
		l.taken.Sub(float64(slot.units))
	}
	l.held = nil
}
