package audit_test

import (
	"testing"

	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// swallow is the version that a step of checkout shows first.
func (w *world) swallow(note string) audit.Swallowed {
	w.t.Helper()
	s := w.steps[w.at(note)]
	lost := audit.Swallowed{Kind: audit.KindService, Namespace: "flyte", Name: "checkout"}
	switch {
	case s.remove:
		lost.ResourceVersion = s.deletedVersion
	case s.rev != nil && w.number(s.rev.ResourceVersion) > w.number(s.service.ResourceVersion):
		lost.Kind, lost.Name, lost.ResourceVersion = audit.KindRevision, s.rev.Name, s.rev.ResourceVersion
	default:
		lost.ResourceVersion = s.service.ResourceVersion
	}
	return lost
}

func (w *world) number(version string) (n int) {
	w.t.Helper()
	for _, c := range version {
		n = 10*n + int(c-'0')
	}
	return n
}

// What a watch did not show came and went; what the app came to is owed.
func TestSwallowed(t *testing.T) {
	for _, test := range []struct {
		name      string
		dropped   []string // steps without an event
		swallowed []string
		want      string
	}{
		{"an update", []string{"edit-4"}, []string{"edit-4"}, ""},
		{"two updates", []string{"edit-4", "edit-4b"}, []string{"edit-4", "edit-4b"}, ""},
		{"an update, and another one is missing", []string{"edit-4", "edit-4b"}, []string{"edit-4b"}, "lost"},
		{"an update that is missing all the same", []string{"edit-4"}, []string{"edit-4b"}, "lost"},
		{"the last one", []string{"edit-9"}, []string{"edit-9"}, "lost"},
		{"the creation", []string{"create-2"}, []string{"create-2"}, ""},
		{"the delete between two objects", []string{"delete-2"}, []string{"delete-2"}, "lost"},
		{"the beginning of a life that came and went", []string{"create-3", "edit-7", "delete-3"}, []string{"create-3", "edit-7"}, ""},
		{"the middle of a life that came and went", []string{"create-3", "edit-7", "delete-3"}, []string{"edit-7"}, "lost"},
		{"a replica count", []string{"scale-3"}, []string{"scale-3"}, ""},
		{"a replica count, and then the one before again", []string{"scale-4", "scale-1b"}, []string{"scale-4"}, ""},
		{"the one before again, and the count between is missing", []string{"scale-4", "scale-1b"}, []string{"scale-1b"}, "lost"},
		{"another replica count", []string{"scale-3"}, []string{"scale-2"}, "lost"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := story(t)
			var swallowed []audit.Swallowed
			for _, note := range test.swallowed {
				swallowed = append(swallowed, w.swallow(note))
			}
			w.drop(test.dropped...)
			in := w.render()
			in.Swallowed = swallowed
			if r := audit.Check(in); counts(r) != test.want {
				t.Errorf("got %q, want %q\n%v", counts(r), test.want, r.Problems())
			}
		})
	}
}
