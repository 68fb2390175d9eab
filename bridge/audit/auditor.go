package audit

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/retry"
)

// The log messages of the audit.
const (
	logFound    = "the audit found a difference"
	logRepaired = "the audit repaired a difference"

	logInterrupted = "the rounds of the audit are interrupted again and again"
	logCompletes   = "the audit completes its rounds again"
)

const (
	// firstRound is the longest wait for a round after the start, or after a part became active.
	firstRound = time.Minute
	// spread bounds the pauses of one screen: a list of the API server expires after five minutes.
	spread = 2 * time.Minute
	// maxLooks bounds how often a suspect is compared until two comparisons agree.
	maxLooks = 10
	// repairLooks bounds how often a finding is compared right after its repair.
	repairLooks = 5
	// recheck is when an unrepaired finding is compared again, or sooner if Between is short.
	recheck = 10 * time.Second
	// repairAgain is the wait before a repair is repeated. It doubles up to maxRepairAgain.
	repairAgain    = 30 * time.Second
	maxRepairAgain = 10 * time.Minute
	// looksOnceFound bounds how often other suspects are compared before a finding is repaired.
	looksOnceFound = 2
	// retryRound is the longest wait after a round that was interrupted or found something.
	retryRound = 15 * time.Second
	// maxInterrupted is how many rounds in a row may be interrupted without a warning.
	maxInterrupted = 2
	// leastRest is the least wait between the last round and one that is requested.
	leastRest = time.Second
)

// Config is what an Auditor needs. All fields are needed.
type Config struct {
	Interval time.Duration // from one round to the next
	Between  time.Duration // least time between two looks that have to agree
	Parts    []Part        // screened in this order
	Log      *zap.Logger
	Metrics  *Metrics
}

// Auditor audits its parts until its context ends.
type Auditor struct {
	cfg  Config
	now  chan string   // requests a round at once, with the reason
	soon chan struct{} // a part has become active

	// Of Run alone.
	worked time.Duration // by the present round, without pauses
	fresh  int           // the new findings of the present round
	failed int           // the rounds in a row that were interrupted
	rested time.Time     // when the next requested round may start

	mu       sync.Mutex
	complete time.Time // end of the last complete round; at first when the Auditor was made
	open     []map[string]*openFinding
}

// New makes an Auditor.
func New(cfg Config) *Auditor {
	a := &Auditor{cfg: cfg, now: make(chan string, 1), soon: make(chan struct{}, 1), complete: time.Now()}
	for range cfg.Parts {
		a.open = append(a.open, map[string]*openFinding{})
	}
	return a
}

// LookNow requests a round at once, or soon if the last one ended recently, so that frequent calls
// take a bounded share of one core. It does not wait.
func (a *Auditor) LookNow(why string) { request(a.now, why) }

// Soon requests a round within a minute, or within the interval if that is shorter: a part has
// become active. It does not wait.
func (a *Auditor) Soon() { request(a.soon, struct{}{}) }

func request[T any](c chan<- T, v T) {
	select {
	case c <- v:
	default: // one is requested already
	}
}

func (a *Auditor) lastComplete() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.complete
}

// Run audits until ctx is done.
func (a *Auditor) Run(ctx context.Context) {
	first := min(a.cfg.Interval, firstRound)
	next := time.Now().Add(first)
	for {
		due, again := next, time.Now().Add(min(recheck, 5*a.cfg.Between))
		unrepaired, _ := a.Unrepaired()
		check := unrepaired > 0 && again.Before(next)
		if check {
			due = again
		}
		select {
		case <-ctx.Done():
			return
		case <-a.soon:
			if earlier := time.Now().Add(first); earlier.Before(next) {
				next = earlier
			}
			continue
		case why := <-a.now:
			if time.Now().Before(a.rested) {
				if a.rested.Before(next) {
					next = a.rested
				}
				continue
			}
			a.cfg.Log.Info("the audit starts a round at once", zap.String("why", why))
			check = false
		case <-time.After(time.Until(due)):
		}
		if check {
			for i := range a.cfg.Parts {
				a.repair(ctx, i, 1)
			}
			continue
		}
		err := a.round(ctx)
		if ctx.Err() != nil {
			return
		}
		a.report(err)
		wait := a.cfg.Interval
		if err != nil || a.fresh > 0 {
			wait = min(wait, retryRound) // a screen returns a limited number of suspects
		}
		a.rested = time.Now().Add(min(a.cfg.Interval, max(leastRest, rest*a.worked)))
		// Not all replicas at one time.
		next = time.Now().Add(wait - time.Duration(rand.Int64N(int64(wait/10)+1)))
	}
}

// report warns once of a streak of interrupted rounds, with the error of the last one.
func (a *Auditor) report(err error) {
	if err == nil {
		if a.failed >= maxInterrupted {
			a.cfg.Log.Info(logCompletes, zap.Int("interrupted", a.failed))
		}
		a.failed = 0
		return
	}
	if a.failed++; a.failed == maxInterrupted {
		a.cfg.Log.Warn(logInterrupted, zap.Duration("sinceComplete", time.Since(a.lastComplete()).Round(time.Second)), zap.Error(err))
	}
}

// round audits every active part, also if another part fails.
func (a *Auditor) round(ctx context.Context) error {
	a.worked, a.fresh = 0, 0
	result := resultComplete
	var failed error
	for i, part := range a.cfg.Parts {
		if !part.Active() {
			continue
		}
		if err := a.part(ctx, i); err != nil {
			failed, result = errors.Join(failed, err), resultInterrupted
			a.cfg.Log.Debug("a round of the audit was interrupted", zap.Error(err))
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	a.cfg.Metrics.rounds.WithLabelValues(result).Inc()
	if failed == nil {
		a.mu.Lock()
		a.complete = time.Now()
		a.mu.Unlock()
	}
	return failed
}

// part screens a part and compares the suspects in full.
func (a *Auditor) part(ctx context.Context, i int) error {
	pace := newPace(min(a.cfg.Interval/4, spread), func() bool { return len(a.now) > 0 })
	suspects, err := a.cfg.Parts[i].Screen(ctx, pace)
	a.work(pace.spent())
	if err != nil && len(suspects) == 0 {
		a.repair(ctx, i, 1)
		return err
	}
	a.cfg.Metrics.suspects.Add(float64(len(suspects)))
	if err := a.recheck(ctx, i, append(suspects, a.subjects(i, true)...)); err != nil {
		return err
	}
	a.repair(ctx, i, repairLooks)
	return err
}

// recheck compares each suspect until two comparisons in a row agree, or it is right. A subject
// that keeps changing is dropped: the next round suspects it again.
func (a *Auditor) recheck(ctx context.Context, i int, suspects []string) error {
	left := map[string]string{} // the result of the last comparison of each
	for _, s := range suspects {
		left[s] = ""
	}
	looks := maxLooks
	for n := 0; n < looks && len(left) > 0; n++ {
		if n > 0 {
			if err := retry.Wait(ctx, a.cfg.Between); err != nil {
				return err
			}
		}
		found, changing, err := a.look(ctx, i, slices.Sorted(maps.Keys(left)))
		if err != nil {
			return err
		}
		for subject, before := range left {
			switch now := found[subject]; {
			case changing[subject]:
				left[subject] = ""
			case len(now) == 0:
				delete(left, subject)
			case same(now) == before:
				delete(left, subject)
				if a.find(i, subject, now) {
					looks = min(looks, n+1+looksOnceFound)
				}
			default:
				left[subject] = same(now)
			}
		}
	}
	return nil
}

// look compares subjects of a part, and removes the open findings of those that are right.
func (a *Auditor) look(ctx context.Context, i int, subjects []string) (found map[string][]Difference, changing map[string]bool, err error) {
	began := time.Now()
	looked, err := a.cfg.Parts[i].Look(ctx, subjects)
	a.work(time.Since(began))
	if err != nil {
		return nil, nil, err
	}
	found = bySubject(looked.Findings)
	for _, subject := range subjects {
		if len(found[subject]) == 0 && !looked.Changing[subject] {
			a.right(i, subject)
		}
	}
	return found, looked.Changing, nil
}

func (a *Auditor) work(d time.Duration) {
	a.worked += d
	a.cfg.Metrics.seconds.Add(d.Seconds())
}

// Part is one thing that is audited. The Auditor calls its methods one at a time.
type Part interface {
	// Active reports whether there is anything to audit now. Otherwise the findings do not count.
	Active() bool
	// Screen reads everything and returns the suspects. With an error it has not read everything.
	Screen(ctx context.Context, pace *Pace) (suspects []string, err error)
	// Look compares the subjects in full. It returns ErrInactive if the part became inactive.
	Look(ctx context.Context, subjects []string) (Looked, error)
	// Repair starts the repair of findings. A later look finds its effect.
	Repair(ctx context.Context, findings []Difference) error
}

// ErrInactive is the error of a part that cannot be audited at present.
var ErrInactive = errors.New("there is nothing to audit at present")

// Looked is the result of a look.
type Looked struct {
	Findings []Difference
	// Changing are the subjects that could not be judged: a change of them is in progress.
	Changing map[string]bool
}

const (
	// rest is how long a paced screen pauses, as a multiple of how long it worked.
	rest = 9
	// stint is how long it works before it pauses.
	stint = 5 * time.Millisecond
)

// Pace spreads a screen over time. The zero value does not pause.
type Pace struct {
	budget time.Duration // that is left for pauses
	hurry  func() bool   // reports whether another round is requested
	began  time.Time     // of the present stint
	worked time.Duration
}

// newPace makes a Pace that pauses for budget in all, and no longer once hurry returns true.
func newPace(budget time.Duration, hurry func() bool) *Pace {
	return &Pace{budget: budget, hurry: hurry, began: time.Now()}
}

// Step pauses if enough work was done since the last pause. It is called after each bit of work.
func (p *Pace) Step(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if p.began.IsZero() {
		p.began = time.Now()
		return nil
	}
	worked := time.Since(p.began)
	if worked < stint {
		return nil
	}
	p.worked += worked
	defer func() { p.began = time.Now() }()
	pause := min(rest*worked, p.budget)
	if pause <= 0 || p.hurry() {
		return nil
	}
	p.budget -= pause
	return retry.Wait(ctx, pause)
}

// spent is the time of all work, without pauses.
func (p *Pace) spent() time.Duration { return p.worked + time.Since(p.began) }
