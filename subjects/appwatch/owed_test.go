package appwatch

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
)

// settle has a reader look at the bucket a number of times, without the pauses in between.
func settle(t *testing.T, w *watcher, looks int) {
	t.Helper()
	if err := w.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range looks {
		w.owedNext = time.Time{}
		if err := w.settleOwed(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A Restart waits until the bucket has the events that were yielded, for as long as that takes.
func TestOwedWaitsForBucket(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		opts Options
		// first is stored before the reader begins, and then before it reads it; late is what the
		// bucket gets at last.
		first, then, late func(s *store)
		waits             bool
		want              uint64 // the sequence of the state of a, 0 if it is gone
	}{
		{
			"update",
			Options{},
			func(s *store) { s.event("a", subjects.Created, 0); s.entry("a", subjects.Created, 1) },
			func(s *store) { s.event("a", subjects.Updated, 1) },
			func(s *store) { s.entry("a", subjects.Updated, 2) }, true, 2,
		},
		{
			"create",
			Options{},
			func(*store) {},
			func(s *store) { s.event("a", subjects.Created, 0) },
			func(s *store) { s.entry("a", subjects.Created, 1) }, true, 1,
		},
		{
			"delete",
			Options{},
			func(s *store) { s.event("a", subjects.Created, 0); s.entry("a", subjects.Created, 1) },
			func(s *store) { s.event("a", subjects.Deleted, 1) },
			func(s *store) { s.entry("a", subjects.Deleted, 2) }, true, 0,
		},
		{
			"update, resumed behind it",
			Options{From: Position{StreamID: "one", Sequence: 2, Owed: true}},
			func(s *store) {
				s.event("a", subjects.Created, 0)
				s.entry("a", subjects.Created, 1)
				s.event("a", subjects.Updated, 1)
			},
			func(*store) {},
			func(s *store) { s.entry("a", subjects.Updated, 2) }, true, 2,
		},
		{
			"update of a project",
			Options{Project: "shop"},
			func(s *store) { s.event("a", subjects.Created, 0); s.entry("a", subjects.Created, 1) },
			func(s *store) { s.event("a", subjects.Updated, 1) },
			func(s *store) { s.entry("a", subjects.Updated, 2) }, true, 2,
		},
		{
			"marker removed for its age",
			Options{Project: "shop"},
			func(s *store) {
				s.event("b", subjects.Created, 0)
				s.event("a", subjects.Created, 0)
				s.entry("b", subjects.Created, 1)
				s.entry("a", subjects.Created, 2)
			},
			func(s *store) {
				s.event("b", subjects.Deleted, 1)
				bucket, err := s.js.Stream(s.t.Context(), subjects.BucketStream(subjects.DefaultBucket))
				if err == nil {
					err = bucket.Purge(s.t.Context(), jetstream.WithPurgeSubject(subjects.BucketSubject(subjects.DefaultBucket, "shop.production.b")))
				}
				if err != nil {
					s.t.Fatal(err)
				}
			},
			func(*store) {}, false, 2,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			tc.first(s)
			from := s.stream().CachedInfo().State.LastSeq + 1
			w, items := s.begun(tc.opts)
			tc.then(s)
			s.read(w, from)
			w.owe(ErrNotice, subjects.LostRange{})
			*items = nil
			if tc.waits {
				settle(t, w, 2*maxBehind)
				if len(*items) > 0 || w.owed == nil {
					t.Fatalf("it did not wait: %v", *items)
				}
			}
			tc.late(s)
			settle(t, w, 1)
			var got uint64
			for _, it := range *items {
				if it.Type == State && it.ID.Name == "a" && it.Exists() {
					got = it.Sequence
				}
			}
			if len(*items) == 0 || (*items)[0].Type != Restart || got != tc.want || w.owed != nil {
				t.Errorf("got a as of %d, want %d; %v", got, tc.want, *items)
			}
		})
	}
}

// A Restart that is owed does not wait for a moment without events.
func TestOwedWhileReading(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	w, items := s.begun(Options{})
	w.owe(ErrNotice, subjects.LostRange{})
	if err := w.inspect(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if got := *items; len(got) == 0 || got[0].Type != Restart {
		t.Errorf("got %v, want a restart", got)
	}
}

// The bucket never gets an event that is removed before it is projected.
func TestOwedRemovedUnprojected(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	w, items := s.begun(Options{})
	s.event("a", subjects.Created, 0)
	s.read(w, 1)
	if err := s.stream().DeleteMsg(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	w.owe(ErrNotice, subjects.LostRange{})
	*items = nil
	settle(t, w, maxBehind-1)
	if len(*items) > 0 {
		t.Fatalf("a bridge may still write it: %v", *items)
	}
	settle(t, w, 1)
	if got := *items; len(got) != 3 || got[1].Type != State || got[1].Kind != subjects.Deleted {
		t.Errorf("got %v, want that a is gone", got)
	}
}

// What is known to be lost or removed does not hold for another history.
func TestForgetsRanges(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for range 8 {
		s.event("a", subjects.Updated, 0)
	}
	r := func(from, to uint64) subjects.LostRange { return subjects.LostRange{From: from, To: to} }
	for _, tc := range []struct {
		name       string
		reason     error
		rolled     subjects.LostRange
		want, gone ranges
	}{
		{"other stream", ErrOtherStream, subjects.LostRange{}, nil, nil},
		{"rolled back", ErrRolledBack, r(5, 9), ranges{r(1, 2), r(4, 4)}, ranges{r(3, 3)}},
		{"removed", ErrRemoved, subjects.LostRange{}, ranges{r(1, 2), r(4, 6)}, ranges{r(3, 3), r(7, 8)}},
	} {
		w, items := s.begun(Options{NoSnapshot: true, From: Position{StreamID: "one", Sequence: 8}})
		s.remembers(w, 4, 9)
		w.lost, w.gone = ranges{r(1, 2), r(4, 6)}, ranges{r(3, 3), r(7, 8)}
		w.restarts, w.rolled = tc.reason, tc.rolled
		if err := w.restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(w.lost, tc.want) || !slices.Equal(w.gone, tc.gone) {
			t.Errorf("%s: %v are lost and %v gone, want %v and %v", tc.name, w.lost, w.gone, tc.want, tc.gone)
		}
		if errors.Is(tc.reason, ErrRolledBack) && (*items)[0].Lost != r(5, 8) {
			t.Errorf("got the loss of %v, want 5-8", (*items)[0].Lost)
		}
	}
}

// Sequences below those that a stream lacked may be used again, too: it was filled before it was
// looked at. Those behind the newest event that is as it was may be.
func TestParted(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for range 9 {
		s.event("a", subjects.Updated, 0)
	}
	w, _ := s.begun(Options{NoSnapshot: true})
	for same := range uint64(10) {
		w.ledger = newLedger(0, false)
		s.remembers(w, same, 12)
		if got, err := w.parted(t.Context()); err != nil || got != max(same+1, 1) {
			t.Errorf("got %d, %v, want %d", got, err, same+1)
		}
	}
}

// A notice is behind what it reports. One that is not would have every later sequence count as lost.
func TestNoticeOfLaterSequences(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	w, items := s.begun(Options{})
	first, last := subjects.FormatNotice(subjects.LostRange{From: 1, To: 1 << 60})
	s.publish(w.opts.notice, map[string][]string{subjects.HeaderLostFrom: {first}, subjects.HeaderLostTo: {last}})
	s.read(w, 1)
	if len(w.lost) > 0 || len(*items) > 0 || w.owed != nil {
		t.Errorf("got %v, %v, %v", w.lost, *items, w.owed)
	}
}

// A reader of some apps without a snapshot that retention may have overtaken reports that.
func TestOvertakenWithoutSnapshot(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.event("a", subjects.Created, 0)
	for _, jumps := range []bool{false, true} {
		w, items := s.begun(Options{NoSnapshot: true, App: "b"})
		at := w.local
		for range 4 {
			s.event("a", subjects.Updated, 0)
		}
		want := subjects.LostRange{From: at + 1, To: at + 4}
		if jumps {
			w.jump = at + 2
			want.From = at + 2
		}
		if err := s.stream().Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := w.inspect(t.Context(), !jumps); err != nil {
			t.Fatal(err)
		}
		if got := *items; len(got) == 0 || got[0].Type != Loss || got[0].Lost != want || !errors.Is(got[0].Reason, ErrRemoved) {
			t.Errorf("jumps %v: got %v, want a loss of %v", jumps, got, want)
		}
	}
}
