// Command demo shows appbridge at work on real parts: it starts etcd and
// kube-apiserver, runs `appbridge serve --nats-embedded` against them, moves
// sample Knative Services through the states they go through in a cluster, and
// prints every event as it comes out of the stream, and the log of an app. Then
// it prints how to look further with the nats command-line client, and goes on
// until Ctrl-C.
//
//	demo --bin bin/appbridge          stay up
//	demo --bin bin/appbridge --once   check what was seen, then exit 0 or 1
//
// DEMO_ONCE=1 in the environment is --once. KUBEBUILDER_ASSETS names a folder with etcd and
// kube-apiserver to use instead of those that testdata/cluster builds.
//
// Where `make knative-bin` has built Knative, the services are Knative's: its own controllers and
// its webhook take them through their states, and every event is checked against what etcd held.
// KNATIVE=1 needs it, KNATIVE=0 does without.
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
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
)

func main() {
	bin := flag.String("bin", "bin/appbridge", "the appbridge binary to show")
	once := flag.Bool("once", os.Getenv("DEMO_ONCE") == "1", "check what was seen and exit")
	wanted := flag.String("knative", os.Getenv("KNATIVE"), "1: on Knative itself; 0: without it; empty: where it is built")
	flag.Parse()

	// The first signal ends the demo in good order, which takes seconds; so a
	// second one changes nothing.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, *bin, *once, *wanted, os.Stdout)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case err == nil:
	case interrupted && errors.Is(err, context.Canceled):
		if *once {
			os.Exit(1) // nothing was checked
		}
	default:
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

// run is the demo from the first process to the last. What it starts it stops,
// whatever the outcome.
func run(ctx context.Context, bin string, once bool, wanted string, stdout io.Writer) (err error) {
	out := newScreen(stdout)
	if bin, err = exec.LookPath(bin); err != nil {
		return fmt.Errorf("%w: build it with `make build`", err)
	}
	itself, err := useKnative(wanted)
	if err != nil {
		return err
	}

	out.heading("Starting etcd and kube-apiserver with Knative's resource definitions")
	cluster, err := testenv.Start(ctx, testenv.Options{Assets: os.Getenv("KUBEBUILDER_ASSETS")})
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, cluster.Stop())
		if err == nil || errors.Is(err, context.Canceled) {
			out.note("Everything is stopped and removed.")
		}
	}()
	out.note("%s", cluster.Config.Host)
	on, err := setStage(ctx, cluster, itself, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, on.stop()) }()

	out.heading("Starting appbridge serve --nats-embedded")
	bridge, err := startBridge(ctx, cluster, bin)
	if err != nil {
		return err
	}
	defer func() {
		out.heading("Stopping")
		err = errors.Join(err, bridge.stop())
	}()
	ctx, cancel := bridge.context(ctx)
	defer cancel()
	out.note("NATS %s, ready at http://%s/readyz", bridge.natsURL, bridge.http)

	w, err := watchEvents(ctx, bridge.natsURL, out)
	if err != nil {
		return bridge.explain(ctx, err)
	}
	defer func() { err = errors.Join(err, w.close()) }()

	out.heading("Knative Services change; each event as it arrives in the stream")
	t, err := newTour(on, cluster, w, out, pace(once))
	if err != nil {
		return err
	}
	if err := t.run(ctx); err != nil {
		return bridge.explain(ctx, err)
	}

	out.heading("The log of " + shopApp + ", two replicas, in one answer")
	shop, err := t.startShop(ctx)
	if err != nil {
		return bridge.explain(ctx, err)
	}
	if err := shop.show(ctx, w.conn, out); err != nil {
		return bridge.explain(ctx, err)
	}
	if once {
		return bridge.explain(ctx, check(ctx, t, out))
	}
	cli, err := testenv.NATSCLI()
	if err != nil {
		cli = "nats" // make demo builds none when there is one
	}
	out.heading("Look further with the nats client, from another terminal")
	out.guide(cli, bridge, shop)
	return bridge.explain(ctx, t.keepGoing(ctx, shop))
}

// useKnative reports whether the story takes place on Knative.
func useKnative(wanted string) (bool, error) {
	switch wanted {
	case "0", "false":
		return false, nil
	case "", "1", "true":
		_, built := testenv.KnativeDir()
		_, pods := testenv.Kwok()
		err := errors.Join(built, pods)
		if wanted == "" {
			return err == nil, nil
		}
		return true, err
	default:
		return false, fmt.Errorf("KNATIVE is %q, want 1 or 0", wanted)
	}
}

func setStage(ctx context.Context, cluster *testenv.Cluster, itself bool, out *screen) (stage, error) {
	if !itself {
		return play(ctx, cluster)
	}
	return startKnative(ctx, cluster, out)
}

// pace is how long a reader gets between two changes.
func pace(once bool) time.Duration {
	if once {
		return 0
	}
	return 700 * time.Millisecond
}
