package audit

import (
	"context"
	"time"
)

const (
	// rest is how long a paced screen pauses, as a multiple of how long it worked.
	rest = 9
	// stint is how long it works before it pauses.
	stint = 5 * time.Millisecond
)

// Pace spreads a screen over time. The zero value does not pause.
type Pace struct {
	budget time.Duration // of pauses that is left
	hurry  func() bool   // reports whether somebody waits for the end
	began  time.Time     // of the present stint
	worked time.Duration
}

// newPace pauses for budget in all, and no more once hurry returns true.
func newPace(budget time.Duration, hurry func() bool) *Pace {
	return &Pace{budget: budget, hurry: hurry, began: time.Now()}
}

// Step is called after each bit of work. It pauses now and then.
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
	return wait(ctx, pause)
}

// spent is how long was worked in all.
func (p *Pace) spent() time.Duration { return p.worked + time.Since(p.began) }
