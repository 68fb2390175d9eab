// Command histories judges a reader of apps and events: it plays random histories to it, kills and
// restarts it meanwhile, and compares what it reports with what the stream and the bucket held.
//
//	histories --count 1000 --seed 1                 the reader of package appwatch
//	histories --count 1000 -- ./reader --my-flags   any reader that prints such lines
//	histories reader --nats-url …                   the first as a process
//
// README.md describes the lines and the arguments. The last line has the figures; the exit code is 0
// if nothing was missed, nothing came twice, and every snapshot was exact.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/judge"
	"github.com/appbridge/appbridge/testdata/histories/player"
	"github.com/appbridge/appbridge/testdata/histories/reader"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	command := judgeReader
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "reader" {
		command, args = runReader, args[1:]
	}
	if err := command(ctx, args); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "histories:", err)
		return 1
	}
	return 0
}

func runReader(ctx context.Context, args []string) error {
	var o reader.Options
	flags := flag.NewFlagSet("histories reader", flag.ContinueOnError)
	flags.StringVar(&o.URL, "nats-url", "nats://127.0.0.1:4222", "the server")
	flags.StringVar(&o.Prefix, "prefix", subjects.DefaultPrefix, "of the subjects")
	flags.StringVar(&o.Stream, "stream", subjects.DefaultStream, "the stream with the events")
	flags.StringVar(&o.Bucket, "bucket", subjects.DefaultBucket, "the bucket with the apps")
	flags.StringVar(&o.BucketStream, "bucket-stream", "", "the bucket's stream, if it has another name")
	flags.StringVar(&o.From, "from", "", "the position of the last line that was processed")
	flags.BoolVar(&o.Latest, "latest", false, "only the newest state of each app")
	flags.BoolVar(&o.HeadersOnly, "headers-only", false, "no Apps")
	flags.BoolVar(&o.NoSnapshot, "no-snapshot", false, "never read the bucket")
	flags.Func("since", "without --from, begin with what was stored at this time or later", func(s string) (err error) {
		o.Since, err = time.Parse(time.RFC3339Nano, s)
		return err
	})
	flags.Func("kind", "only events of this kind (may be repeated)", func(s string) error {
		o.Kinds = append(o.Kinds, subjects.EventKind(s))
		return nil
	})
	flags.Func("status", "only apps with this status (may be repeated)", func(s string) error {
		o.Statuses = append(o.Statuses, s)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	parts := append(strings.SplitN(flags.Arg(0), "/", 3), "", "")
	o.Project, o.Domain, o.App = parts[0], parts[1], parts[2]
	return reader.Run(ctx, o, os.Stdout)
}

func judgeReader(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("histories", flag.ContinueOnError)
	seed := flags.Uint64("seed", 1, "the first history; the next ones count on")
	count := flags.Int("count", 1000, "how many histories")
	parallel := flags.Int("parallel", 4*runtime.GOMAXPROCS(0), "how many at one time")
	dir := flags.String("dir", "", "where the servers store (default: a temporary folder)")
	patience := flags.Duration("patience", time.Minute, "how long a reader may make no progress")
	resume := flags.Duration("resume", 0, "fail if 1 of 100 readers takes longer to go on (0: any time)")
	trace := flags.Bool("trace", false, "print the steps and the lines of a wrong history, without their Apps")
	verbose := flags.Bool("v", false, "print a line for each history")
	if err := flags.Parse(args); err != nil {
		return err
	}
	read := readerFunc(reader.Run)
	if flags.NArg() > 0 {
		read = process(flags.Args())
	}
	temp, err := os.MkdirTemp(*dir, "histories-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()

	t := &total{began: time.Now(), first: *seed}
	seeds := make(chan uint64)
	var workers sync.WaitGroup
	for range *parallel {
		workers.Go(func() {
			for s := range seeds {
				o, err := play(ctx, s, temp, read, *patience)
				if t.add(o, err); err != nil && ctx.Err() == nil {
					fmt.Printf("seed %d: the harness failed: %v\n", s, err)
				}
				for _, text := range o.slow {
					fmt.Printf("seed %d: slow: %s\n", s, text)
				}
				if len(o.problems) > 0 && *trace {
					fmt.Print(o.trace.text.String())
				}
				if len(o.problems) > 0 || *verbose {
					fmt.Printf("%s\n  took %s, %d events\n", o, o.took.Round(time.Millisecond), o.counts.Events)
				}
			}
		})
	}
	for i := range uint64(*count) {
		select {
		case seeds <- *seed + i:
		case <-ctx.Done():
		}
	}
	close(seeds)
	workers.Wait()
	fmt.Println(t)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if at := t.resumed(0.99); *resume > 0 && at > *resume {
		return errors.Join(t.err(), fmt.Errorf("1 of 100 readers took %s or more to go on", at))
	}
	return t.err()
}

// total is the sum of outcomes.
type total struct {
	began time.Time
	first uint64

	mu        sync.Mutex
	histories int
	failed    int // in the harness
	wrong     []uint64
	problems  map[judge.Kind]int
	views     map[player.View]int
	counts    judge.Counts
	resumes   []time.Duration
}

func (t *total) add(o outcome, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.failed++
		return
	}
	if t.problems == nil {
		t.problems, t.views = map[judge.Kind]int{}, map[player.View]int{}
	}
	t.histories++
	t.views[o.view]++
	for _, p := range o.problems {
		t.problems[p.Kind]++
	}
	if len(o.problems) > 0 {
		t.wrong = append(t.wrong, o.seed)
	}
	t.counts.Events += o.counts.Events
	t.counts.States += o.counts.States
	t.counts.Marks += o.counts.Marks
	t.counts.Losses += o.counts.Losses
	t.counts.Restarts += o.counts.Restarts
	t.counts.Processes += o.counts.Processes
	t.counts.Skipped += o.counts.Skipped
	t.resumes = append(t.resumes, o.resumes...)
}

// resumeBound is what the time to resume is compared with.
const resumeBound = time.Second

// String is the last line.
func (t *total) String() string {
	slices.Sort(t.resumes)
	late := len(t.resumes)
	for late > 0 && t.resumes[late-1] > resumeBound {
		late--
	}
	p := t.problems
	return fmt.Sprintf("histories: seeds=%d-%d histories=%d (mirror=%d transformed=%d) processes=%d events=%d states=%d snapshots=%d losses=%d restarts=%d "+
		"missed=%d twice=%d order=%d snapshot=%d content=%d stale=%d false=%d stuck=%d wrong=%v failed=%d "+
		"resume n=%d p50=%s p99=%s max=%s over1s=%d took=%s",
		t.first, t.first+uint64(max(t.histories+t.failed, 1))-1, t.histories, t.views[player.Mirror], t.views[player.Transformed],
		t.counts.Processes, t.counts.Events, t.counts.States, t.counts.Marks, t.counts.Losses, t.counts.Restarts,
		p[judge.Missed], p[judge.Twice], p[judge.Order], p[judge.Snapshot], p[judge.Content], p[judge.Stale], p[judge.False], p[judge.Stuck], t.wrong, t.failed,
		len(t.resumes), t.resumed(0.5), t.resumed(0.99), t.resumed(1), len(t.resumes)-late, time.Since(t.began).Round(time.Second))
}

// resumed is the time within which a share of the readers went on.
func (t *total) resumed(share float64) time.Duration {
	if len(t.resumes) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(t.resumes))[int(share*float64(len(t.resumes)-1))].Round(time.Millisecond)
}

func (t *total) err() error {
	switch {
	case t.failed > 0:
		return fmt.Errorf("%d histories could not be played", t.failed)
	case len(t.wrong) > 0:
		return fmt.Errorf("the reader is wrong in %d of %d histories", len(t.wrong), t.histories)
	}
	return nil
}
