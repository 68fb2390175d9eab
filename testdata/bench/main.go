// Command bench measures appbridge against a plain informer. docs/benchmarks.md has the method.
//
//	bench --bin bin/appbridge                              20,000 apps, 50,000 updates, three rounds
//	bench --apps 1000,20000,100000                         and how that grows
//	bench --only plain,external --apps 2000 --updates 10000 --rounds 1 -v
//	bench --base /tmp/base/appbridge --out bin/bench.out   two versions, for benchstat
//
// It prints a table of medians. The files new.txt and base.txt of --out have each round in the form
// of Go's benchmarks. The roles stub, plain and limit are processes that bench starts itself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/appbridge/appbridge/testdata/testenv"
)

func main() {
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := dispatch(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// The roles of the processes that a round starts.
const (
	roleStub  = "stub"
	rolePlain = "plain"
	roleLimit = "limit"
)

func dispatch(ctx context.Context, args []string) error {
	if len(args) > 0 && slices.Contains([]string{roleStub, rolePlain, roleLimit}, args[0]) {
		return runRole(ctx, args[0], args[1:])
	}
	cfg, err := readSettings(args)
	if err != nil {
		return err
	}
	return run(ctx, cfg, os.Stdout)
}

func runRole(ctx context.Context, role string, args []string) error {
	flags := flag.NewFlagSet(role, flag.ContinueOnError)
	listen := flags.String("listen", "", "address of the role")
	target := flags.String("target", "", "URL of what the role connects to")
	apps := flags.Int("apps", 0, "how many there are")
	revisions := flags.Bool("revisions", true, "one for each app")
	kind := flags.String("kind", limitEvents, "what a limit publishes")
	file := flags.String("messages", "", "file with messages")
	count := flags.Int("count", 0, "how many events")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch role {
	case roleStub:
		return runStub(ctx, *listen, *apps, *revisions)
	case rolePlain:
		return runPlain(ctx, *listen, *target)
	default:
		return runLimit(ctx, *target, *kind, *file, *apps, *count)
	}
}

// settings are what is measured.
type settings struct {
	bin, base, nats string // programs
	out             string // folder for the lines for benchstat
	apps            []int
	updates, rounds int
	paced           int           // changes, for the latency
	rate            int           // of them, a second
	rest            time.Duration // before memory is read
	only            []variant
	verbose         bool
}

func readSettings(args []string) (cfg settings, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&cfg.bin, "bin", "bin/appbridge", "the appbridge binary to measure")
	flags.StringVar(&cfg.base, "base", "", "another one to compare it with")
	flags.StringVar(&cfg.nats, "nats-server", "", "the nats-server binary (default: that of make cluster-bin)")
	flags.StringVar(&cfg.out, "out", "", "folder for new.txt and base.txt, the figures of each round for benchstat")
	apps := flags.String("apps", "20000", "numbers of apps, separated by commas")
	flags.IntVar(&cfg.updates, "updates", 50_000, "updates as fast as they are read")
	flags.IntVar(&cfg.paced, "paced", 2000, "updates at --rate, for the latency")
	flags.IntVar(&cfg.rate, "rate", 200, "of the paced updates, a second")
	flags.IntVar(&cfg.rounds, "rounds", 3, "how often all of it")
	flags.DurationVar(&cfg.rest, "rest", 15*time.Second, "how long processes rest before their memory is read")
	only := flags.String("only", "", "variants, separated by commas: "+joined(allVariants)+" (default: all)")
	flags.BoolVar(&cfg.verbose, "v", false, "print each figure as it is measured")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	for text := range strings.SplitSeq(*apps, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxApps {
			return cfg, fmt.Errorf("--apps %q: want numbers from 1 to %d separated by commas", *apps, maxApps)
		}
		cfg.apps = append(cfg.apps, n)
	}
	if flags.NArg() > 0 || cfg.rounds < 1 || cfg.updates < 1 || cfg.paced < 1 || cfg.rate < 1 {
		return cfg, errors.New("want flags only, and numbers of at least 1; see --help")
	}
	for _, v := range allVariants {
		if (*only == "" || slices.Contains(strings.Split(*only, ","), string(v))) && (v != variantBase || cfg.base != "") {
			cfg.only = append(cfg.only, v)
		}
	}
	if len(cfg.only) == 0 {
		return cfg, fmt.Errorf("--only %q: want some of %s", *only, joined(allVariants))
	}
	if cfg.nats == "" {
		cfg.nats, err = testenv.NATSServer()
	}
	return cfg, err
}

func joined(variants []variant) string {
	var names []string
	for _, v := range variants {
		names = append(names, string(v))
	}
	return strings.Join(names, ",")
}
