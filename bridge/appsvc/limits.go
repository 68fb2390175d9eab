package appsvc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// queueTimeout bounds the wait of a request for its turn. Most clients wait 2 to 5 s for an
	// answer, so nobody would read a later one.
	queueTimeout = 2 * time.Second
	// goneTimeout is how long a deploy waits for the end of a Service that is being deleted, and
	// goneInterval the time between two tries.
	goneTimeout  = 2500 * time.Millisecond
	goneInterval = 200 * time.Millisecond
	// heldBytes bounds the bytes of all writes, served or pending; writeBytes is what a write
	// takes beside its body.
	heldBytes  = 64 << 20
	writeBytes = 16 << 10
	// decodedBytes bounds the bodies that are decoded at one time: an App takes up to 130 times as
	// much as its body. Half of it is enough for any body. A body counts decodedShare times, up to
	// maxWriteBody: a small pod with thousands of empty containers takes 600 times as much as its
	// body, and kservice bounds their number.
	decodedBytes = 2 * maxWriteBody
	decodedShare = 4
	// checks bounds the validations by Knative at one time. One of a bad spec takes up to half a
	// second of a processor and 1 GiB of allocations, and events need both.
	checks = 2
)

// timeouts are the constants of those names, except in tests.
type timeouts struct{ queue, read, write, cache time.Duration }

// limits share among projects what is served at one time. A list of everything counts as a
// project of its own, with an empty name.
type limits struct {
	reads, writes *request.Limiter
	// held and decoded count bytes of writes.
	held, decoded *request.Limiter
	checked       *request.Limiter
}

func newLimits(cfg Config) *limits {
	return &limits{
		reads: request.NewLimiter(request.Limit{
			Option: "max-app-reads", What: "reads", Max: cfg.MaxReads, PendingOption: "max-pending-app-reads", Pending: cfg.MaxPendingReads,
		}),
		// held bounds what is pending.
		writes: request.NewLimiter(request.Limit{
			Option: "max-app-writes", What: "requests that change apps", Max: cfg.MaxWrites, PendingOption: "max-app-writes", Pending: heldBytes / writeBytes,
		}),
		// No write is revoked, so one project never holds everything.
		held:    request.NewLimiter(request.Limit{What: "bytes of requests that change apps", Max: heldBytes, MaxShare: heldBytes / 2}),
		decoded: request.NewLimiter(request.Limit{What: "bytes of requests that change apps", Max: decodedBytes, Pending: cfg.MaxWrites}),
		checked: request.NewLimiter(request.Limit{What: "validations of apps", Max: checks, Pending: cfg.MaxWrites}),
	}
}

// hold counts the bytes of a write, served or pending, until it releases them.
func (l *limits) hold(ctx context.Context, r *apiRequest) (*request.Slot, error) {
	return l.held.Acquire(ctx, request.Claim{Project: r.claimant(), Units: len(r.Body) + writeBytes})
}

// serveRead serves a read when it is its turn. It ends early when the requester disconnects.
func (s *Service) serveRead(serving context.Context, op operation, r *apiRequest, turn *request.Turn) (rep *reply, done func(), err error) {
	ctx, cancel := context.WithCancelCause(serving)
	ctx, stop := context.WithDeadlineCause(ctx, r.Arrived.Add(s.timeouts.read), errLate(s.timeouts.read, ""))
	watched := s.requesters.add(r.Reply, func() { cancel(errGone) })
	end := func() {
		s.requesters.remove(watched)
		stop()
		cancel(nil)
	}
	slot, err := s.turn(ctx, "max-app-reads", turn.Wait)
	if err != nil {
		return nil, end, err
	}
	rep, err = op.serve(ctx, r)
	return rep, func() { slot.Release(); end() }, err
}

// serveWrite serves a write. While it waits for the end of a Service that is being deleted, it holds
// nothing, so that the other writes of its app go on.
func (s *Service) serveWrite(serving context.Context, op operation, r *apiRequest) (*reply, error) {
	ctx, cancel := context.WithDeadlineCause(serving, r.Arrived.Add(s.timeouts.write), errLate(s.timeouts.write, nothingWritten))
	defer cancel()
	rep, err := s.tryWrite(ctx, op, r)
	waiting, ok := errors.AsType[*terminatingError](err)
	if !ok {
		return rep, err
	}
	patience, stop := context.WithTimeout(ctx, goneTimeout)
	defer stop()
	for range retry.Ticks(patience, goneInterval) {
		s.metrics.retries.Inc()
		rep, err = s.tryWrite(ctx, op, r)
		if again, ok := errors.AsType[*terminatingError](err); ok {
			waiting = again
		} else if err == nil || ctx.Err() == nil {
			return rep, err
		}
	}
	return nil, waiting.failure()
}

// tryWrite serves a write once. It waits for the other writes of its app before it takes anything
// that projects share.
func (s *Service) tryWrite(ctx context.Context, op operation, r *apiRequest) (*reply, error) {
	unlock, err := s.locks.lock(ctx, r.app)
	if err != nil {
		return nil, s.waited(ctx, err, "another request changes the app")
	}
	defer unlock()
	slot, err := s.turn(ctx, "max-app-writes", func(ctx context.Context) (*request.Slot, error) {
		return s.limits.writes.Acquire(ctx, request.Claim{Project: r.claimant(), Units: 1})
	})
	if err != nil {
		return nil, err
	}
	defer slot.Release()
	decoding, err := s.limits.decoded.Acquire(ctx, request.Claim{Project: r.claimant(), Units: min(max(decodedShare*len(r.Body), 1), maxWriteBody)})
	if err != nil {
		return nil, s.waited(ctx, err, "too many requests that change apps are served")
	}
	defer decoding.Release()
	return op.serve(ctx, r)
}

// waited is the error of a write that waited for something: of one whose time ended, with the
// reason.
func (s *Service) waited(ctx context.Context, err error, reason string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errLate(s.timeouts.write, ": "+reason+nothingWritten)
	}
	return err
}

// turn waits for a slot, but no longer than a client waits for an answer.
func (s *Service) turn(ctx context.Context, option string, wait func(context.Context) (*request.Slot, error)) (*request.Slot, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeouts.queue,
		request.Errorf(subjects.CodeResourceExhausted, "%s: no turn within %s, too many requests before this one, try again later", option, s.timeouts.queue))
	defer cancel()
	return wait(ctx)
}

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
