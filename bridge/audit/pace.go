package audit

import (
	"context"
	"time"

	"github.com/appbridge/appbridge/bridge/retry"
)

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
