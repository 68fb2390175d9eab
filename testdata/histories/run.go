package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/judge"
	"github.com/appbridge/appbridge/testdata/histories/lines"
	"github.com/appbridge/appbridge/testdata/histories/player"
	"github.com/appbridge/appbridge/testdata/histories/reader"
)

// readerFunc is a reader: it writes lines until its context ends. That may be at any instant, and
// what it writes then is dropped.
type readerFunc func(ctx context.Context, o reader.Options, out io.Writer) error

// process runs the reader as a process, which is killed when the context ends.
func process(command []string) readerFunc {
	return func(ctx context.Context, o reader.Options, out io.Writer) error {
		cmd := exec.CommandContext(ctx, command[0], append(command[1:], o.Args()...)...)
		cmd.Stdout, cmd.Stderr = out, os.Stderr
		// The reader may be the child of a shell, of npx or of `go run`: the whole group is killed.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = leftover
		return cmd.Run()
	}
}

// leftover is how long a process outside of the reader's group may hold its output.
const leftover = 5 * time.Second

// errEnough ends a history whose reader is found wrong.
var errEnough = errors.New("the reader is wrong")

// consumer is a reader over all its processes, and its judge.
type consumer struct {
	read    readerFunc
	options reader.Options
	judge   *judge.Judge

	trace    io.Writer
	patience time.Duration // with a reader that makes no progress
	cancel   context.CancelFunc
	done     chan error // of the present process; nil without one
	failed   error      // the reader ended by itself
}

func (c *consumer) Start() error {
	if c.done != nil {
		return errors.New("the reader runs")
	}
	o := c.options
	o.From, o.Since = c.judge.Start()
	if _, err := fmt.Fprintf(c.trace, "process from %q\n", o.From); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	in, out := io.Pipe()
	read := make(chan error, 1)
	go func() {
		err := c.read(ctx, o, out)
		read <- errors.Join(err, out.CloseWithError(io.EOF))
	}()
	c.done, c.cancel = make(chan error, 1), func() {
		cancel()
		_ = in.CloseWithError(context.Canceled) // as a pipe whose reader is gone
	}
	go func(done chan error) {
		err := lines.Read(in, func(l lines.Line) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c.judge.Line(l)
			l.Object, l.Old = nil, nil
			return lines.Write(c.trace, l)
		})
		killed := ctx.Err() != nil
		cancel()
		_ = in.CloseWithError(context.Canceled)
		ended := <-read
		switch {
		case killed, errors.Is(err, context.Canceled), errors.Is(err, io.ErrClosedPipe):
			err = nil
		case err == nil:
			err = fmt.Errorf("the reader ended by itself: %v", ended) //nolint:errorlint // it may be nil
		}
		done <- err
	}(c.done)
	return nil
}

func (c *consumer) Kill() {
	if c.done == nil {
		return
	}
	c.cancel()
	c.failed = errors.Join(c.failed, <-c.done)
	c.done = nil
}

func (c *consumer) Forget() { c.judge.Forget() }

func (c *consumer) Reachable(cause string) { c.judge.Reachable(cause) }

// CaughtUp waits until the reader has delivered what the stream holds.
func (c *consumer) CaughtUp(ctx context.Context) error {
	if behind := c.until(ctx, c.judge.Behind); behind != "" {
		c.judge.End(behind, "", "")
		return errEnough
	}
	return nil
}

// until polls until nothing is wrong, and returns what still is when patience ends.
func (c *consumer) until(ctx context.Context, wrong func() string) string {
	limit, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		why := wrong()
		if why == "" || len(c.judge.Problems()) > 0 {
			return ""
		}
		select {
		case <-tick.C:
		case <-limit.Done():
			return why
		case err := <-c.done:
			c.done <- err // for Kill
			return fmt.Sprintf("%s: %v", why, err)
		}
	}
}

// outcome is what became of one history.
type outcome struct {
	seed     uint64
	view     player.View
	options  reader.Options
	since    bool
	steps    []string
	problems []judge.Problem
	counts   judge.Counts
	resumes  []time.Duration
	slow     []string
	trace    *record
	took     time.Duration
}

func (o outcome) String() string {
	var text strings.Builder
	from := ""
	if o.since {
		from = ", since a time"
	}
	fmt.Fprintf(&text, "seed %d (%s, reader %s%s):", o.seed, o.view, strings.Join(o.options.Args()[2:], " "), from)
	for _, p := range o.problems {
		fmt.Fprintf(&text, "\n  %s", p)
	}
	return text.String() + "\n  steps: " + strings.Join(o.steps, ", ")
}

// record is what happened in a history, for people.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(data []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(data)
}

// play plays one history to a reader. The error is of the harness.
func play(ctx context.Context, seed uint64, dir string, read readerFunc, patience time.Duration) (o outcome, err error) {
	began := time.Now()
	h, err := player.New(ctx, seed, filepath.Join(dir, fmt.Sprint("history-", seed)))
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	trace := &record{}
	h.Trace = trace
	names := h.Names()
	options, since := choose(seed, h)
	options.URL, options.Prefix, options.Stream = names.URL, names.Prefix, names.Stream
	options.Bucket, options.BucketStream = names.Bucket, names.BucketStream
	c := &consumer{read: read, options: options, patience: patience, trace: trace, judge: judge.New(h.Model, judge.Want{
		Project: options.Project, Domain: options.Domain, App: options.App, Kinds: options.Kinds, Statuses: options.Statuses,
		Latest: options.Latest, HeadersOnly: options.HeadersOnly, NoSnapshot: options.NoSnapshot, Since: since, Copied: h.View != player.Origin,
	})}
	defer c.Kill()
	if err = h.Play(ctx, c); err == nil {
		behind := c.until(ctx, c.judge.Behind)
		differs, unreported := "", ""
		if behind == "" {
			differs = c.until(ctx, func() string { return c.judge.Differs(h.States()) })
		}
		if behind == "" && differs == "" {
			unreported = c.until(ctx, c.judge.Unreported)
		}
		c.judge.End(behind, differs, unreported)
	}
	c.Kill()
	if errors.Is(err, errEnough) {
		err = nil
	}
	if c.failed != nil {
		c.judge.End(c.failed.Error(), "", "")
	}
	return outcome{
		seed: seed, view: h.View, options: options, since: since, steps: h.Steps, problems: c.judge.Problems(),
		counts: c.judge.Counts(), resumes: c.judge.Resumes(), slow: c.judge.Slow(), trace: trace, took: time.Since(began),
	}, err
}

// choose is what the reader of a history is started for: most often everything. since: it begins at a
// time.
func choose(seed uint64, h *player.History) (o reader.Options, since bool) {
	r := rand.New(rand.NewPCG(seed, 1))
	apps := h.Apps()
	id := apps[r.IntN(len(apps))]
	switch r.IntN(16) {
	case 0:
		o.Project = id.Project
	case 1:
		o.Project, o.Domain = id.Project, id.Domain
	case 2:
		o.Project, o.Domain, o.App = id.Project, id.Domain, id.Name
	case 3:
		o.Kinds = []subjects.EventKind{subjects.Created, subjects.Deleted}
	case 4:
		o.Statuses = []string{"FAILED", "ACTIVE"}
	case 5, 6:
		o.Latest = true
	}
	o.HeadersOnly = r.IntN(6) == 0
	if !o.Latest && r.IntN(5) == 0 {
		way := r.IntN(3)
		// A stream with sources has times of its own.
		o.NoSnapshot, since = way != 0, way != 1 && h.View != player.Transformed
	}
	return o, since
}
