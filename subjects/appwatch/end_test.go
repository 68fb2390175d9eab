package appwatch

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// looks has a reader look at the stream while nothing arrives, and its consumer has passed a sequence.
func looks(t *testing.T, w *watcher, n int, passed uint64) {
	t.Helper()
	w.reported = passed
	for range n {
		w.owedNext = time.Time{}
		if err := w.inspect(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
}

// The newest message was removed unread. That is reported before another one follows, and the Mark of
// the Restart is not before its States.
func TestRemovedAtEnd(t *testing.T) {
	t.Parallel()
	for _, noSnapshot := range []bool{false, true} {
		s := newStore(t)
		s.event("a", subjects.Created, 0)
		s.entry("a", subjects.Created, 1)
		w, items := s.begun(Options{NoSnapshot: noSnapshot})
		w.marked = true
		s.event("a", subjects.Updated, 1)
		s.entry("a", subjects.Updated, 2)
		if err := s.stream().DeleteMsg(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		looks(t, w, 2, 1)
		if got := *items; len(got) > 0 {
			t.Fatalf("the consumer may still deliver it: %v", got)
		}
		looks(t, w, 3, 2)
		got := *items
		if len(got) == 0 || got[0].Type != Loss || got[0].Lost != (subjects.LostRange{From: 2, To: 2}) || !errors.Is(got[0].Reason, ErrRemoved) {
			t.Fatalf("got %v, want a loss of 2", got)
		}
		if noSnapshot {
			if len(got) != 1 {
				t.Errorf("got %v, want the loss once", got)
			}
			continue
		}
		if len(got) != 4 || got[1].Type != Restart || got[2].Sequence != 2 || !got[2].Changed || got[3].Type != Mark || got[3].Position.Sequence != 2 {
			t.Errorf("got %v, want a restart with a as of 2 and a mark at 2", got)
		}
	}
}

// A Restart with States behind the position waits until the position is there.
func TestHeldUntilPosition(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	w, items := s.begun(Options{})
	s.event("a", subjects.Created, 0)
	s.entry("a", subjects.Created, 1)
	w.owe(ErrNotice, subjects.LostRange{})
	settle(t, w, 3)
	if got := *items; len(got) > 0 || w.held == nil {
		t.Fatalf("got %v before event 1", got)
	}
	s.read(w, 1)
	settle(t, w, 1)
	if got := *items; len(got) != 4 || got[0].Type != Event || got[3].Position.Sequence != 1 {
		t.Errorf("got %v, want the event, and a restart up to it", got)
	}
}

// A copy that does not select an event never gets it. A Restart with a State of that event is marked
// there, once the copy has caught up.
func TestHeldOnCopy(t *testing.T) {
	t.Parallel()
	const some = subjects.DefaultPrefix + ".events.shop.production.a.*"
	for name, cfg := range map[string]jetstream.StreamConfig{
		"mirror":  {Mirror: &jetstream.StreamSource{Name: subjects.DefaultStream, FilterSubject: some}},
		"sources": {Sources: []*jetstream.StreamSource{{Name: subjects.DefaultStream, FilterSubject: some}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			cfg.Name = "COPY"
			copied, err := s.js.CreateStream(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			s.event("a", subjects.Created, 0)
			s.entry("a", subjects.Created, 1)
			suite.Eventually(t, time.Minute, "the copy has the event", func() error {
				_, err := copied.GetMsg(t.Context(), 1)
				return err
			})
			w, items := s.begun(Options{Stream: "COPY"})
			s.event("b", subjects.Created, 0)
			s.entry("b", subjects.Created, 2)
			w.owe(ErrNotice, subjects.LostRange{})
			suite.Eventually(t, time.Minute, "the copy has caught up", func() error {
				settle(t, w, 1)
				if len(*items) == 0 {
					return errors.New("no restart yet")
				}
				return nil
			})
			got := *items
			if len(got) != 4 || got[0].Type != Restart || got[2].Sequence != 2 || got[3].Type != Mark || got[3].Position.Sequence != 2 {
				t.Errorf("got %v, want a restart with b as of 2 and a mark at 2", got)
			}
		})
	}
}

// What is removed behind the Mark of a reader since a time was not stored before that time.
func TestRemovedBehindMark(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]Options{"all": {NoSnapshot: true}, "some apps": {NoSnapshot: true, Project: "shop"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.event("a", subjects.Created, 0)
			m, err := s.stream().GetMsg(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			opts.Since = m.Time.Add(1)
			w, items := s.begun(opts)
			looks(t, w, 1, 1)
			s.event("b", subjects.Created, 0)
			s.event("b", subjects.Updated, 2)
			if err := s.stream().DeleteMsg(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
			s.read(w, 3)
			want := subjects.LostRange{From: 2, To: 2}
			got := *items
			if len(got) != 3 || got[0].Type != Mark || got[0].Position.Sequence != 1 || got[1].Type != Loss || got[1].Lost != want || got[2].Type != Event {
				t.Errorf("got %v, want a mark at 1, a loss of %s and event 3", got, want)
			}
		})
	}
}

// A reader of some apps that begins at a time does not see from the sequences what was removed. It
// compares with the bucket.
func TestSinceComparesUnseen(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.event("a", subjects.Created, 0)
	s.event("b", subjects.Created, 0)
	s.event("a", subjects.Updated, 1)
	s.entry("a", subjects.Created, 1)
	s.entry("b", subjects.Created, 2)
	if err := s.stream().DeleteMsg(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	s.entry("a", subjects.Updated, 3)
	r := watchStore(t, s, Options{Project: "shop", Since: time.Unix(1, 0)})
	for _, want := range []Type{Event, Event, Mark, Restart, State, State, Mark} {
		if it := r(); it.Type != want {
			t.Fatalf("got %v, want a %s", it, want)
		}
	}
}

// watchStore returns what has a Watch go on to its next item.
func watchStore(t *testing.T, s *store, opts Options) func() Item {
	t.Helper()
	items := make(chan Item)
	ctx := t.Context()
	go func() {
		for it, err := range Watch(ctx, s.js, opts) {
			if err != nil {
				return
			}
			select {
			case items <- it:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() Item {
		t.Helper()
		select {
		case it := <-items:
			return it
		case <-time.After(time.Minute):
			t.Fatal("nothing follows")
			return Item{}
		}
	}
}

// A bucket that has not reached the event of the position may lack what was yielded before it.
func TestChangedBehindPosition(t *testing.T) {
	t.Parallel()
	none := func(uint64) bool { return false }
	for _, tc := range []struct {
		certain bool
		reached uint64
		want    bool
	}{{true, 7, true}, {true, 8, false}, {false, 7, false}} {
		l := newLedger(8, false)
		l.certain = tc.certain
		if got := l.differs(nil, &entry{sequence: 3}, tc.reached, none); got != tc.want {
			t.Errorf("certain %v, reached %d: got %v", tc.certain, tc.reached, got)
		}
	}
}
