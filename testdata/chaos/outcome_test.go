package main

import (
	"testing"

	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

func TestOutcome(t *testing.T) {
	one := outcome{Report: audit.Report{Changes: 10, Events: 8, Excused: 2}, faults: 3}
	two := outcome{Report: audit.Report{Changes: 5, Events: 4, Lost: []audit.Problem{{App: "a"}}}, faults: 1}
	for _, test := range []struct {
		name string
		all  []outcome
		want string
		ok   bool
	}{
		{"clean", []outcome{one}, "chaos: seed=7 faults=3 changes=10 events=8 excused=2 lost=0 duplicated=0 reordered=0 drift=0 reused=0 unnoticed=0 false=0", true},
		{"the sum of two", []outcome{one, two}, "chaos: seed=7 faults=4 changes=15 events=12 excused=2 lost=1 duplicated=0 reordered=0 drift=0 reused=0 unnoticed=0 false=0", false},
		{
			"a loss that nobody noticed",
			[]outcome{one, {unnoticed: []string{"the event stream lost 3 of 5-7"}, unseen: []string{"another"}}},
			"chaos: seed=7 faults=3 changes=10 events=8 excused=2 lost=0 duplicated=0 reordered=0 drift=0 reused=0 unnoticed=1 false=0", false,
		},
		{
			"a loss that nothing knew of",
			[]outcome{one, {unseen: []string{"the event stream lost 3 of 5-7"}}},
			"chaos: seed=7 faults=3 changes=10 events=8 excused=2 lost=0 duplicated=0 reordered=0 drift=0 reused=0 unnoticed=0 false=0", true,
		},
		{
			"a sequence used twice",
			[]outcome{one, {Report: audit.Report{Reused: []audit.Problem{{App: "a"}}}}},
			"chaos: seed=7 faults=3 changes=10 events=8 excused=2 lost=0 duplicated=0 reordered=0 drift=0 reused=1 unnoticed=0 false=0", false,
		},
		{
			"a difference that no fault made",
			[]outcome{one, {falseFindings: []string{"bridge A: the audit found a difference"}}},
			"chaos: seed=7 faults=3 changes=10 events=8 excused=2 lost=0 duplicated=0 reordered=0 drift=0 reused=0 unnoticed=0 false=1", false,
		},
		{
			"what the scenario is about",
			[]outcome{one, {last: []string{"quiet: seconds=1 rounds=0 findings=0"}, bad: true}},
			"chaos: seed=7 faults=3 changes=10 events=8 excused=2 lost=0 duplicated=0 reordered=0 drift=0 reused=0 unnoticed=0 false=0", false,
		},
		{
			"a failure of another kind",
			[]outcome{one, {failures: []string{"bridge A ended by itself"}}},
			"chaos: seed=7 faults=3 changes=10 events=8 excused=2 lost=0 duplicated=0 reordered=0 drift=0 reused=0 unnoticed=0 false=0 failures=1", false,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var sum outcome
			for _, o := range test.all {
				sum.add(o)
			}
			if got := sum.line(7); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if got := sum.ok(); got != test.ok {
				t.Errorf("ok: got %v, want %v", got, test.ok)
			}
		})
	}
}

func TestParseMemory(t *testing.T) {
	got, err := parseMemory("Name:\tappbridge\nVmHWM:\t   58368 kB\nVmRSS:\t   45056 kB\nThreads:\t9\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := (memory{resident: 45056, peak: 58368}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := got.resident.String(), "44 MiB"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, text := range []string{"", "VmRSS: 1 kB\n", "VmRSS: much\nVmHWM: 1 kB\n"} {
		if got, err := parseMemory(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}
