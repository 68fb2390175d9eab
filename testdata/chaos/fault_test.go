package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// The same seed draws the same faults; one that may not happen does not.
func TestChoose(t *testing.T) {
	faults := randomFaults(3)
	draw := func(seed uint64) (names []string) {
		rng, uses := rand.New(rand.NewPCG(seed, 0)), map[string]int{}
		for range 200 {
			f, ok := choose(rng, faults, uses, func(f fault) bool { return f.name != "compact etcd" })
			if !ok {
				t.Fatal("no fault")
			}
			uses[f.name]++
			names = append(names, f.name)
		}
		return names
	}
	first := draw(1)
	if !slices.Equal(first, draw(1)) {
		t.Error("the same seed drew other faults")
	}
	if slices.Equal(first, draw(2)) {
		t.Error("another seed drew the same faults")
	}
	if slices.Contains(first, "compact etcd") {
		t.Error("a fault was drawn that may not happen")
	}
	different := map[string]bool{}
	for _, name := range first {
		different[name] = true
	}
	if got, want := len(different), len(faults)-1; got != want {
		t.Errorf("got %d kinds of faults out of 200, want all %d", got, want)
	}
	if f, ok := choose(rand.New(rand.NewPCG(1, 0)), faults, nil, func(fault) bool { return false }); ok {
		t.Errorf("got %s, want none", f.name)
	}
}

func TestFaultsAreComplete(t *testing.T) {
	names := map[string]bool{}
	for _, f := range randomFaults(3) {
		if f.name == "" || names[f.name] || f.weight < 1 || len(f.parts) == 0 || f.takes == 0 || f.play == nil {
			t.Errorf("%+v is not complete, or there twice", f)
		}
		names[f.name] = true
	}
}

// A fault lasts no longer than there is time for.
func TestBetween(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	for _, test := range []struct {
		left, least, most, want time.Duration
	}{
		{time.Hour, time.Second, 10 * time.Second, 10 * time.Second},
		{6 * time.Second, time.Second, 10 * time.Second, 4 * time.Second},
		{time.Second, 3 * time.Second, 10 * time.Second, 3 * time.Second},
	} {
		i := &injection{rng: rng, end: time.Now().Add(test.left)}
		longest := time.Duration(0)
		for range 1000 {
			got := i.between(test.least, test.most)
			if got < test.least || got > test.want {
				t.Fatalf("with %s left: got %s, want %s to %s", test.left, got, test.least, test.want)
			}
			longest = max(longest, got)
		}
		if longest < test.least+(test.want-test.least)*9/10 {
			t.Errorf("with %s left: got %s at most, want about %s", test.left, longest, test.want)
		}
	}
}

func TestClaims(t *testing.T) {
	c := &claims{held: map[part]bool{}}
	c.take([]part{natsPart, storagePart})
	if c.free([]part{storagePart, linksPart}) || !c.free([]part{linksPart}) {
		t.Error("a part is not held as taken")
	}
	c.give([]part{natsPart, storagePart})
	if !c.free(everything) {
		t.Error("a part is held that was given back")
	}
}

func TestLength(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
	for _, test := range []struct {
		name string
		gaps []audit.Gap
		want time.Duration
	}{
		{"none", nil, 0},
		{"apart", []audit.Gap{{From: at(10), To: at(12)}, {From: at(1), To: at(4)}}, 5 * time.Second},
		{"overlapping", []audit.Gap{{From: at(1), To: at(5)}, {From: at(3), To: at(8)}}, 7 * time.Second},
		{"one inside the other", []audit.Gap{{From: at(1), To: at(9)}, {From: at(3), To: at(4)}, {From: at(8), To: at(10)}}, 9 * time.Second},
	} {
		if got := length(test.gaps); got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
	}
}
