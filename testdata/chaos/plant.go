package main

import (
	"fmt"
	"slices"
	"time"
)

// findPatience is how long after the audit's interval a mute fault may take to be
// found and healed, once NATS, the API server and a bridge are back.
const findPatience = 30 * time.Second

// utmostPatience ends the wait for a world that does not get whole again.
const utmostPatience = 5 * time.Minute

// nameLag is how long after a heal the lines that name its cause may come.
const nameLag = 3 * time.Second

// sighting is how a planted fault stands at one moment.
type sighting struct {
	at    time.Time
	whole bool   // NATS, the API server and a bridge are there, and no other fault is on
	named string // what a bridge said that names the fault, "" for nothing
	wrong string // what is still wrong because of it, "" for nothing
}

// course is what becomes of a planted fault.
type course struct {
	patience time.Duration
	planted  time.Time

	since         time.Time // the patience counts from here
	effect        bool      // something was wrong because of it
	found, healed time.Time
	by            string // what named it
	wrong         string // what was wrong last
}

func newCourse(planted time.Time, patience time.Duration) course {
	return course{planted: planted, since: planted, patience: patience}
}

// see takes the next sighting. It reports whether nothing more is to be seen.
func (c *course) see(s sighting) (over bool) {
	if !s.whole {
		c.since = s.at
	}
	if late := s.at.Sub(c.since) > c.patience || s.at.Sub(c.planted) > utmostPatience; late && c.healed.IsZero() {
		return true
	}
	if c.found.IsZero() && s.named != "" {
		c.found, c.by = s.at, s.named
	}
	if s.wrong != "" {
		c.effect, c.wrong = true, s.wrong
		c.healed = time.Time{}
	} else if c.healed.IsZero() {
		c.healed = s.at
	}
	return !c.healed.IsZero() && (c.effect && !c.found.IsZero() || s.at.Sub(c.healed) >= nameLag)
}

// unnoticed says what is missing of a fault that is over, "" if nothing is. A fault
// that is healed and that no bridge named was healed by something else: the object
// changed again, or another bridge leads.
func (c *course) unnoticed() string {
	switch {
	case !c.effect || !c.healed.IsZero():
		return ""
	case c.found.IsZero():
		return "not found after " + show(c.patience) + ": " + c.wrong
	default:
		return "found, but not healed after " + show(c.patience) + ": " + c.wrong
	}
}

// complete says what is missing where nothing but the bridges can heal a fault: it
// has to have had an effect, to be named and to be healed.
func (c *course) complete() string {
	switch {
	case !c.effect:
		return "it had no effect"
	case c.unnoticed() != "":
		return c.unnoticed()
	case c.found.IsZero():
		return "healed, but no bridge named it"
	default:
		return ""
	}
}

// String is the course as a line of a table shows it.
func (c *course) String() string {
	after := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return show(t.Sub(c.planted))
	}
	by := c.by
	if by == "" {
		by = "-"
	}
	return fmt.Sprintf("found %-7s healed %-7s by %s", after(c.found), after(c.healed), by)
}

// cause explains differences that the audit finds: a fault made them.
type cause struct {
	why      string
	from, to time.Time // to is zero while it lasts
	bridge   string    // whose view of Kubernetes it concerns; "": all
	sides    []string  // nil: all
	names    []string  // of apps, keys and objects; nil: all
}

// aftermathTime is how long after a cause a difference of its making may be found.
const aftermathTime = 35 * time.Second

// explains reports whether a difference may be this cause's.
func (c *cause) explains(f difference) bool {
	switch {
	case f.at.Before(c.from.Add(-time.Second)):
		return false
	case !c.to.IsZero() && f.at.After(c.to):
		return false
	case c.bridge != "" && c.bridge != f.bridge:
		return false
	case c.sides != nil && !slices.Contains(c.sides, f.side):
		return false
	}
	return c.names == nil || slices.ContainsFunc(c.names, f.mentions)
}

// falseFindings are the differences that nothing explains.
func falseFindings(all []difference, causes []*cause) []difference {
	return slices.DeleteFunc(slices.Clone(all), func(f difference) bool {
		return slices.ContainsFunc(causes, func(c *cause) bool { return c.explains(f) })
	})
}
