package audit_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// TestLossUnread: the end of what a rollback took was acknowledged, and lost before the reader had
// it. It may be of an app without an event that was read and lost. More states than events that
// nobody read are not excused, and neither are states of later.
func TestLossUnread(t *testing.T) {
	for _, test := range []struct {
		name      string
		published int // of the three edits of the app
		read      int // of those
		other     int // events of another app that were read and lost
		slow      bool
		want      string
	}{
		{name: "all were read", published: 3, read: 3, other: 1},
		{name: "one was not", published: 3, read: 2, other: 1},
		{name: "none was", published: 3, other: 1},
		{name: "nothing of the range was", published: 3},
		{name: "two were not published", published: 1, other: 1, want: "lost"},
		{name: "none was published", other: 1, want: "lost"},
		{name: "long after what was read", published: 3, other: 1, slow: true, want: "lost"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			a, b := w.app("checkout"), w.app("storefront")
			a.create()
			b.create()
			begin := len(w.steps)
			for range test.other {
				b.edit()
			}
			if test.slow {
				w.now = w.now.Add(time.Minute)
			}
			first := len(w.steps)
			for range 3 {
				a.edit()
			}
			end := len(w.steps)
			w.rollBack(end-begin, false)
			a.edit()
			in := w.render()
			in.Losses[0].To -= uint64(3 - test.published)
			in.Events = slices.Delete(in.Events, first+test.read, end)
			w.wants(t, audit.Check(in), strings.Fields(test.want)...)
		})
	}
}
