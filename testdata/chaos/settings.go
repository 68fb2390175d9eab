package main

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// scenarioMute is the scenario in which nothing but mute faults happens.
const scenarioMute = "mute"

// settings are what a run is told.
type settings struct {
	bin      string
	scenario string
	seed     uint64
	servers  []int         // NATS servers, one run for each number
	length   time.Duration // of the trouble in one run
	apps     int
	rate     int            // writes a second, of all writers
	count    int            // how often, in kills and pauses
	changes  int            // in outage
	pending  int            // MiB that a bridge may keep waiting
	faults   *regexp.Regexp // only those with such a name, in random; nil: all
	audit    time.Duration  // the bridges' --audit-interval
	projects int            // hostile ones, in hostile
	rivals   bool           // in random: the bridges elect no leader
	keep     bool
}

// readSettings reads flags; a variable of the environment stands for a flag
// that is not given.
func readSettings(args []string, getenv func(string) string) (settings, error) {
	var cfg settings
	var seed, servers, faults, elect string
	var seconds int
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(os.Stderr)
	flags.StringVar(&cfg.bin, "bin", "bin/appbridge", "the appbridge binary to try")
	flags.StringVar(&cfg.scenario, "scenario", "random", strings.Join(slices.Sorted(maps.Keys(scenarios())), ", "))
	flags.StringVar(&seed, "seed", "", "what decides faults and changes (default: another one each time)")
	flags.StringVar(&servers, "servers", "", "NATS servers: 1, 3 or both, half of the time each (default: both in the scenario random, else 1)")
	flags.IntVar(&seconds, "seconds", 0, "length of the trouble (default 120; of an outage and of hostile 300, of quiet and load 1800)")
	flags.IntVar(&cfg.apps, "apps", 0, "apps (default 40; in an outage 2000, in quiet and load 200, in cost 20000, in churn and hostile 1000)")
	flags.IntVar(&cfg.rate, "rate", 60, "changes a second")
	flags.IntVar(&cfg.count, "count", 0, "how often to kill (default 100), to pause or to plant a mute fault (default 20); apps of churn (default 100000)")
	flags.IntVar(&cfg.changes, "changes", 50_000, "changes during an outage")
	flags.IntVar(&cfg.pending, "pending", 256, "MiB of changes that a bridge lets wait before it merges")
	flags.StringVar(&faults, "faults", "", "in random and mute: only the faults whose names match this regular expression (default: all)")
	flags.DurationVar(&cfg.audit, "audit-interval", 0, "the interval of the bridges' audits (default 5s; in cost 60s)")
	flags.IntVar(&cfg.projects, "projects", 2, "projects that the hostile clients of the scenario hostile belong to")
	flags.StringVar(&elect, "elect", "", "in random: whether the bridges elect a leader, true or false (default: the seed decides, one in four does not)")
	flags.BoolVar(&cfg.keep, "keep", false, "keep the logs also when nothing was found")
	var bad error
	flags.VisitAll(func(f *flag.Flag) {
		name := "CHAOS_" + strings.ReplaceAll(strings.ToUpper(f.Name), "-", "_")
		if value := getenv(name); value != "" && bad == nil {
			if err := flags.Set(f.Name, value); err != nil {
				bad = fmt.Errorf("%s=%s: %w", name, value, err)
			}
		}
	})
	if bad != nil {
		return settings{}, bad
	}
	if err := flags.Parse(args); err != nil {
		return settings{}, err
	}
	if flags.NArg() > 0 {
		return settings{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	cfg.seed = rand.Uint64N(1_000_000)
	if seed != "" {
		n, err := strconv.ParseUint(seed, 10, 64)
		if err != nil {
			return settings{}, fmt.Errorf("seed %q: want a number", seed)
		}
		cfg.seed = n
	}
	switch elect {
	case "": // one that chooses faults may need the Lease for them
		cfg.rivals = cfg.scenario == "random" && faults == "" && cfg.seed%4 == 3
	case "true", "false":
		cfg.rivals = cfg.scenario == "random" && elect == "false"
	default:
		return settings{}, fmt.Errorf("elect %q: want true or false", elect)
	}
	if faults != "" {
		only, err := regexp.Compile(faults)
		if err != nil {
			return settings{}, fmt.Errorf("faults: %w", err)
		}
		if !slices.ContainsFunc(randomFaults(3), func(f fault) bool { return only.MatchString(f.name) }) {
			return settings{}, fmt.Errorf("faults %q: no fault has such a name", faults)
		}
		cfg.faults = only
	}
	byScenario := map[string]settings{
		"random":  {length: 120 * time.Second, apps: 40, servers: []int{1, 3}},
		"kills":   {length: 120 * time.Second, apps: 40, servers: []int{1}, count: 100},
		"pauses":  {length: 120 * time.Second, apps: 40, servers: []int{1}, count: 20},
		"outage":  {length: 300 * time.Second, apps: 2000, servers: []int{1}},
		"mute":    {length: 120 * time.Second, apps: 40, servers: []int{1}, count: 20},
		"quiet":   {length: 30 * time.Minute, apps: 200, servers: []int{1}},
		"load":    {length: 30 * time.Minute, apps: 200, servers: []int{1}},
		"cost":    {length: 0, apps: 20_000, servers: []int{1}, audit: time.Minute},
		"hostile": {length: 300 * time.Second, apps: 1000, servers: []int{1}, audit: time.Minute},
		"churn":   {length: 120 * time.Second, apps: 1000, servers: []int{1}, count: 100_000, audit: time.Minute},
	}
	usual, ok := byScenario[cfg.scenario]
	if !ok {
		return settings{}, fmt.Errorf("scenario %q: want %s", cfg.scenario, strings.Join(slices.Sorted(maps.Keys(scenarios())), ", "))
	}
	cfg.length, cfg.servers = usual.length, usual.servers
	if seconds > 0 {
		cfg.length = time.Duration(seconds) * time.Second
	}
	switch servers {
	case "":
	case "both":
		cfg.servers = []int{1, 3}
	case "1":
		cfg.servers = []int{1}
	case "3":
		cfg.servers = []int{3}
	default:
		return settings{}, fmt.Errorf("servers %q: want 1, 3 or both", servers)
	}
	if cfg.apps == 0 {
		cfg.apps = usual.apps
	}
	if cfg.count == 0 {
		cfg.count = usual.count
	}
	if cfg.audit == 0 {
		cfg.audit = cmp.Or(usual.audit, 5*time.Second)
	}
	if cfg.scenario == "random" {
		cfg.length /= time.Duration(len(cfg.servers))
	}
	for name, value := range map[string]int{"apps": cfg.apps, "rate": cfg.rate, "changes": cfg.changes, "pending": cfg.pending, "seconds": seconds + 1, "count": cfg.count + 1, "projects": cfg.projects} {
		if value < 1 {
			return settings{}, fmt.Errorf("%s: want a positive number", name)
		}
	}
	return cfg, nil
}
