package appwatch_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A slow reader gets the newest event of each app, and positions at which it misses nothing that
// was not yielded.
func TestLatest(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	apps := []string{"shop/production/a", "shop/production/b", "shop/production/c"}
	for _, app := range apps {
		w.event(app, subjects.Created, "PENDING")
	}
	looks := w.looks()
	const rounds = 100
	seen := map[string]uint64{}
	var position, last uint64
	for it, err := range appwatch.Watch(t.Context(), w.js, appwatch.Options{Latest: true}) {
		if err != nil {
			t.Fatal(err)
		}
		switch it.Type {
		case appwatch.Mark: // the loop does not read while the events arrive
			for range rounds {
				for _, app := range apps {
					last = w.event(app, subjects.Updated, "ACTIVE")
				}
			}
			last = w.event(apps[0], subjects.Deleted, "")
			suite.Eventually(t, patience, "the server has delivered all", func() error { return delivered(t, w, last) })
			looks.next(t)
		case appwatch.Event:
			app := it.ID.String()
			if seen[app] >= it.Sequence || it.Position.Sequence < position {
				t.Errorf("%s after %d, position %v after %d", line(it), seen[app], it.Position, position)
			}
			seen[app], position = it.Sequence, it.Position.Sequence
			want := uint64(3*rounds + len(seen))
			if app == apps[0] {
				want = last
			}
			if it.Sequence != want || it.Skipped == 0 || it.PreviousStatus() != "PENDING" {
				t.Errorf("got %s, want event %d; previous status %s", line(it), want, it.PreviousStatus())
			}
			if len(seen) < len(apps) && position >= uint64(3+3*rounds) {
				t.Errorf("position %d, and events of other apps wait", position)
			}
		}
		if len(seen) == len(apps) {
			break
		}
	}
	if position != last {
		t.Errorf("the position is %d at last, want %d", position, last)
	}
}

// looks are the requests of a reader for the newest message, which it sends once it has handled all that
// has arrived.
type looks struct{ *nats.Subscription }

func (w *writer) looks() looks {
	w.t.Helper()
	sub, err := w.nc.SubscribeSync(subjects.JetStreamAPI("") + "STREAM.INFO." + w.stream)
	if err == nil {
		err = w.nc.Flush()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return looks{sub}
}

// next waits for the next one.
func (l looks) next(t *testing.T) {
	t.Helper()
	for {
		if n, _, err := l.Pending(); err != nil || n == 0 {
			break
		}
		if _, err := l.NextMsg(patience); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.NextMsg(patience); err != nil {
		t.Fatalf("the reader did not look at the stream: %v", err)
	}
}

// delivered reports whether the only consumer of the stream has delivered a sequence.
func delivered(t *testing.T, w *writer, sequence uint64) error {
	t.Helper()
	s, err := w.js.Stream(t.Context(), w.stream)
	if err != nil {
		return err
	}
	err = fmt.Errorf("no consumer")
	for c := range s.ListConsumers(t.Context()).Info() {
		err = nil
		if c.Delivered.Stream < sequence || c.NumPending > 0 {
			err = fmt.Errorf("it is at %d of %d", c.Delivered.Stream, sequence)
		}
	}
	return err
}

// What waits across a mark, a loss and a restart keeps its order.
func TestLatestRestart(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "PENDING")
	r := watch(t, w.js, appwatch.Options{Latest: true})
	r.expect("state shop/production/a created 1", "mark 1")
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	r.expect("event shop/production/a updated 2")
	w.notice(1, 1)
	r.expect("loss: "+noticed+" 1-1", "restart: "+noticed+" 1-1", "state shop/production/a updated 2", "mark 3")
}
