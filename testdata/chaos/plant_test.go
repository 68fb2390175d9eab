package main

import (
	"testing"
	"time"
)

func second(n float64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(n * float64(time.Second)))
}

// Every way in which a planted fault can end, with a patience of 35 s.
func TestCourse(t *testing.T) {
	const wrong = "the entry: it has another App"
	steady := func(from, to float64, s sighting) (all []sighting) {
		for at := from; at < to; at++ {
			s.at = second(at)
			all = append(all, s)
		}
		return all
	}
	there := sighting{whole: true, wrong: wrong}
	named := sighting{whole: true, wrong: wrong, named: "bridge A: audit"}
	healed := sighting{whole: true, named: "bridge A: audit"}
	silent := sighting{whole: true}
	absent := sighting{wrong: wrong}
	join := func(parts ...[]sighting) (all []sighting) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	for _, test := range []struct {
		name                string
		seen                []sighting
		unnoticed, complete bool // what is said of it
		lasts               int  // sightings until it is over
	}{
		{"found and healed", join(steady(0, 5, there), steady(5, 7, named), steady(7, 20, healed)), false, false, 8},
		{"never found", steady(0, 60, there), true, true, 37},
		{"found and not healed", join(steady(0, 5, there), steady(5, 60, named)), true, true, 37},
		{"found and healed too late", join(steady(0, 36, there), steady(36, 60, healed)), true, true, 37},
		{"healed, and nothing named it", join(steady(0, 5, there), steady(5, 20, silent)), false, true, 9},
		{"named after it was healed", join(steady(0, 5, there), steady(5, 7, silent), steady(7, 20, healed)), false, false, 8},
		{"no effect", steady(0, 20, silent), false, true, 4},
		{"the effect shows late", join(steady(0, 2, silent), steady(2, 60, there)), true, true, 37},
		{"other faults come in between", join(steady(0, 30, there), steady(30, 50, absent), steady(50, 80, there), steady(80, 90, healed)), false, false, 81},
		{"other faults, and then never found", join(steady(0, 30, there), steady(30, 50, absent), steady(50, 120, there)), true, true, 86},
		{"never whole again", steady(0, 400, absent), true, true, 302},
		{"wrong again after it was right", join(steady(0, 5, there), steady(5, 7, silent), steady(7, 60, there)), true, true, 37},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, over := newCourse(second(0), 35*time.Second), 0
			for n, s := range test.seen {
				if c.see(s) {
					over = n + 1
					break
				}
			}
			if over != test.lasts {
				t.Errorf("over after %d sightings, want %d", over, test.lasts)
			}
			if got := c.unnoticed(); (got != "") != test.unnoticed {
				t.Errorf("unnoticed %q, want one: %v", got, test.unnoticed)
			}
			if got := c.complete(); (got != "") != test.complete {
				t.Errorf("not complete %q, want one: %v", got, test.complete)
			}
		})
	}
}

func TestMuteLine(t *testing.T) {
	good := course{planted: second(0), effect: true, found: second(6), healed: second(8), by: "bridge A: audit"}
	for _, test := range []struct {
		name    string
		change  func(*course)
		strange int
		want    string
		ok      bool
	}{
		{"all found and healed", func(*course) {}, 0, "mute: planted=2 found=2 healed=2 kinds=2 false=0", true},
		{"one not found", func(c *course) { c.found = time.Time{} }, 0, "mute: planted=2 found=1 healed=2 kinds=2 false=0", false},
		{"one not healed", func(c *course) { c.healed = time.Time{} }, 0, "mute: planted=2 found=2 healed=1 kinds=2 false=0", false},
		{"one without effect", func(c *course) { c.effect = false }, 0, "mute: planted=2 found=1 healed=1 kinds=2 false=0", false},
		{"a false finding", func(*course) {}, 1, "mute: planted=2 found=2 healed=2 kinds=2 false=1", false},
	} {
		other := good
		test.change(&other)
		if line, ok := muteLine([]plantedOne{{"a", good}, {"b", other}}, 2, test.strange); line != test.want || ok != test.ok {
			t.Errorf("%s: got %q, %v, want %q, %v", test.name, line, ok, test.want, test.ok)
		}
	}
	if line, ok := muteLine(nil, 0, 0); ok {
		t.Errorf("nothing planted: got %q and no failure", line)
	}
}

func TestSteadyLine(t *testing.T) {
	for _, test := range []struct {
		name            string
		seconds, rounds float64
		findings        int
		want            string
		ok              bool
	}{
		{"clean", 60, 11, 0, "quiet: seconds=60 rounds=11 findings=0", true},
		{"a finding", 60, 11, 1, "quiet: seconds=60 rounds=11 findings=1", false},
		{"hardly a round", 60, 2, 0, "quiet: seconds=60 rounds=2 findings=0", false},
		{"no audit", 60, 0, 0, "quiet: seconds=60 rounds=0 findings=0", false},
		{"too short for one", 1, 0, 0, "quiet: seconds=1 rounds=0 findings=0", false},
	} {
		if line, ok := steadyLine("quiet", test.seconds, test.rounds, 5*time.Second, test.findings); line != test.want || ok != test.ok {
			t.Errorf("%s: got %q, %v, want %q, %v", test.name, line, ok, test.want, test.ok)
		}
	}
}

// A difference that the audit found is explained by a fault of its app, its time, its
// side and its bridge, and by nothing else.
func TestFalseFindings(t *testing.T) {
	const key = "quiet.production.quiet-0001"
	lasting := &cause{from: second(10), bridge: "A", sides: []string{sideSource}, names: namesOf(key, "quiet-0001-quiet-production")}
	over := &cause{from: second(10), to: second(20), names: namesOf(key)}
	all := &cause{from: second(10), to: second(20)}
	line := func(field, name string) string {
		return `{"level":"error","msg":"the audit found a difference","` + field + `":"` + name + `","detail":"it is behind"}`
	}
	found := difference{at: second(12), bridge: "A", side: sideSource, line: line("key", key)}
	with := func(change func(*difference)) difference {
		d := found
		change(&d)
		return d
	}
	for _, test := range []struct {
		name  string
		cause *cause
		found difference
		want  bool // it is false
	}{
		{"explained by its key", lasting, found, false},
		{"by its id", lasting, with(func(d *difference) { d.line = line("app", "quiet/production/quiet-0001") }), false},
		{"by its object", lasting, with(func(d *difference) { d.line = line("object", "Service flyte/quiet-0001-quiet-production") }), false},
		{"long after, while it lasts", lasting, with(func(d *difference) { d.at = second(500) }), false},
		{"of another app", lasting, with(func(d *difference) { d.line = line("key", "quiet.production.quiet-0002") }), true},
		{"of an app with a longer name", lasting, with(func(d *difference) { d.line = line("key", key+"1") }), true},
		{"of another bridge", lasting, with(func(d *difference) { d.bridge = "B" }), true},
		{"on another side", lasting, with(func(d *difference) { d.side = "bucket" }), true},
		{"before the fault", lasting, with(func(d *difference) { d.at = second(8) }), true},
		{"in time", over, found, false},
		{"after its aftermath", over, with(func(d *difference) { d.at = second(21) }), true},
		{"of any app", all, with(func(d *difference) { d.line, d.side = line("key", "shop.production.app-0001"), "bucket" }), false},
	} {
		if got := falseFindings([]difference{test.found}, []*cause{test.cause}); (len(got) == 1) != test.want {
			t.Errorf("%s: got %v, want a false finding: %v", test.name, got, test.want)
		}
	}
	if got := falseFindings([]difference{found}, nil); len(got) != 1 {
		t.Errorf("nothing was planted: got %v", got)
	}
}

func TestDifferences(t *testing.T) {
	log := []byte(`{"level":"info","time":"2026-11-22T06:00:00.5Z","msg":"live"}
not JSON
{"level":"error","time":"2026-11-22T06:00:01.25Z","msg":"the audit found a difference","kind":"bucket_other_app","side":"bucket","app":"a/b/c","detail":"x"}
{"level":"info","time":"2026-11-22T06:00:02Z","msg":"the audit repaired a difference","kind":"bucket_other_app"}
{"level":"error","time":"2026-11-22T06:00:03Z","msg":"the audit fou`)
	got := differences("A", log)
	if len(got) != 1 || got[0].kind != "bucket_other_app" || got[0].side != "bucket" || !got[0].mentions("a/b/c") ||
		!got[0].at.Equal(time.Date(2026, 11, 22, 6, 0, 1, 250_000_000, time.UTC)) {
		t.Errorf("got %+v", got)
	}
	for _, test := range []struct {
		name            string
		messages, names []string
		want            string
	}{
		{"the audit's line of the app", nil, []string{"a.b.c", "a/b/c"}, "audit (bucket bucket_other_app)"},
		{"any", nil, nil, "audit (bucket bucket_other_app)"},
		{"another app", nil, []string{"a/b/d"}, ""},
		{"a message", []string{"live"}, []string{"a/b/d"}, "live"},
	} {
		if got := naming(log, test.messages, test.names); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

func TestParseProcessorTime(t *testing.T) {
	got, err := parseProcessorTime("4711 (app (x) y) S 1 4711 4711 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 12 0 99 1 2 3\n")
	if want := 3 * time.Second; err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	for _, text := range []string{"", "1 (x) S 1", "1 (x) S 1 1 1 0 -1 1 9 0 0 0 many 50 0"} {
		if got, err := parseProcessorTime(text); err == nil {
			t.Errorf("%q: got %s, want an error", text, got)
		}
	}
}
