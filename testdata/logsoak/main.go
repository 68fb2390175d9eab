// Command logsoak follows logs through appbridge while everything that befalls a log befalls it, and
// compares what a reader gets with what was written.
//
//	logsoak --seconds 600 --form both
//
// Each log is that of one pod on a node of its own, whose kubelet reads files with the kubelet's own
// code. A writer writes numbered lines, runs of identical ones, long ones and lines in pieces. The
// node's clock steps back and forth, stands still, or has whole seconds. Logs are rotated, containers
// start again, connections to the kubelet end or break, the reader's connection to NATS breaks, and the
// bridge is stopped and killed. The reader is client.Follow; --without has faults left out.
//
// The model knows each line and the file that it is in. A line that comes is the next one, or lines are
// missing before it, or it was there before. Where a note of the stream says so, that is a noted hole or
// repeat. Otherwise the lines are lost or repeated. A noted hole is excused only for lines in files that
// were rotated away before the line behind the hole was written, and that no follow could have brought: one
// from which the reader had lines already, and which no fault has ended. Two things that nobody can
// notice do not happen: a second rotation before a follow is in the file of the first one, and a rotation of a
// container's first file before the reader has a line of it. While no reader asks for a log it is rotated
// twice at most.
//
// The run stops when something is wrong, and prints what happened to the log before that. The last line has
// the figures: lines that came, lines lost and repeated in silence, excused holes, and notes of all kinds;
// then lines missing in the holes, noted repeats, lines out of order, and what is no line at all. The exit
// code is 0 if nothing was lost, repeated, out of order or wrong.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/testdata/testenv"
)

func main() { os.Exit(run()) }

type settings struct {
	length  time.Duration
	seed    uint64
	forms   []testenv.LogForm
	without []string
	settle  time.Duration
	holes   bool
}

// faultNames are what --without may name.
var faultNames = []string{faultClock, faultRotation, faultCut, faultContainer, faultBridge, faultNATS}

func readSettings(args []string) (settings, error) {
	cfg := settings{}
	flags := flag.NewFlagSet("logsoak", flag.ContinueOnError)
	seconds := flags.Int("seconds", 600, "how long the writers write")
	form := flags.String("form", "both", "of the log files: containerd, crio or both")
	without := flags.String("without", "", "faults that do not happen, joined by commas: "+strings.Join(faultNames, ", "))
	flags.Uint64Var(&cfg.seed, "seed", 0, "decides lines, and faults and their times (default: another one each time)")
	flags.DurationVar(&cfg.settle, "settle", time.Minute, "how long a reader may make no progress")
	flags.BoolVar(&cfg.holes, "show-holes", false, "show what happened to a log before an excused hole, too")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	cfg.length = time.Duration(*seconds) * time.Second
	if cfg.seed == 0 {
		cfg.seed = rand.Uint64()
	}
	switch *form {
	case "containerd":
		cfg.forms = []testenv.LogForm{testenv.Containerd}
	case "crio":
		cfg.forms = []testenv.LogForm{testenv.CRIO}
	case "both":
		cfg.forms = []testenv.LogForm{testenv.Containerd, testenv.CRIO}
	default:
		return cfg, fmt.Errorf("--form %s: want containerd, crio or both", *form)
	}
	if *without != "" {
		cfg.without = strings.Split(*without, ",")
	}
	for _, name := range cfg.without {
		if !slices.Contains(faultNames, name) {
			return cfg, fmt.Errorf("--without %s: want some of %s", name, strings.Join(faultNames, ", "))
		}
	}
	return cfg, nil
}

func (c settings) has(fault string) bool { return !slices.Contains(c.without, fault) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, err := readSettings(os.Args[1:])
	if err == nil {
		err = soak(ctx, cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "logsoak:", err)
		return 1
	}
	return 0
}

// soak prints the figures as the last line. The error says that they are wrong, or that the run failed.
func soak(ctx context.Context, cfg settings) (err error) {
	fmt.Printf("seed %d\n", cfg.seed)
	w, err := newWorld(ctx)
	if err != nil {
		return err
	}
	var logs []*podLog
	defer func() {
		err = errors.Join(err, w.close())
		total := figures{}
		for _, l := range logs {
			found := l.model.figures()
			fmt.Printf("%s: %s\n", l.name, found)
			total.add(found)
		}
		fmt.Printf("log-soak: %s\n", total)
		if !total.good() {
			err = errors.Join(err, errors.New("the reader did not get the log as it was written"))
		}
	}()
	for i, form := range cfg.forms {
		l, err := w.newLog(ctx, form, cfg.seed, uint64(i))
		if err != nil {
			return err
		}
		l.model.showHoles = cfg.holes
		logs = append(logs, l)
	}
	reading, end := context.WithCancel(ctx)
	defer end()
	var readers errgroup.Group
	for _, l := range logs {
		readers.Go(func() error { return l.read(reading, w.reader) })
	}
	writing, stop := context.WithTimeout(ctx, cfg.length)
	defer stop()
	writers, writing := errgroup.WithContext(writing)
	for _, l := range logs {
		writers.Go(func() error { return l.write(writing, cfg) })
		writers.Go(func() error {
			l.model.watch(writing, cfg.settle)
			stop()
			return nil
		})
	}
	writers.Go(func() error { return w.trouble(writing, cfg) })
	err = writers.Wait()
	for _, l := range logs {
		l.model.settle(ctx, cfg.settle)
	}
	end()
	return errors.Join(err, readers.Wait(), ctx.Err())
}
