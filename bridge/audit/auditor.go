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
)

// The log messages of the audit.
const (
	logFound    = "the audit found a difference"
	logRepaired = "the audit repaired a difference"
	logNow      = "the audit looks at once"
)

const (
	// firstRound is how soon, at the latest, the first round follows the start and the time a part becomes active.
	firstRound = time.Minute
	// spread bounds how long the screen of one part takes for its pauses: a list of the API server
	// can be continued for five minutes.
	spread = 2 * time.Minute
	// maxLooks is how often a suspect is looked at, at most, until two looks agree.
	maxLooks = 10
	// mendLooks is how often a finding is looked at, at most, right after its repair.
	mendLooks = 5
	// remend is when a finding that is not repaired is looked at again.
	remend = 10 * time.Second
	// repairAgain is when a repair that did not help is tried again, for the first time; later ones
	// wait twice as long each, up to maxRepairAgain.
	repairAgain    = 30 * time.Second
	maxRepairAgain = 10 * time.Minute
	// looksOnceFound is how often the other suspects are looked at, at most, once something is found: its
	// repair does not wait for what keeps changing.
	looksOnceFound = 2
	// retryRound is when a round follows one that was interrupted, or that found something, if that is
	// earlier than the interval.
	retryRound = 15 * time.Second
	// leastRest is how long, at least, a round that somebody asks for comes after the last one.
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
	now  chan string   // somebody wants a round at once, and why
	soon chan struct{} // a part has become active

	// Of Run alone.
	worked time.Duration // by the present round, without pauses
	fresh  int           // what it found
	rested time.Time     // when the next round may come, if somebody asks for it

	mu       sync.Mutex
	complete time.Time // when the last complete round ended; at first: when the Auditor was made
	open     []map[string]*openFinding
}

// openFinding is what two comparisons agreed on, until a later one finds nothing wrong.
type openFinding struct {
	findings []Finding
	found    time.Time
	repair   time.Time     // when it is to be repaired next
	wait     time.Duration // before the repair after that
}

// New makes an Auditor.
func New(cfg Config) *Auditor {
	a := &Auditor{cfg: cfg, now: make(chan string, 1), soon: make(chan struct{}, 1), complete: time.Now()}
	for range cfg.Parts {
		a.open = append(a.open, map[string]*openFinding{})
	}
	return a
}

// LookNow asks for a round at once, or soon if the last one is not long over: frequent
// calls take a share of one core. It does not wait.
func (a *Auditor) LookNow(why string) {
	select {
	case a.now <- why:
	default: // one is asked for
	}
}

// Soon asks for a round within a minute, or within the interval if that is shorter: a part has
// become active. It does not wait.
func (a *Auditor) Soon() {
	select {
	case a.soon <- struct{}{}:
	default:
	}
}

// Unrepaired is how many subjects of active parts are found wrong and not repaired yet, and the
// first of their differences.
func (a *Auditor) Unrepaired() (n int, first Finding) {
	active := make([]bool, len(a.cfg.Parts))
	for i, part := range a.cfg.Parts {
		active[i] = part.Active()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var since time.Time
	for i, open := range a.open {
		if !active[i] {
			continue
		}
		for subject, f := range open {
			if f.leave() {
				continue
			}
			n++
			if since.IsZero() || f.found.Before(since) || f.found.Equal(since) && subject < first.Subject {
				since, first = f.found, f.findings[0]
			}
		}
	}
	return n, first
}

// leave reports whether there is nothing to be repaired.
func (f *openFinding) leave() bool {
	return !slices.ContainsFunc(f.findings, func(d Finding) bool { return !d.Leave })
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
		due := next
		mend := a.unmended() && time.Now().Add(a.remend()).Before(next)
		if mend {
			due = time.Now().Add(a.remend())
		}
		timer := time.NewTimer(time.Until(due))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-a.soon:
			timer.Stop()
			if earlier := time.Now().Add(first); earlier.Before(next) {
				next = earlier
			}
			continue
		case why := <-a.now:
			if time.Now().Before(a.rested) {
				timer.Stop()
				if a.rested.Before(next) {
					next = a.rested
				}
				continue
			}
			a.cfg.Log.Info(logNow, zap.String("why", why))
			mend = false
		case <-timer.C:
		}
		timer.Stop()
		if mend {
			for i := range a.cfg.Parts {
				a.mend(ctx, i, 1)
			}
			continue
		}
		err := a.round(ctx)
		wait := a.cfg.Interval
		if err != nil || a.fresh > 0 {
			wait = min(wait, retryRound) // a screen suspects so many at a time
		}
		a.rested = time.Now().Add(min(a.cfg.Interval, max(leastRest, rest*a.worked)))
		// Not all replicas at one time.
		next = time.Now().Add(wait - time.Duration(rand.Int64N(int64(wait/10)+1)))
	}
}

// remend is when an unrepaired finding is looked at again.
func (a *Auditor) remend() time.Duration { return min(remend, 5*a.cfg.Between) }

// round audits every active part, whether or not another one can be audited.
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

// part screens a part and follows up what is suspected.
func (a *Auditor) part(ctx context.Context, i int) error {
	pace := newPace(min(a.cfg.Interval/4, spread), func() bool { return len(a.now) > 0 })
	suspects, err := a.cfg.Parts[i].Screen(ctx, pace)
	a.work(pace.spent())
	if err != nil && len(suspects) == 0 {
		a.mend(ctx, i, 1)
		return err
	}
	a.cfg.Metrics.suspects.Add(float64(len(suspects)))
	if err := a.confirm(ctx, i, append(suspects, a.subjects(i, true)...)); err != nil {
		return err
	}
	a.mend(ctx, i, mendLooks)
	return err
}

// confirm looks at the suspects until two looks in a row agree on each, or it is right. What keeps
// changing is dropped: the next round suspects it again.
func (a *Auditor) confirm(ctx context.Context, i int, suspects []string) error {
	left := map[string]string{} // what the last look said of each
	for _, s := range suspects {
		left[s] = ""
	}
	looks := maxLooks
	for n := 0; n < looks && len(left) > 0; n++ {
		if n > 0 {
			if err := wait(ctx, a.cfg.Between); err != nil {
				return err
			}
		}
		looked, err := a.look(ctx, i, slices.Sorted(maps.Keys(left)))
		if err != nil {
			return err
		}
		found := looked.of()
		for subject, before := range left {
			switch now := found[subject]; {
			case looked.Unsettled[subject]:
				left[subject] = ""
			case len(now) == 0:
				delete(left, subject)
				a.right(i, subject)
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

func (a *Auditor) look(ctx context.Context, i int, subjects []string) (Looked, error) {
	began := time.Now()
	defer func() { a.work(time.Since(began)) }()
	return a.cfg.Parts[i].Look(ctx, subjects)
}

// work notes that time was spent.
func (a *Auditor) work(d time.Duration) {
	a.worked += d
	a.cfg.Metrics.seconds.Add(d.Seconds())
}

// find takes a subject's differences into the findings, and reports whether there is something new to
// be repaired. What is known is not reported again.
func (a *Auditor) find(i int, subject string, findings []Finding) (fresh bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.open[i][subject]
	if f == nil {
		f = &openFinding{found: time.Now(), wait: repairAgain}
		a.open[i][subject] = f
	}
	known := f.findings
	f.findings = findings
	for _, d := range findings {
		if slices.ContainsFunc(known, func(k Finding) bool { return k.Kind == d.Kind && k.Side == d.Side }) {
			continue
		}
		f.repair = time.Time{}
		fresh = fresh || !d.Leave
		a.cfg.Metrics.findings.WithLabelValues(d.Kind, d.Side).Inc()
		a.cfg.Log.Error(logFound, zap.String("kind", d.Kind), zap.String("side", d.Side), zap.String(d.Field, d.Name), zap.String("detail", d.Detail))
	}
	if fresh {
		a.fresh++
	}
	return fresh
}

// right takes a subject that is right out of the findings.
func (a *Auditor) right(i int, subject string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.open[i][subject]
	if f == nil {
		return
	}
	delete(a.open[i], subject)
	for _, d := range f.findings {
		if d.Leave {
			continue
		}
		a.cfg.Metrics.repairs.WithLabelValues(d.Kind).Inc()
		a.cfg.Log.Info(logRepaired, zap.String("kind", d.Kind), zap.String("side", d.Side), zap.String(d.Field, d.Name),
			zap.Duration("after", time.Since(f.found).Round(time.Millisecond)))
	}
}

// mend repairs the open findings of a part that are due and still wrong, and looks up to so many
// times whether they are right. A finding may be old: of the time when this bridge led last.
func (a *Auditor) mend(ctx context.Context, i, looks int) {
	wrong, ok := a.check(ctx, i)
	for ; looks > 0 && ok; looks-- {
		if due := a.due(i, wrong); len(due) > 0 {
			if err := a.cfg.Parts[i].Repair(ctx, due); err != nil && ctx.Err() == nil {
				a.cfg.Log.Warn("the audit could not repair a difference", zap.Error(err))
			}
		}
		if wait(ctx, a.cfg.Between) != nil {
			return
		}
		wrong, ok = a.check(ctx, i)
	}
}

// check looks at the open findings of a part, takes out those that are right and returns those that
// are wrong. ok is false if there is nothing left to be repaired, or nothing can be.
func (a *Auditor) check(ctx context.Context, i int) (wrong map[string][]Finding, ok bool) {
	subjects := a.subjects(i, false)
	if len(subjects) == 0 || !a.cfg.Parts[i].Active() {
		return nil, false
	}
	looked, err := a.look(ctx, i, subjects)
	if errors.Is(err, ErrInactive) || ctx.Err() != nil {
		return nil, false
	}
	if err != nil {
		a.cfg.Log.Debug("the audit could not look whether a difference is still there", zap.Error(err))
		return nil, true
	}
	wrong = looked.of()
	for _, subject := range subjects {
		switch {
		case looked.Unsettled[subject]:
			delete(wrong, subject)
		case len(wrong[subject]) == 0:
			a.right(i, subject)
		}
	}
	return wrong, len(a.subjects(i, false)) > 0
}

// subjects are the open findings of a part, those that are only reported too if all is true.
func (a *Auditor) subjects(i int, all bool) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var subjects []string
	for subject, f := range a.open[i] {
		if all || !f.leave() {
			subjects = append(subjects, subject)
		}
	}
	slices.Sort(subjects)
	return subjects
}

// due are the differences of wrong subjects that are to be repaired now.
func (a *Auditor) due(i int, wrong map[string][]Finding) []Finding {
	a.mu.Lock()
	defer a.mu.Unlock()
	var due []Finding
	now := time.Now()
	for subject, f := range a.open[i] {
		if len(wrong[subject]) == 0 || f.leave() || now.Before(f.repair) {
			continue
		}
		f.repair, f.wait = now.Add(f.wait), min(2*f.wait, maxRepairAgain)
		due = append(due, slices.DeleteFunc(slices.Clone(f.findings), func(d Finding) bool { return d.Leave })...)
	}
	return due
}

// unmended reports whether a finding of an active part is not repaired yet.
func (a *Auditor) unmended() bool {
	n, _ := a.Unrepaired()
	return n > 0
}

// wait waits for a while.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
