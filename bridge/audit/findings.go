package audit

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"
)

// openFinding is what two comparisons agreed on, until a later one finds nothing wrong.
type openFinding struct {
	findings []Finding
	found    time.Time
	repair   time.Time     // of the next repair
	wait     time.Duration // from the next repair to the one after it
}

// Unrepaired returns how many subjects of active parts are wrong, and the first of their findings.
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

// find adds the findings of a subject to the open ones, and reports whether one of them is new and
// to be repaired. Known ones are not logged again.
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

// right removes a subject that is right from the open findings.
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
		if wait(ctx, a.cfg.Between) != nil {
			return
		}
		wrong, ok = a.check(ctx, i)
	}
}

// check compares the open findings of a part, removes those that are right and returns those that
// are wrong. ok is false if nothing is left to be repaired, or nothing can be.
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
		a.cfg.Log.Debug("the audit could not compare an open difference again", zap.Error(err))
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
