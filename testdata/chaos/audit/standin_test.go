package audit_test

import (
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
