package publisher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// script plays changes of one app: "c" create, "u" update, "d" delete.
func script(q *Queue, id subjects.AppID, text string) {
	version := 0
	for _, step := range text {
		version++
		s := app.State{Service: testService("u1", fmt.Sprint(version), "True")}
		switch step {
		case 'c':
			q.Add(id, app.NewUpsert(s, true))
		case 'u':
			q.Add(id, app.NewUpsert(s, false))
		case 'd':
			q.Add(id, app.Removal(s, app.Observation{}))
		}
	}
}

// drain takes everything off and writes it as script does, with merge counts.
func drain(q *Queue) string {
	var out strings.Builder
	for {
		select {
		case <-q.Empty():
			return out.String()
		default:
		}
		f, _ := q.next()
		id, c := f.id, f.change
		switch {
		case c.Remove:
			out.WriteByte('d')
		case c.Mergeable:
			out.WriteByte('u')
		default:
			out.WriteByte('c')
		}
		if c.Merged > 0 {
			fmt.Fprint(&out, c.Merged)
		}
		q.done(id, nil)
	}
}

func TestQueueMerges(t *testing.T) {
	for _, test := range []struct {
		name   string
		perApp int
		bytes  int64
		in     string
		want   string
	}{
		{"below the limit", 10, 1 << 20, "cuuud", "cuuud"},
		{"at the limit", 5, 1 << 20, "cuuuu", "cuuuu"},
		{"beyond", 5, 1 << 20, "cuuuuuuu", "cuuuu3"},
		{"deletes stay", 3, 1 << 20, "cuuuudcuuuud", "cuu2dcu3d"},
		{"creates stay", 1, 1 << 20, "cdcdc", "cdcdc"},
		{"by bytes", 100, 2000, "cuuuuuu", "cu5"},
	} {
		t.Run(test.name, func(t *testing.T) {
			q := testQueue(test.perApp, test.bytes)
			defer q.close()
			script(q, testID, test.in)
			if got := drain(q); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if q.bytes != 0 || q.length != 0 {
				t.Errorf("%d bytes and %d changes are left", q.bytes, q.length)
			}
		})
	}
}

// What was handed out is neither merged into nor merged away.
func TestQueueKeepsWhatIsSent(t *testing.T) {
	q := testQueue(1, 1<<20)
	defer q.close()
	script(q, testID, "u")
	f, _ := q.next()
	id, sent := f.id, f.change
	script(q, testID, "uuu")
	if sent.Merged != 0 {
		t.Error("the change under way was merged into")
	}
	q.done(id, &app.Record{Sequence: 3})
	f, _ = q.next()
	if next := f.change; next.Merged != 2 || f.prev.Fence() != 3 {
		t.Errorf("next stands for %d more after sequence %d, want 2 after 3", next.Merged, f.prev.Fence())
	}
	q.done(id, nil)
}

// One app has one change under way; others do not wait for it.
func TestQueueIsPerApp(t *testing.T) {
	q := testQueue(10, 1<<20)
	defer q.close()
	other := subjects.AppID{Project: "p", Domain: "d", Name: "other"}
	script(q, testID, "cu")
	script(q, other, "c")
	first, _ := q.next()
	second, _ := q.next()
	a, b := first.id, second.id
	if a == b {
		t.Fatalf("%s has two changes under way", a)
	}
	q.done(b, nil)
	q.done(a, nil)
	if got := drain(q); got != "u" {
		t.Errorf("left is %q, want the update", got)
	}
}

func TestQueueOverflows(t *testing.T) {
	q := testQueue(1000, 8000)
	defer q.close()
	for i := range 40 {
		script(q, subjects.AppID{Project: "p", Domain: "d", Name: fmt.Sprint(i)}, "c")
	}
	select {
	case <-q.Overflow():
	default:
		t.Errorf("%d bytes wait without an overflow", q.bytes)
	}
	// It takes nothing any more, and costs nothing any more.
	script(q, testID, "cu")
	if q.length != 0 || q.bytes != 0 {
		t.Errorf("%d changes of %d bytes are kept beyond the hard limit", q.length, q.bytes)
	}
	if !q.Overflowed() {
		t.Error("it does not say that it overflowed")
	}
}
