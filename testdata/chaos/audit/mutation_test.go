package audit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// around are the steps of the same app before and after one; nil where there
// is none.
func (w *world) around(i int) (before, after *step, j int) {
	for _, s := range w.steps[:i] {
		if s.app == w.steps[i].app {
			before = s
		}
	}
	for j = i + 1; j < len(w.steps); j++ {
		if w.steps[j].app == w.steps[i].app {
			return before, w.steps[j], j
		}
	}
	return before, nil, 0
}

// sameService tells whether two steps differ in replicas alone.
func sameService(a, b *step) bool {
	return a != nil && b != nil && !a.remove && !b.remove && a.service.ResourceVersion == b.service.ResourceVersion
}

// mutate does one thing wrong, and says what; empty if the steps picked do not
// allow for it.
func (w *world) mutate(rng *rand.Rand) string {
	i := rng.IntN(len(w.steps))
	s := w.steps[i]
	before, after, j := w.around(i)
	what := func(text string) string { return fmt.Sprintf("%s, step %d of %s", text, i, s.app.name) }
	header := func(change func(name string, m *audit.Message)) string {
		var name string
		s.message = func(m *audit.Message) {
			var names []string
			for header := range m.Header {
				if !slices.Contains([]string{subjects.HeaderSynthesized, subjects.HeaderFinalStateUnknown, subjects.HeaderMergedUpdates}, header) {
					names = append(names, header)
				}
			}
			slices.Sort(names)
			name = names[rng.IntN(len(names))]
			change(name, m)
		}
		return what("header")
	}
	switch rng.IntN(8) {
	case 0: // lost
		switch {
		case after != nil && (after.merged > 0 || after.synthesized): // it may stand for more
			return ""
		case before == nil && after != nil && after.remove: // what is deleted then was not there
			return ""
		case sameService(before, s):
			// Provable where the same Revision was shown before and after.
			if after != nil && (!sameService(s, after) || before.rev == nil || after.rev == nil || s.rev == nil) {
				return ""
			}
		case after != nil && sameService(s, after): // tells the same state
			return ""
		}
		w.steps = slices.Delete(w.steps, i, i+1)
		return what("lost")
	case 1: // twice
		if s.remove || s.merged > 0 {
			return ""
		}
		again := *s
		w.steps = slices.Insert(w.steps, i+1, &again)
		return what("twice")
	case 2: // swapped
		if after == nil || s.remove || after.remove || sameService(s, after) {
			return ""
		}
		w.steps[i], w.steps[j] = w.steps[j], w.steps[i]
		return what("swapped")
	case 3: // another App
		s.change = func(app *appv1.App) { app.Metadata.Id.Org += "?" }
		return what("App")
	case 4:
		return header(func(name string, m *audit.Message) { m.Header[name] = []string{"?"} })
	case 5:
		return header(func(name string, m *audit.Message) { delete(m.Header, name) })
	case 6: // late
		if after == nil || s.remove || after.remove && s.first {
			return ""
		}
		if sameService(before, s) || sameService(s, after) {
			return ""
		}
		late := *s
		w.steps = append(w.steps, &late)
		return what("late")
	default:
		w.final = func(in *audit.Input) {
			n := rng.IntN(len(in.Entries))
			e := &in.Entries[n]
			switch rng.IntN(3) {
			case 0:
				in.Entries = slices.Delete(in.Entries, n, n+1)
			case 1:
				e.Data = append(slices.Clone(e.Data), '?')
			default:
				var names []string
				for name := range e.Header {
					if !strings.HasPrefix(name, "Nats-") {
						names = append(names, name)
					}
				}
				slices.Sort(names)
				delete(e.Header, names[rng.IntN(len(names))])
			}
		}
		return "bucket"
	}
}

func TestEveryMutationIsFound(t *testing.T) {
	done := map[string]int{}
	for seed := range uint64(75) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w := randomWorld(t, rng, 1+rng.IntN(5), 150)
		what := ""
		for what == "" {
			what = w.mutate(rng)
		}
		done[strings.SplitN(what, ",", 2)[0]]++
		if r := audit.Check(w.render()); r.OK() {
			t.Errorf("seed %d: nothing found: %s", seed, what)
		}
	}
	if len(done) != 7 {
		t.Errorf("kinds of mutations: %v", done)
	}
	t.Log(done)
}

// TestGarbage feeds what makes no sense; it must not panic.
func TestGarbage(t *testing.T) {
	audit.Check(audit.Input{})
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 3))
		w := randomWorld(t, rng, 1+rng.IntN(4), 60)
		in := w.render()
		for range 1 + rng.IntN(30) {
			wreck(rng, &in)
		}
		r := audit.Check(in)
		for _, p := range r.Problems() {
			if p.String() == "" {
				t.Error("a problem without a word")
			}
		}
	}
}

// wreck does something senseless to an input.
func wreck(rng *rand.Rand, in *audit.Input) {
	shuffle := func(n int, swap func(i, j int)) { rng.Shuffle(n, swap) }
	switch rng.IntN(9) {
	case 0:
		shuffle(len(in.Events), func(i, j int) { in.Events[i], in.Events[j] = in.Events[j], in.Events[i] })
	case 1:
		shuffle(len(in.Changes), func(i, j int) { in.Changes[i], in.Changes[j] = in.Changes[j], in.Changes[i] })
	case 2:
		in.Changes[rng.IntN(len(in.Changes))].Object = nil
	case 3:
		in.Changes[rng.IntN(len(in.Changes))].ResourceVersion = "x"
	case 4:
		in.Changes[rng.IntN(len(in.Changes))].Object = in.Changes[rng.IntN(len(in.Changes))].Object
	case 5:
		in.Events[rng.IntN(len(in.Events))].Header = nil
	case 6:
		in.Events[rng.IntN(len(in.Events))].Header = in.Events[rng.IntN(len(in.Events))].Header
	case 7:
		in.Events[rng.IntN(len(in.Events))].Data = in.Events[rng.IntN(len(in.Events))].Data
	case 8:
		i := rng.IntN(len(in.Changes))
		in.Changes = slices.Delete(in.Changes, i, i+1)
		if len(in.Changes) == 0 {
			in.Changes = []audit.Change{{Kind: "?"}}
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 4))
	in := randomWorld(b, rng, 200, 200_000).render()
	b.Logf("%d changes, %d events", len(in.Changes), len(in.Events))
	for b.Loop() {
		if r := audit.Check(in); !r.OK() {
			b.Fatal(r)
		}
	}
}
