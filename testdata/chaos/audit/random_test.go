package audit_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// randomWorld is a cluster that many things happen to, under a bridge that is
// at times behind and at times away.
func randomWorld(t testing.TB, rng *rand.Rand, apps, changes int) *world {
	w := newWorld(t)
	for i := range apps {
		w.app(fmt.Sprintf("app-%d", i))
	}
	some := func(n int) {
		for range n {
			w.apps[rng.IntN(apps)].random(rng)
		}
	}
	for w.version < 100+changes {
		some(10 + rng.IntN(40))
		switch rng.IntN(3) {
		case 0:
			w.gap(func() { some(5 + rng.IntN(3*apps)) })
		case 1:
			for _, a := range w.apps {
				a.merging = rng.IntN(2) == 0
			}
			some(20 + rng.IntN(3*apps))
			for _, a := range w.apps {
				a.merging = false
			}
		}
	}
	return w
}

func TestCleanWorlds(t *testing.T) {
	var sum audit.Report
	for seed := range uint64(15) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := randomWorld(t, rng, 1+rng.IntN(12), 400)
		if seed%2 == 1 {
			w.form = subjects.ContentTypeProtobuf
		}
		r := audit.Check(w.render())
		if !r.OK() {
			t.Fatalf("seed %d: %s\n%v", seed, r, r.Problems()[:min(10, len(r.Problems()))])
		}
		sum = sum.Plus(r)
	}
	if sum.Merged == 0 || sum.Excused == 0 || sum.Events == 0 || sum.Changes < sum.Events/2 {
		t.Errorf("the worlds are too plain: %s merged=%d", sum, sum.Merged)
	}
	t.Log(sum, "merged", sum.Merged)
}
