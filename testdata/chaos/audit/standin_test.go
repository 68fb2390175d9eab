package audit_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// TestRevisionStandsIn: at a rollout the last Revision's count stands until the
// new one is known, but not for good, and only that of the same app's.
func TestRevisionStandsIn(t *testing.T) {
	for _, test := range []struct {
		name string
		rev  string // of the event that comes first
		last bool   // no other event follows
		want []string
	}{
		{name: "the last Revision", rev: "ready"},
		{name: "for good", rev: "ready", last: true, want: []string{"drift"}},
		{name: "another app's", rev: "other", want: []string{"drift"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			a, other := w.app("checkout"), w.app("storefront")
			a.note, other.note = "create", "other"
			a.create()
			other.create()
			other.roll(2)
			a.note = "ready"
			a.roll(1)
			a.note = "rollout"
			a.roll(3)
			i := w.at("rollout")
			first := *w.steps[i]
			first.rev = w.steps[w.at("ready")].rev
			if test.rev == "other" {
				first.rev = other.told.rev
			}
			w.steps = slices.Insert(w.steps, i, &first)
			if test.last {
				w.steps = w.steps[:i+1]
			}
			w.wants(t, audit.Check(w.render()), test.want...)
		})
	}
}

// TestRevisionStandsInOverLabel: a label that nobody saw go and come back does not
// end what stands in; one that was seen does.
func TestRevisionStandsInOverLabel(t *testing.T) {
	for _, seen := range []bool{false, true} {
		t.Run(fmt.Sprint("seen ", seen), func(t *testing.T) {
			w := newWorld(t)
			a := w.app("checkout")
			a.note = "create"
			a.create()
			a.note = "ready"
			a.roll(1)
			over := func(do func()) { do() }
			if !seen {
				over = w.gap
			}
			over(func() {
				a.label(false)
				a.roll(3)
				a.label(true)
			})
			i := slices.IndexFunc(w.steps, func(s *step) bool { return s.service != nil && s.rev != nil && s.rev != w.steps[w.at("ready")].rev })
			first := *w.steps[i]
			first.rev = w.steps[w.at("ready")].rev
			w.steps = slices.Insert(w.steps, i, &first)
			var want []string
			if seen {
				want = []string{"drift"}
			}
			w.wants(t, audit.Check(w.render()), want...)
		})
	}
}
