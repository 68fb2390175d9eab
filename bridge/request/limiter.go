package request

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/appbridge/appbridge/subjects"
)

// Limit bounds what runs at one time.
type Limit struct {
	// Option sets Max; What names the units. The errors of refused claims contain both.
	Option, What string
	// Max units may be held at one time. At least 1.
	Max int
	// MaxShare bounds the units of one project, also while it is alone. 0: a project may hold
	// everything while it is alone, else half.
	MaxShare int
	// PendingOption sets Pending.
	PendingOption string
	// Pending bounds the claims that wait for units. 0: none waits.
	Pending int
}

// Claim is a request for units.
type Claim struct {
	// Project shares the limit with other projects.
	Project string
	// Units are granted together or not at all.
	Units int
	// Revoke ends the work that the units are for, whose end releases them; cause is a 429 *Error
	// that names the limit. It is called at most once, and must not block; it may release the units
	// itself, once Acquire has returned them. nil: the units are held until the work has ended by
	// itself.
	Revoke func(cause error)
}

// Limiter shares a limit among projects. It is safe for use by many goroutines.
//
// A project that is alone may hold everything. While other projects have claims, it may hold half.
// Its fair share is the limit divided by the number of projects. When no units are free, a claim
// within the fair share revokes the newest revocable claims of the project that is most above its
// own share. Pending claims of the project with the fewest units come first; projects with equally
// many take turns.
type Limiter struct {
	limit Limit

	mu       sync.Mutex
	used     int
	revoked  int                 // units of revoked claims that are not released yet
	owed     int                 // units that pending claims get of those, and of what is free
	pending  int                 // claims
	turn     uint64              // of the last grant, or new project
	projects map[string]*project // with claims, granted or pending
}

// project is the part of one project in a limit.
type project struct {
	name    string
	held    int     // units
	revoked int     // of held
	slots   []*Slot // oldest first
	queue   []*Turn
	served  uint64 // turn of its last grant, or of its first claim
}

// Turn is a claim that is granted or pending. Its Wait is called once.
type Turn struct {
	limiter *Limiter
	claim   Claim
	owed    bool          // claims are revoked for it
	done    chan struct{} // closed once slot or err is set
	slot    *Slot
	err     error
}

// Slot is a granted claim.
type Slot struct {
	limiter *Limiter
	claim   Claim
	revoked bool
}

// Usage counts the units that are held, the claims that are pending, and the units of the limit.
type Usage struct{ Active, Pending, Max int }

// NewLimiter returns a Limiter. The Max of the limit is at least 1.
func NewLimiter(limit Limit) *Limiter {
	return &Limiter{limit: limit, projects: map[string]*project{}}
}

// Usage returns the present usage.
func (l *Limiter) Usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Usage{Active: l.used, Pending: l.pending, Max: l.limit.Max}
}

// Acquire takes the units of a claim. If the limit has Pending, it waits for them until ctx is
// done. The error is an *Error with the code ResourceExhausted, which names the limit, or the cause
// of ctx.
func (l *Limiter) Acquire(ctx context.Context, claim Claim) (*Slot, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	turn, err := l.Enter(claim)
	if err != nil {
		return nil, err
	}
	return turn.Wait(ctx)
}

// Enter is the part of Acquire that does not wait, for callers that must not block.
func (l *Limiter) Enter(claim Claim) (*Turn, error) {
	w := &Turn{limiter: l, claim: claim, done: make(chan struct{})}
	for _, s := range l.enter(w) {
		s.claim.Revoke(exhausted(l.limit.Option, "project %q has more than its share of %d %s: another project needs its share of the limit",
			s.claim.Project, l.limit.Max, l.limit.What))
	}
	select {
	case <-w.done:
		return w, w.err
	default:
		return w, nil
	}
}

// Wait is the rest of Acquire.
func (t *Turn) Wait(ctx context.Context) (*Slot, error) {
	l := t.limiter
	select {
	case <-t.done:
		return t.slot, t.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	select {
	case <-t.done: // granted or refused meanwhile
	default:
		l.finish(t, nil, context.Cause(ctx))
		l.dispatch()
	}
	l.mu.Unlock()
	if t.slot != nil {
		t.slot.Release()
		return nil, context.Cause(ctx)
	}
	return nil, t.err
}

// Release returns the units. Only the first call counts.
func (s *Slot) Release() { s.Return(s.limiter.limit.Max) }

// Return gives n of the units back before the others, all of them where fewer are left, and
// returns how many are left then.
func (s *Slot) Return(n int) (left int) {
	l := s.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	n = min(n, s.claim.Units)
	if n == 0 {
		return s.claim.Units
	}
	s.claim.Units -= n
	p := l.projects[s.claim.Project]
	p.held -= n
	l.used -= n
	if s.revoked {
		p.revoked -= n
		l.revoked -= n
	}
	if s.claim.Units == 0 {
		p.slots = slices.DeleteFunc(p.slots, func(other *Slot) bool { return other == s })
	}
	l.forget(p)
	l.dispatch()
	return s.claim.Units
}

// enter queues a claim, and grants or refuses it if possible. It returns the claims to revoke for
// it.
func (l *Limiter) enter(w *Turn) (revoke []*Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.projects[w.claim.Project]
	if p == nil {
		// Its turn is after those of pending projects.
		l.turn++
		p = &project{name: w.claim.Project, served: l.turn}
		l.projects[p.name] = p
	}
	p.queue = append(p.queue, w)
	l.pending++
	l.dispatch()
	if w.slot != nil {
		return nil
	}
	revoke, w.owed = l.reclaim(p, w.claim.Units)
	switch {
	case w.owed:
		l.owed += w.claim.Units
		p.advance(w)
	case l.limit.Pending == 0 || w.claim.Units > l.limit.Max:
		l.finish(w, nil, l.refusal(p, w.claim.Units))
	case l.pending > l.limit.Pending:
		l.refuseNewest()
	}
	return revoke
}

// dispatch grants pending claims as long as one may be granted.
func (l *Limiter) dispatch() {
	for {
		var next *project
		for _, p := range l.projects {
			if len(p.queue) == 0 || !l.admits(p, p.queue[0]) {
				continue
			}
			if next == nil || p.held < next.held || p.held == next.held && p.served < next.served {
				next = p
			}
		}
		if next == nil {
			return
		}
		w := next.queue[0]
		l.turn++
		next.served = l.turn
		next.held += w.claim.Units
		l.used += w.claim.Units
		slot := &Slot{limiter: l, claim: w.claim}
		next.slots = append(next.slots, slot)
		l.finish(w, slot, nil)
	}
}

// admits reports whether units are free for a claim, within the share of its project. Owed units
// are not free for other claims.
func (l *Limiter) admits(p *project, w *Turn) bool {
	free := l.limit.Max - l.used
	if w.owed {
		return w.claim.Units <= free
	}
	return w.claim.Units <= free-l.owed && p.held+w.claim.Units <= l.share()
}

// advance moves the last claim, whose units are owed, before those whose units are not.
func (p *project) advance(w *Turn) {
	queue := p.queue[:len(p.queue)-1]
	at := slices.IndexFunc(queue, func(other *Turn) bool { return !other.owed })
	if at < 0 {
		at = len(queue)
	}
	p.queue = slices.Insert(queue, at, w)
}

// reclaim returns the claims to revoke so that a project gets units. ok is false if the units are
// beyond its fair share, or too few claims can be revoked.
func (l *Limiter) reclaim(p *project, units int) (revoke []*Slot, ok bool) {
	fair := l.fair()
	if p.held+units > fair {
		return nil, false
	}
	for missing := units + l.owed - (l.limit.Max - l.used) - l.revoked; missing > 0; {
		s := l.victim(p, fair)
		if s == nil {
			for _, s := range revoke {
				l.mark(s, false)
			}
			return nil, false
		}
		l.mark(s, true)
		revoke = append(revoke, s)
		missing -= s.claim.Units
	}
	return revoke, true
}

// victim returns the newest revocable claim of the project that is most above its fair share, nil
// if there is none.
func (l *Limiter) victim(p *project, fair int) *Slot {
	var found *Slot
	most := fair
	for _, other := range l.projects {
		left := other.held - other.revoked
		if other == p || left <= most {
			continue
		}
		for _, s := range slices.Backward(other.slots) {
			if s.claim.Revoke != nil && !s.revoked {
				found, most = s, left
				break
			}
		}
	}
	return found
}

func (l *Limiter) mark(s *Slot, revoked bool) {
	units := s.claim.Units
	if !revoked {
		units = -units
	}
	s.revoked = revoked
	l.projects[s.claim.Project].revoked += units
	l.revoked += units
}

// refuseNewest refuses the newest pending claim of the project with most of them.
func (l *Limiter) refuseNewest() {
	var most *project
	for _, p := range l.projects {
		if most == nil || len(p.queue) > len(most.queue) || len(p.queue) == len(most.queue) && p.served > most.served {
			most = p
		}
	}
	w := most.queue[len(most.queue)-1]
	l.finish(w, nil, exhausted(l.limit.PendingOption, "%d %s are waiting, %d of project %q, at most %d in all",
		l.pending-1, l.limit.What, len(most.queue)-1, most.name, l.limit.Pending))
	l.dispatch()
}

// refusal is the error of a refused claim.
func (l *Limiter) refusal(p *project, units int) error {
	need := ""
	if units != 1 {
		need = fmt.Sprintf(", this request needs %d", units)
	}
	limit := l.limit
	if l.used+l.owed+units > limit.Max {
		return exhausted(limit.Option, "%d of %d %s are taken%s", l.used, limit.Max, limit.What, need)
	}
	most := fmt.Sprintf("%d while other projects have requests", l.half())
	if limit.MaxShare > 0 {
		most = strconv.Itoa(limit.MaxShare)
	}
	return exhausted(limit.Option, "project %q has %d of %d %s, at most %s%s", p.name, p.held, limit.Max, limit.What, most, need)
}

// exhausted is the error of a claim that is refused or revoked. option may be empty.
func exhausted(option, format string, args ...any) error {
	if option != "" {
		option += ": "
	}
	return Errorf(subjects.CodeResourceExhausted, "%s%s, try again later", option, fmt.Sprintf(format, args...))
}

// finish takes a claim off its queue with what has become of it.
func (l *Limiter) finish(w *Turn, slot *Slot, err error) {
	p := l.projects[w.claim.Project]
	p.queue = slices.DeleteFunc(p.queue, func(other *Turn) bool { return other == w })
	l.pending--
	if w.owed {
		l.owed -= w.claim.Units
	}
	w.slot, w.err = slot, err
	close(w.done)
	l.forget(p)
}

func (l *Limiter) forget(p *project) {
	if len(p.slots) == 0 && len(p.queue) == 0 {
		delete(l.projects, p.name)
	}
}

// fair is the share that each project can rely on.
func (l *Limiter) fair() int {
	projects := len(l.projects)
	return min((l.limit.Max+projects-1)/projects, l.share())
}

// share is the most that one project may hold.
func (l *Limiter) share() int {
	switch {
	case l.limit.MaxShare > 0:
		return l.limit.MaxShare
	case len(l.projects) == 1:
		return l.limit.Max
	default:
		return l.half()
	}
}

func (l *Limiter) half() int { return (l.limit.Max + 1) / 2 }
