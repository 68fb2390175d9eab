package appsvc

import (
	"context"
	"sync"
	"time"

	"github.com/appbridge/appbridge/bridge/request"
	requests "github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// queueTimeout is how long a request waits for its turn. Most clients wait for an answer
	// for 2 to 5 s, so what begins later is work for nobody.
	queueTimeout = 2 * time.Second
	// readTimeout is how long a read may take, queue included: the nats CLI waits for so long.
	readTimeout = 5 * time.Second
	// writeTimeout is how long a write may take.
	writeTimeout = time.Minute
	// heldBytes is how much all writes may hold that are served or wait, writeBytes what one
	// of them holds beside its body.
	heldBytes  = 64 << 20
	writeBytes = 16 << 10
	// decodedBytes is how much the bodies may be that are decoded at one time: an App takes up
	// to 130 times as much as its body. It is twice maxBody, so that half of it is enough for any.
	// A body counts decodedShare times, up to maxBody: a small pod with thousands of empty
	// containers takes 600 times as much as its body, and kservice bounds how many those are.
	decodedBytes = 2 * maxBody
	decodedShare = 4
)

// timeouts are the constants of those names, except in tests.
type timeouts struct{ queue, read, write time.Duration }

// limits share what is served at one time among projects. A list of everything counts as a
// project of its own, whose name is empty.
type limits struct {
	reads, writes, decoded *requests.Limiter

	mu   sync.Mutex
	held map[string]int // bytes of the writes of each project
	all  int            // their sum
}

func newLimits(cfg Config) *limits {
	return &limits{
		reads: requests.NewLimiter(requests.Limit{
			Option: "max-app-reads", What: "reads", Max: cfg.MaxReads, PendingOption: "max-pending-app-reads", Pending: cfg.MaxPendingReads,
		}),
		// What may wait is bounded by admit.
		writes: requests.NewLimiter(requests.Limit{
			Option: "max-app-writes", What: "requests that change apps", Max: cfg.MaxWrites, PendingOption: "max-app-writes", Pending: heldBytes / writeBytes,
		}),
		decoded: requests.NewLimiter(requests.Limit{What: "bytes of requests that change apps", Max: decodedBytes, Pending: cfg.MaxWrites}),
		held:    map[string]int{},
	}
}

// admit counts a write, whether it is served or waits, until it is dismissed. One project
// has at most half of the bytes, so that another one is never shut out.
func (l *limits) admit(r *apiRequest) error {
	project, bytes := r.claimant(), len(r.body)+writeBytes
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.held[project]+bytes > heldBytes/2:
		return request.Errorf(subjects.CodeResourceExhausted, "project %q: its requests that change apps hold %d bytes, at most %d for one project, try again later",
			project, l.held[project], heldBytes/2)
	case l.all+bytes > heldBytes:
		return request.Errorf(subjects.CodeResourceExhausted, "requests that change apps hold %d bytes, at most %d, try again later", l.all, heldBytes)
	}
	l.held[project] += bytes
	l.all += bytes
	return nil
}

func (l *limits) dismiss(r *apiRequest) {
	project, bytes := r.claimant(), len(r.body)+writeBytes
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all -= bytes
	if l.held[project] -= bytes; l.held[project] == 0 {
		delete(l.held, project)
	}
}

// serveRead serves a read when it is its turn. A requester that is gone meanwhile ends it.
func (s *Service) serveRead(serving context.Context, op operation, r *apiRequest) (rep *reply, done func(), err error) {
	ctx, cancel := context.WithCancelCause(serving)
	ctx, stop := context.WithTimeoutCause(ctx, s.timeouts.read, errLate(s.timeouts.read, ""))
	watched := s.requesters.add(r.reply, func() { cancel(errGone) })
	end := func() {
		s.requesters.remove(watched)
		stop()
		cancel(nil)
	}
	slot, err := s.turn(ctx, "max-app-reads", r.turn.Wait)
	if err != nil {
		return nil, end, err
	}
	rep, err = op.serve(ctx, r)
	return rep, func() { slot.Release(); end() }, err
}

// serveWrite serves a write. It waits for the other writes of its app first: nothing that
// projects share is held for that.
func (s *Service) serveWrite(serving context.Context, op operation, r *apiRequest) (*reply, error) {
	ctx, cancel := context.WithTimeoutCause(serving, s.timeouts.write, errLate(s.timeouts.write, ""))
	defer cancel()
	unlock, err := s.locks.lock(ctx, r.app)
	if err != nil {
		return nil, err
	}
	defer unlock()
	slot, err := s.turn(ctx, "max-app-writes", func(ctx context.Context) (*requests.Slot, error) {
		return s.limits.writes.Acquire(ctx, requests.Claim{Project: r.claimant(), Units: 1})
	})
	if err != nil {
		return nil, err
	}
	defer slot.Release()
	decoding, err := s.limits.decoded.Acquire(ctx, requests.Claim{Project: r.claimant(), Units: min(max(decodedShare*len(r.body), 1), maxBody)})
	if err != nil {
		return nil, err
	}
	defer decoding.Release()
	return op.serve(ctx, r)
}

// turn waits for a slot, but not for longer than a client waits for an answer.
func (s *Service) turn(ctx context.Context, option string, wait func(context.Context) (*requests.Slot, error)) (*requests.Slot, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeouts.queue,
		request.Errorf(subjects.CodeResourceExhausted, "%s: no turn within %s, too many requests before this one, try again later", option, s.timeouts.queue))
	defer cancel()
	return wait(ctx)
}
