// Command chaos tries to break what appbridge promises: no change lost, none
// told twice, none out of order, the bucket always converging. It runs a real
// API server, real NATS servers and real appbridge processes, changes apps,
// and does to all of them what happens to such things, at random. What should
// be in the stream it takes from etcd; package audit compares.
//
//	chaos --bin bin/appbridge                     two bridges, faults at random
//	chaos --bin bin/appbridge --scenario kills    one bridge, killed again and again
//	chaos --bin bin/appbridge --scenario pauses   two bridges, the leading one paused with events on their way
//	chaos --bin bin/appbridge --scenario outage   NATS away for minutes while apps change
//	chaos --bin bin/appbridge --scenario mute     two bridges, 20 faults that no part reports, one after the other
//	chaos --bin bin/appbridge --scenario quiet    two bridges, nothing happens for half an hour
//	chaos --bin bin/appbridge --scenario load     two bridges, half an hour of load without a fault
//	chaos --bin bin/appbridge --scenario cost     the processor time of the audit at 20,000 apps
//	chaos --bin bin/appbridge --scenario hostile  one bridge with a memory limit, 150 hostile clients, an honest tenant
//	chaos --bin bin/appbridge --scenario churn    memory over many apps created and deleted, 1,000 alive
//
// In the scenario random, flags choose the run: --servers (1, 3 or both), --seconds, --apps, --rate,
// --seed and --faults, a regular expression of the names of the faults that may happen:
//
//	chaos --bin bin/appbridge --faults 'roll back|purge the stream under load'
//
// Some faults take away what JetStream has acknowledged: a copy of the storage
// is put back, the stream is purged under load, or retention overtakes a bucket
// that refuses writes. What is lost then is excused only if a bridge named it,
// in its log and in a notice in the stream. A loss that neither log nor metric
// names within 30 s of NATS and a bridge being back counts as unnoticed. One that
// nothing knew of which survived is excused, counted and printed as unseen: the
// bridge was killed with the storage, and the Lease had not been renewed since.
//
// Mute faults are those that no part reports. Each bridge reaches the API server
// through a proxy that swallows a watch event, freezes watches, leaves connections
// half open, keeps the end of a list back or serves a stale cache; a hand edits,
// removes and forges entries under right headers, and takes an app's last event out
// of the stream. Where such a fault had an effect, it has to be found and healed
// within the audit's interval (--audit-interval, 5s here) and 30 s of NATS, the API
// server and a bridge being back: else it counts as unnoticed. Other faults that come
// in between give it its time again. A swallowed version that came and went needs no
// event, the app's last state does. Most of these faults concern quiet apps, which
// nothing else changes: what is hidden of them stays hidden until a bridge finds it.
// A difference that an audit finds and that no fault of that app, side, bridge and
// time explains is false.
//
// Other faults last until they are taken back: a transform of the stream's subjects, a setting that is
// refused, a right that is revoked, a limit of consumers, a checkpoint in the Lease that cannot be, a
// credential plugin that hangs. The bridge that leads (of a plugin: its own bridge) must not be ready
// over such a fault, and has to name it: one that is ready, or gives another reason, for longer than
// the audit's interval and 30 s counts as unnoticed.
//
// The scenarios quiet, load and mute print a line of their own after the last one,
// and fail if the bridges did not audit at all. The measurements cost and churn print
// figures: cost compares a bridge with nothing to do with the audit on and off, over
// --audit-interval (60s; 10m for the default of appbridge) and at --apps; churn
// creates and deletes --count apps with --apps alive, as fast as the API server takes
// them, records none of it, and prints resident memory and heap in 20 steps.
//
// In the scenario hostile 100 readers of logs and 50 requesters of app operations, of --projects
// projects (2), do for --seconds (300) what costs a bridge most, against one with a limit of
// 512 MiB (RLIMIT_DATA: what the heap maps counts, what Go only reserves does not), while a tenant
// of another project reads a log, a list and an app each second and changes its app. It has
// to be answered within 2 s each time, without an error, and each change needs its event within
// 30 s; at the end nothing is held for a request, and the goroutines are as many as before. The
// last line has answered/late/failed/p99/max for the requests, seen/missing/max for the events,
// resident memory in MiB and
// the processor time of the bridge: a machine that is busy otherwise makes answers late, too.
//
// Every flag has a variable CHAOS_<NAME> in the environment. The seed decides
// which faults and which changes there are, though not how they meet. The last
// line reports what was found: lost, duplicated, reordered, drift, reused (a
// sequence with two meanings), unnoticed and false are 0, and the exit code is 0, if
// that is nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

func main() {
	cfg, err := readSettings(os.Args[1:], os.Getenv)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "chaos: %v\n", err)
		os.Exit(2)
	}
	klog.SetLogger(logr.Discard()) // what client-go finds strange is what the faults do
	// The first signal ends the run in good order, which takes seconds; so a
	// second one changes nothing.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err = run(ctx, cfg, os.Stdout)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case err == nil:
	case interrupted && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "chaos: interrupted; nothing was checked")
		os.Exit(130)
	case errors.Is(err, errBroken): // said already
		os.Exit(1)
	default:
		fmt.Fprintf(os.Stderr, "chaos: %v\n", err)
		os.Exit(1)
	}
}

// errBroken ends a run that found something.
var errBroken = errors.New("a promise is broken")

// scenario is a way to make trouble in a world that runs. It returns when the
// trouble is over, with the load still on; an error is one of the harness.
type scenario struct {
	world worldOptions
	play  func(context.Context, *world) error
}

// scenarios are those that readSettings knows.
func scenarios() map[string]scenario {
	return map[string]scenario{
		"random":  {worldOptions{bridges: 2, pods: true}, playRandom},
		"kills":   {worldOptions{bridges: 1}, playKills},
		"pauses":  {worldOptions{bridges: 2}, playPauses},
		"outage":  {worldOptions{bridges: 1, idle: true}, playOutage},
		"mute":    {worldOptions{bridges: 2}, playMute},
		"quiet":   {worldOptions{bridges: 2, idle: true}, playQuiet},
		"load":    {worldOptions{bridges: 2}, playLoad},
		"cost":    {worldOptions{bridges: 1, idle: true}, playCost},
		"churn":   {worldOptions{bridges: 1, idle: true, lean: true}, playChurn},
		"hostile": {worldOptions{bridges: 1, idle: true, lean: true, direct: true, memory: hostileMemory, args: []string{"--enable-writes"}}, playHostile},
	}
}

// run plays the scenario once for every number of NATS servers, and prints a
// line for each and the last one for all.
func run(ctx context.Context, cfg settings, stdout io.Writer) error {
	bin, err := exec.LookPath(cfg.bin)
	if err != nil {
		return fmt.Errorf("%w: build it with `make build`", err)
	}
	cfg.bin = bin
	chosen := scenarios()[cfg.scenario]
	out := newScreen(stdout)
	out.line("chaos: scenario %s, seed %d (again with CHAOS_SEED=%d)", cfg.scenario, cfg.seed, cfg.seed)
	chosen.world.rivals = cfg.rivals
	if cfg.rivals {
		out.line("the bridges elect no leader")
	}
	var all outcome
	for _, servers := range cfg.servers {
		opts := chosen.world
		opts.servers = servers
		found, err := playIn(ctx, cfg, opts, chosen.play, out)
		if err != nil {
			return err
		}
		all.add(found)
		if len(cfg.servers) > 1 {
			out.line("")
			out.line("%s: %s", many(servers, "NATS server"), found.line(cfg.seed))
		}
	}
	out.line("%s", all.line(cfg.seed))
	for _, line := range all.last {
		out.line("%s", line)
	}
	if !all.ok() {
		return errBroken
	}
	return nil
}

// playIn plays a scenario in a world of its own and checks what is left of it.
func playIn(ctx context.Context, cfg settings, opts worldOptions, play func(context.Context, *world) error, out *screen) (found outcome, err error) {
	w, err := newWorld(ctx, cfg, opts, out)
	if err != nil {
		return outcome{}, err
	}
	defer func() {
		clean := errors.Is(err, context.Canceled) || err == nil && found.ok()
		err = errors.Join(err, w.close(clean))
	}()
	if err := play(ctx, w); err != nil {
		return outcome{}, w.explain(err)
	}
	if opts.lean {
		return outcome{failures: w.failures, last: w.last}, nil
	}
	found, err = w.verdict(ctx)
	if err != nil {
		return outcome{}, w.explain(err)
	}
	return found, nil
}
