package main

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// lasting is a fault that a bridge has to report for as long as it lasts: /readyz names it. A bridge
// that is ready over it, or gives other reasons, for longer than the audit's interval and
// findPatience counts as unnoticed.
type lasting struct {
	what  string
	names *regexp.Regexp // matches the reason of a bridge that has noticed
	// bridge is the one that has to report it; nil: the one that leads.
	bridge *bridge
}

// course of a lasting fault, as far as it was seen.
type lastingCourse struct {
	patience time.Duration
	since    time.Time // the bridge has not named it since
	said     string    // what the bridge said last
	named    time.Time // it was named first
	failed   string    // why it counts as unnoticed, "" if it does not
}

// see takes the next answer of a bridge. A bridge that does not answer, or of which nobody knows
// whether it leads, says nothing about the fault.
func (c *lastingCourse) see(at time.Time, concerned, answered, ready bool, why string, names *regexp.Regexp) {
	switch {
	case !concerned || !answered:
		c.since = at
		return
	case !ready && names.MatchString(why):
		if c.named.IsZero() {
			c.named = at
		}
		c.since = at
		return
	case ready:
		c.said = "it is ready"
	default:
		c.said = "it is not ready for another reason: " + why
	}
	if late := at.Sub(c.since); late > c.patience && c.failed == "" {
		c.failed = fmt.Sprintf("not named for %s: %s", show(late), c.said)
	}
}

// last waits while a fault that was just planted lasts: until a bridge has named it, and as long
// again as the draw says, or until it counts as unnoticed.
func (i *injection) last(ctx context.Context, l lasting) error {
	planted := time.Now()
	c := lastingCourse{patience: i.cfg.audit + findPatience, since: planted}
	// Mostly a short while after it was named, now and then so long that a bridge that forgets the
	// fault shows.
	more := i.between(time.Second, 5*time.Second)
	if i.rng.IntN(4) == 0 {
		more = i.between(time.Second, c.patience+5*time.Second)
	}
	for {
		b := l.bridge
		var s status
		if b != nil {
			s = b.look(ctx)
		} else {
			b, s = i.anyLeader(ctx)
		}
		now := time.Now()
		c.see(now, l.bridge != nil || s.leads(), s.answered, s.ready, s.why, l.names)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case c.failed != "":
			text := fmt.Sprintf("%s: bridge %s: %s", l.what, b.name, c.failed)
			i.found(finding{unnoticed: []string{text}})
			return nil
		case !c.named.IsZero() && now.Sub(c.named) >= more:
			i.note("named after %s, over %s", show(c.named.Sub(planted)), show(now.Sub(c.named)))
			return nil
		case now.Sub(planted) > utmostPatience:
			i.found(finding{unnoticed: []string{l.what + ": no bridge led that could name it"}})
			return nil
		}
		if err := testenv.Pause(ctx, sampleInterval); err != nil {
			return err
		}
	}
}
