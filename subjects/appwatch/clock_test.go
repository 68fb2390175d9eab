package appwatch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A leader had a slow clock for a while. A reader since a time skips nothing because of that.
func TestSinceSlowClock(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	w, relay := newWriter(t, s.ClientURL()), newRelay(t, s.ClientURL())
	for i := range 40 {
		w.event(fmt.Sprintf("shop/production/a%d", i), subjects.Created, "ACTIVE")
	}
	stream, err := w.js.Stream(t.Context(), w.stream)
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetMsg(t.Context(), 11)
	if err != nil {
		t.Fatal(err)
	}
	relay.set(clock(-9*time.Minute, func(sequence uint64) bool { return sequence >= 18 && sequence <= 24 }))
	r := watch(t, relay.js, appwatch.Options{Since: m.Time})
	for i := 11; i <= 40; i++ {
		r.expect(fmt.Sprintf("event shop/production/a%d created %d", i-1, i))
	}
	r.expect("mark 40")
}

// A reader since a time that has received nothing yet has not caught up if there is an event of that
// time. A busy server may take a while to deliver it.
func TestSinceBeforeDelivery(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	w := newWriter(t, s.ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	stream, err := w.js.Stream(t.Context(), w.stream)
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		since time.Time
		want  []string
	}{
		{"of an earlier time", m.Time.Add(-time.Second), []string{"event shop/production/a created 1", "mark 1"}},
		{"of the time of the event", m.Time, []string{"event shop/production/a created 1", "mark 1"}},
		{"of a later time", m.Time.Add(1), []string{"mark 1"}},
	} {
		for _, project := range []string{"", "shop"} {
			t.Run(tc.name+" "+project, func(t *testing.T) {
				relay := newRelay(t, s.ClientURL())
				relay.hold(true)
				r := watch(t, relay.js, appwatch.Options{Since: tc.since, NoSnapshot: true, Project: project})
				relay.answered(t, apiInfo, 3)
				r.mu.Lock()
				if len(r.items) > 0 {
					t.Errorf("got %s before anything was delivered", line(r.items[0]))
				}
				r.mu.Unlock()
				relay.hold(false)
				r.expect(tc.want...)
				r.stop()
			})
		}
	}
}

// A stream is made again and gets other events at the same sequences, from a server with a slow clock.
// They are reported.
func TestReplacedSlowClock(t *testing.T) {
	t.Parallel()
	for _, noSnapshot := range []bool{false, true} {
		for _, slow := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprintf("no snapshot %v, slow by %s", noSnapshot, slow), func(t *testing.T) {
				t.Parallel()
				s := jetStream(t)
				w, relay := newWriter(t, s.ClientURL()), newRelay(t, s.ClientURL())
				r := watch(t, relay.js, appwatch.Options{NoSnapshot: noSnapshot})
				r.expect("mark 0")
				w.event("shop/production/a", subjects.Created, "ACTIVE")
				w.event("shop/production/b", subjects.Created, "ACTIVE")
				r.expect("event shop/production/a created 1", "event shop/production/b created 2")
				relay.set(clock(-slow, func(uint64) bool { return true }))
				w.count += 100
				clear(w.last)
				for _, name := range []string{w.stream, subjects.BucketStream(w.bucket)} {
					if err := w.js.DeleteStream(t.Context(), name); err != nil {
						t.Fatal(err)
					}
				}
				suite.Recreate(t, w.js, bucketConfig())
				suite.Recreate(t, w.js, streamConfig())
				w.event("shop/production/a", subjects.Created, "FAILED")
				w.event("shop/production/b", subjects.Created, "FAILED")
				// The reader may look at the stream after each of the events.
				changed := map[string]bool{}
				for len(changed) < 2 {
					switch it := r.next(1)[0]; it.Type {
					case appwatch.State, appwatch.Event:
						if it.Type == appwatch.State && !it.Changed {
							t.Errorf("%s is not marked as changed", line(it))
						}
						changed[it.ID.Name] = it.Status() == "FAILED"
					}
				}
			})
		}
	}
}
