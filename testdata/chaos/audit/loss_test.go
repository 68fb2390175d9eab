package audit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// loss is a rollback: the steps from begin up to (not including) end are gone.
type loss struct {
	begin, end int
	unseen     bool // the sequences are given out again
}

// render names the loss at the stream's end, as the bridge does: a notice above it.
func (l loss) render(in *audit.Input, sequence *uint64, epoch int) audit.Loss {
	found := audit.Loss{LostRange: subjects.LostRange{From: *sequence - uint64(l.end-l.begin) + 1, To: *sequence}, Epoch: epoch, Unseen: l.unseen}
	if l.unseen {
		*sequence = found.From - 1
		return found
	}
	*sequence++
	in.Events = append(in.Events, audit.Message{
		Subject: in.Subjects.Notice(), Sequence: *sequence, Epoch: epoch + 1,
		Header: nats.Header{subjects.HeaderLostFrom: {strconv.FormatUint(found.From, 10)}, subjects.HeaderLostTo: {strconv.FormatUint(found.To, 10)}},
	})
	return found
}

// rewind goes back to what survived.
func rewind(last map[subjects.AppID]*published) {
	for id := range last {
		for last[id] != nil && last[id].taken {
			last[id] = last[id].before
		}
		if last[id] == nil {
			delete(last, id)
		}
	}
}

// rollBack takes the newest steps away, and publishes the net difference.
func (w *world) rollBack(steps int, unseen bool) {
	begin := max(len(w.steps)-steps, 0)
	if n := len(w.losses); n > 0 {
		begin = max(begin, w.losses[n-1].end)
	}
	if begin == len(w.steps) {
		return
	}
	for _, s := range w.steps[begin:] {
		s.taken = true
	}
	w.losses = append(w.losses, loss{begin, len(w.steps), unseen})
	for _, a := range w.apps {
		a.told = nil
		for _, s := range w.steps {
			if s.app == a && !s.taken {
				a.told = s
			}
		}
	}
	w.compare()
}

// lossStory is a world in which a rollback takes updates, a replica count, a
// delete and a create, and a whole life.
func lossStory(t testing.TB, unseen bool) *world {
	w := newWorld(t)
	a, other, brief := w.app("checkout"), w.app("storefront"), w.app("brief")
	note := func(text string) { a.note, other.note, brief.note = text, text, text }
	note("before")
	a.create()
	other.create()
	a.roll(1)
	a.edit()
	note("lost")
	begin := len(w.steps)
	a.edit()
	a.scale(3)
	a.edit()
	brief.create()
	brief.edit()
	brief.delete()
	other.delete()
	other.create()
	note("compared")
	w.rollBack(len(w.steps)-begin, unseen)
	note("after")
	a.edit()
	other.edit()
	a.delete()
	a.create()
	return w
}

func TestLossNamed(t *testing.T) {
	for _, unseen := range []bool{false, true} {
		w := lossStory(t, unseen)
		r := audit.Check(w.render())
		// Two edits of the first, the second's delete is told again, a life of three.
		if !r.OK() || r.Taken != 4 || r.Foreign != 0 {
			t.Errorf("unseen %v: %s taken=%d foreign=%d, want 4 states taken and nothing wrong\n%v", unseen, r, r.Taken, r.Foreign, r.Problems())
		}
	}
}

// TestLossAtTheEnd: nothing followed the rollback but the net difference.
func TestLossAtTheEnd(t *testing.T) {
	w := newWorld(t)
	a := w.app("checkout")
	a.create()
	a.edit()
	a.delete()
	w.rollBack(2, false)
	if r := audit.Check(w.render()); !r.OK() || r.Taken != 1 {
		t.Errorf("%s taken=%d, want one state taken and nothing wrong\n%v", r, r.Taken, r.Problems())
	}
	w.steps = w.steps[:3] // the net difference is not told
	w.wants(t, audit.Check(w.render()), "lost")
}

// wants requires exactly these kinds of problems.
func (w *world) wants(t *testing.T, r audit.Report, want ...string) {
	t.Helper()
	if got := counts(r); got != strings.Join(want, " ") {
		t.Errorf("counters that rose: %q, want %q\n%s\n%v", got, strings.Join(want, " "), r, r.Problems())
	}
}

func TestLossFaults(t *testing.T) {
	first := func(in *audit.Input, epoch int) int {
		return slices.IndexFunc(in.Events, func(m audit.Message) bool { return m.Epoch == epoch && m.Header.Get(subjects.CEType) != "" })
	}
	for _, fault := range []struct {
		name   string
		unseen bool
		steps  func(*world)
		input  func(*audit.Input)
		want   string
	}{
		{name: "not named", input: func(in *audit.Input) { in.Losses = nil }, want: "duplicated reordered drift"},
		{name: "named too small", input: func(in *audit.Input) { in.Losses[0].From = in.Losses[0].To }, want: "duplicated reordered drift"},
		{name: "named after it was over", input: func(in *audit.Input) { in.Losses[0].Epoch = -1 }, want: "duplicated reordered drift reused"},
		{name: "final state not told again", steps: func(w *world) {
			w.steps = slices.DeleteFunc(w.steps, func(s *step) bool {
				return s.app.name == "storefront" && (s.note == "compared" || s.note == "after")
			})
		}, want: "lost"},
		{name: "another object without a delete", steps: func(w *world) {
			i := slices.IndexFunc(w.steps, func(s *step) bool { return s.app.name == "storefront" && s.note == "compared" && s.remove })
			w.steps[i+1].kind = subjects.Updated
			w.steps = slices.Delete(w.steps, i, i+1)
		}, want: "lost"},
		{name: "a state after the loss is lost", steps: func(w *world) {
			w.steps = slices.DeleteFunc(w.steps, func(s *step) bool { return s.app.name == "checkout" && s.note == "after" && s.remove })
		}, want: "lost"},
		{name: "a sequence reused", input: func(in *audit.Input) {
			stray := in.Events[in.Losses[0].From-1]
			stray.Epoch, stray.Header, stray.Data = 1, nats.Header{}, []byte("another")
			in.Events = slices.Insert(in.Events, first(in, 1)-1, stray)
		}, want: "reused"},
		{name: "a sequence of the range given out", input: func(in *audit.Input) {
			i := in.Losses[0].From - 1
			in.Events[i].Epoch, in.Events[i].Header = 1, nats.Header{}
			in.Events = append(in.Events[:i:i], append(slices.Clone(in.Events[i+1:first(in, 1)-1]), append([]audit.Message{in.Events[i]}, in.Events[first(in, 1)-1:]...)...)...)
		}, want: "reordered drift reused"},
		{name: "a filler", input: func(in *audit.Input) {
			in.Events = slices.Insert(in.Events, first(in, 1)-1, audit.Message{Subject: in.Subjects.Lost(), Sequence: in.Losses[0].From, Epoch: 1})
		}, want: ""},
		{name: "reused where a checkpoint was", unseen: true, input: func(in *audit.Input) { in.Losses[0].Unseen = false }, want: "reused"},
		{name: "reused beyond what was unseen", unseen: true, input: func(in *audit.Input) { in.Losses[0].From++ }, want: "reordered drift reused"},
	} {
		t.Run(fault.name, func(t *testing.T) {
			w := lossStory(t, fault.unseen)
			if fault.steps != nil {
				fault.steps(w)
			}
			in := w.render()
			if fault.input != nil {
				fault.input(&in)
			}
			w.wants(t, audit.Check(in), strings.Fields(fault.want)...)
		})
	}
}

// TestComparison: of an app that lost events only the net difference is owed
// until the bridge has compared, of others every state.
func TestComparison(t *testing.T) {
	for _, test := range []struct {
		lost bool // the app's last event
		want string
	}{{true, ""}, {false, "lost"}} {
		w := newWorld(t)
		a, b := w.app("checkout"), w.app("storefront")
		a.create()
		a.delete()
		b.create()
		if test.lost {
			a.create()
		}
		b.edit()
		w.rollBack(len(w.steps)-3, false)
		w.away = true
		a.create()
		a.edit()
		a.delete()
		w.away = false
		from := w.now
		w.compare()
		b.edit()
		in := w.render()
		in.Comparisons = []audit.Gap{{From: from, To: w.now}}
		w.wants(t, audit.Check(in), strings.Fields(test.want)...)
		in.Comparisons = nil
		w.wants(t, audit.Check(in), "lost")
	}
}

// TestSurvivorPurged: the event that a rollback left is gone from the stream for
// another reason, so that the app begins from nothing.
func TestSurvivorPurged(t *testing.T) {
	w := newWorld(t)
	a := w.app("checkout")
	a.create()
	a.edit()
	begin := len(w.steps)
	a.edit()
	a.edit()
	w.rollBack(len(w.steps)-begin, false)
	again := w.steps[len(w.steps)-1]
	again.kind, again.forgotten = subjects.Created, true
	in := w.render()
	w.wants(t, audit.Check(in), "reordered")
	in.Losses[0].First = uint64(begin) + 1
	w.wants(t, audit.Check(in))
}

// TestEndOfSurvivorPurged: nor does anybody know of the object before, which was
// deleted meanwhile.
func TestEndOfSurvivorPurged(t *testing.T) {
	w := newWorld(t)
	a := w.app("checkout")
	a.create()
	a.edit()
	begin := len(w.steps)
	a.edit()
	w.away = true
	a.delete()
	a.create()
	w.away = false
	w.rollBack(len(w.steps)-begin, false)
	w.steps = slices.DeleteFunc(w.steps, func(s *step) bool { return s.remove })
	again := w.steps[len(w.steps)-1]
	again.kind, again.forgotten = subjects.Created, true
	in := w.render()
	w.wants(t, audit.Check(in), "lost", "reordered")
	in.Losses[0].First = uint64(begin) + 1
	w.wants(t, audit.Check(in))
}

// TestUnseenEndOfSurvivorPurged: the delete that a rollback left does not say which of several ends
// it shows, and is gone from the stream for another reason.
func TestUnseenEndOfSurvivorPurged(t *testing.T) {
	w := newWorld(t)
	a := w.app("checkout")
	a.create()
	w.gap(func() {
		a.label(false)
		a.label(true)
		a.delete()
	})
	begin := len(w.steps)
	a.create()
	a.edit()
	w.away = true
	a.delete()
	a.create()
	w.away = false
	w.rollBack(len(w.steps)-begin, false)
	again := w.steps[len(w.steps)-1]
	again.forgotten, again.synthesized = true, false // it was pending
	in := w.render()
	in.Losses[0].First = uint64(begin) + 1
	w.wants(t, audit.Check(in))
}

// removedStory is a world in which a purge takes an update, and a delete and a
// create, before they were projected: what is told then goes on from the bucket.
func removedStory(t testing.TB) *world {
	w := newWorld(t)
	a, b := w.app("checkout"), w.app("storefront")
	a.create()
	b.create()
	a.edit()
	kept := [2]*step{a.told, b.told}
	removed := len(w.steps)
	a.edit()
	b.delete()
	b.create()
	for _, s := range w.steps[removed:] {
		s.removed = true
	}
	for i, app := range []*app{a, b} {
		app.told = kept[i]
	}
	w.compare()
	a.edit()
	b.edit()
	return w
}

func TestRemoved(t *testing.T) {
	w := removedStory(t)
	w.bucket = true
	in := w.render()
	w.wants(t, audit.Check(in))
	in.Removed = nil
	if r := audit.Check(in); r.OK() {
		t.Errorf("%s: what was told twice is right although no bridge named a removal", r)
	}
	// A bridge that knew what it had published goes on from there.
	w = removedStory(t)
	w.steps = slices.DeleteFunc(w.steps, func(s *step) bool { return s.synthesized })
	w.wants(t, audit.Check(w.render()))
}

// TestCleanWorldsWithLosses: rollbacks at random, named, leave nothing wrong.
func TestCleanWorldsWithLosses(t *testing.T) {
	taken := 0
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 5))
		w := newWorld(t)
		for i := range 1 + rng.IntN(8) {
			w.app(fmt.Sprintf("app-%d", i))
		}
		for range 12 {
			for range 5 + rng.IntN(30) {
				w.apps[rng.IntN(len(w.apps))].random(rng)
			}
			switch rng.IntN(4) {
			case 0:
				w.gap(func() {
					for range 20 {
						w.apps[rng.IntN(len(w.apps))].random(rng)
					}
				})
			case 1, 2:
				w.rollBack(1+rng.IntN(40), rng.IntN(3) == 0)
			}
		}
		r := audit.Check(w.render())
		if !r.OK() {
			t.Fatalf("seed %d: %s\n%v", seed, r, r.Problems()[:min(10, len(r.Problems()))])
		}
		taken += r.Taken
	}
	if taken == 0 {
		t.Error("no rollback took anything")
	}
}
