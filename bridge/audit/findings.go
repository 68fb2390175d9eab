package audit

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/retry"
)

// openFinding is what two comparisons agreed on, until a later one finds nothing wrong.
type openFinding struct {
	findings []Difference
	found    time.Time
	repair   time.Time     // of the next repair
	wait     time.Duration // from the next repair to the one after it
}

// Unrepaired returns how many subjects of active parts are wrong, and the first of their findings.
func (a *Auditor) Unrepaired() (n int, first Difference) {
	var since time.Time
	for i, part := range a.cfg.Parts {
		if !part.Active() {
			continue
		}
		a.mu.Lock()
		for subject, f := range a.open[i] {
			if f.leave() {
				continue
			}
			n++
			if since.IsZero() || f.found.Before(since) || f.found.Equal(since) && subject < first.Subject() {
				since, first = f.found, f.findings[0]
			}
		}
		a.mu.Unlock()
	}
	return n, first
}

// leave reports whether there is nothing to be repaired.
func (f *openFinding) leave() bool {
	return !slices.ContainsFunc(f.findings, func(d Difference) bool { return !d.Leave() })
}

// find adds the findings of a subject to the open ones, and reports whether one of them is new and
// to be repaired. Known ones are not logged again.
func (a *Auditor) find(i int, subject string, findings []Difference) (fresh bool) {
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
		if slices.ContainsFunc(known, func(k Difference) bool { return k.Kind == d.Kind && k.Side == d.Side }) {
			continue
		}
		f.repair = time.Time{}
		fresh = fresh || !d.Leave()
		a.cfg.Metrics.findings.WithLabelValues(string(d.Kind), string(d.Side)).Inc()
		a.cfg.Log.Error(logFound, append(d.fields(), zap.String("detail", d.Detail))...)
	}
	if fresh {
		a.fresh++
	}
	return fresh
}

func (a *Auditor) right(i int, subject string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.open[i][subject]
	if f == nil {
		return
	}
	delete(a.open[i], subject)
	for _, d := range f.findings {
		if d.Leave() {
			continue
		}
		a.cfg.Metrics.repairs.WithLabelValues(string(d.Kind)).Inc()
		a.cfg.Log.Info(logRepaired, append(d.fields(), zap.Duration("after", time.Since(f.found).Round(time.Millisecond)))...)
	}
}

// repair repairs the open findings of a part that are due and still wrong, and compares them up to
// looks times. A finding may be old, from the time when this bridge led last.
func (a *Auditor) repair(ctx context.Context, i, looks int) {
	wrong, ok := a.check(ctx, i)
	for ; looks > 0 && ok; looks-- {
		if due := a.due(i, wrong); len(due) > 0 {
			if err := a.cfg.Parts[i].Repair(ctx, due); err != nil && ctx.Err() == nil {
				a.cfg.Log.Warn("the audit could not repair a difference", zap.Error(err))
			}
		}
		if retry.Wait(ctx, a.cfg.Between) != nil {
			return
		}
		wrong, ok = a.check(ctx, i)
	}
}

// check compares the open findings of a part and returns those that are still wrong. ok is false if
// nothing is left to be repaired, or nothing can be.
func (a *Auditor) check(ctx context.Context, i int) (wrong map[string][]Difference, ok bool) {
	subjects := a.subjects(i, false)
	if len(subjects) == 0 || !a.cfg.Parts[i].Active() {
		return nil, false
	}
	wrong, _, err := a.look(ctx, i, subjects)
	if errors.Is(err, ErrInactive) || ctx.Err() != nil {
		return nil, false
	}
	if err != nil {
		a.cfg.Log.Debug("the audit could not compare an open difference again", zap.Error(err))
		return nil, true
	}
	return wrong, len(a.subjects(i, false)) > 0
}

// subjects returns the subjects of a part's open findings; all includes those only reported.
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

// due returns the findings of wrong subjects that are to be repaired now.
func (a *Auditor) due(i int, wrong map[string][]Difference) []Difference {
	a.mu.Lock()
	defer a.mu.Unlock()
	var due []Difference
	now := time.Now()
	for subject, f := range a.open[i] {
		if len(wrong[subject]) == 0 || f.leave() || now.Before(f.repair) {
			continue
		}
		f.repair, f.wait = now.Add(f.wait), min(2*f.wait, maxRepairAgain)
		due = append(due, slices.DeleteFunc(slices.Clone(f.findings), Difference.Leave)...)
	}
	return due
}
