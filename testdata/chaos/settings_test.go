package main

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestSettings(t *testing.T) {
	usual := settings{
		bin: "bin/appbridge", scenario: "random", seed: 8, servers: []int{1, 3}, length: time.Minute,
		apps: 40, rate: 60, changes: 50_000, pending: 256, audit: 5 * time.Second, projects: 2,
	}
	with := func(change func(*settings)) settings {
		changed := usual
		change(&changed)
		return changed
	}
	for _, test := range []struct {
		name string
		args []string
		env  map[string]string
		want settings
	}{
		{"both numbers of servers share the time", []string{"--seed", "8"}, nil, usual},
		{
			"from the environment", nil,
			map[string]string{"CHAOS_SEED": "8", "CHAOS_SECONDS": "30", "CHAOS_KEEP": "1"},
			with(func(s *settings) { s.length, s.keep = 15*time.Second, true }),
		},
		{
			"a flag comes before a variable",
			[]string{"--seed", "8", "--servers=3"},
			map[string]string{"CHAOS_SERVERS": "1", "CHAOS_SEED": "9"},
			with(func(s *settings) { s.servers, s.length = []int{3}, 2*time.Minute }),
		},
		{"bridges without election", []string{"--seed", "7"}, nil, with(func(s *settings) { s.seed, s.rivals = 7, true })},
		{"election", []string{"--seed", "7", "--elect", "true"}, nil, with(func(s *settings) { s.seed = 7 })},
		{"bridges without election with another seed", nil, map[string]string{"CHAOS_SEED": "8", "CHAOS_ELECT": "false"}, with(func(s *settings) { s.rivals = true })},
		{
			"kills, which need a Lease",
			[]string{"--scenario", "kills", "--seed", "7", "--count", "3"},
			nil,
			with(func(s *settings) {
				s.seed, s.scenario, s.servers, s.length, s.count = 7, "kills", []int{1}, 2*time.Minute, 3
			}),
		},
		{
			"an outage", nil,
			map[string]string{"CHAOS_SEED": "8", "CHAOS_SCENARIO": "outage", "CHAOS_CHANGES": "100"},
			with(func(s *settings) {
				s.scenario, s.servers, s.length, s.apps, s.changes = "outage", []int{1}, 5*time.Minute, 2000, 100
			}),
		},
		{
			"kills",
			[]string{"--scenario", "kills", "--seed", "8", "--count", "3"},
			nil,
			with(func(s *settings) { s.scenario, s.servers, s.length, s.count = "kills", []int{1}, 2*time.Minute, 3 }),
		},
		{
			"mute faults",
			[]string{"--scenario", "mute", "--seed", "8", "--audit-interval", "2s"},
			nil,
			with(func(s *settings) {
				s.scenario, s.servers, s.length, s.count, s.audit = "mute", []int{1}, 2*time.Minute, 20, 2*time.Second
			}),
		},
		{
			"hostile clients of one project",
			[]string{"--seed", "8", "--scenario", "hostile", "--projects", "1"},
			nil,
			with(func(s *settings) {
				s.scenario, s.servers, s.length, s.apps, s.projects, s.audit = "hostile", []int{1}, 5*time.Minute, 1000, 1, time.Minute
			}),
		},
		{
			"quiet", nil,
			map[string]string{"CHAOS_SEED": "8", "CHAOS_SCENARIO": "quiet", "CHAOS_SECONDS": "60"},
			with(func(s *settings) { s.scenario, s.servers, s.apps = "quiet", []int{1}, 200 }),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := readSettings(test.args, func(name string) string { return test.env[name] })
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestSettingsRefused(t *testing.T) {
	for _, args := range [][]string{
		{"--seed", "many"}, {"--servers", "2"}, {"--scenario", "calm"}, {"--apps", "-1"}, {"--seconds", "-1"}, {"--rate", "0"}, {"--projects", "0"}, {"--faults", "("}, {"--faults", "no such fault"}, {"what"},
	} {
		if got, err := readSettings(args, func(string) string { return "" }); err == nil {
			t.Errorf("%v: got %+v, want an error", args, got)
		}
	}
	_, err := readSettings(nil, func(name string) string { return map[string]string{"CHAOS_RATE": "fast"}[name] })
	if err == nil || !strings.Contains(err.Error(), "CHAOS_RATE=fast") {
		t.Errorf("got %v, want the variable named", err)
	}
}

// Another seed each time, unless one is given.
func TestSeedIsDrawn(t *testing.T) {
	seeds := map[uint64]bool{}
	for range 5 {
		cfg, err := readSettings(nil, func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		seeds[cfg.seed] = true
	}
	if len(seeds) == 1 {
		t.Error("the same seed five times")
	}
}
