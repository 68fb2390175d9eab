package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/judge"
	"github.com/appbridge/appbridge/testdata/histories/lines"
	"github.com/appbridge/appbridge/testdata/histories/reader"
)

// wrong is a reader with a fault: the right one, whose lines pass through this.
type wrong struct {
	// line takes a line and hands on what the wrong reader prints.
	line func(w *wrong, l lines.Line, print func(lines.Line))
	// begin is called when a process begins; nil: nothing.
	begin func(w *wrong, o *reader.Options, print func(lines.Line))

	// What a fault may remember: of this process, and of the consumer.
	count     int
	held      *lines.Line
	last      lines.Line // the newest event
	options   reader.Options
	copy      map[subjects.AppID]lines.Line
	armed     bool
	reconnect atomic.Bool // since the last line
}

func (w *wrong) run(ctx context.Context, o reader.Options, out io.Writer) error {
	w.count, w.held, w.armed, w.options = 0, nil, false, o
	var failed error
	printLine := func(l lines.Line) {
		if err := lines.Write(out, l); err != nil {
			failed = err
		}
	}
	if w.begin != nil {
		w.begin(w, &o, printLine)
	}
	o.Log = func(err error) {
		if err == nil {
			w.reconnect.Store(true)
		}
	}
	return reader.Run(ctx, o, writer(func(data []byte) (int, error) {
		var l lines.Line
		if err := json.Unmarshal(bytes.TrimSpace(data), &l); err != nil {
			return 0, err
		}
		w.count++
		w.line(w, l, printLine)
		w.keep(l)
		return len(data), failed
	}))
}

// keep has the wrong reader keep a copy, from which it can print a snapshot.
func (w *wrong) keep(l lines.Line) {
	switch {
	case l.Type == lines.Restart || w.copy == nil:
		w.copy = map[subjects.AppID]lines.Line{}
	case l.Type == lines.Event:
		w.last = l
	}
	switch {
	case l.Type != lines.Event && l.Type != lines.State:
	case l.Kind == subjects.Deleted:
		delete(w.copy, l.AppID())
	default:
		l.Type, l.Position, l.Old, l.Skipped = lines.State, "", nil, 0
		w.copy[l.AppID()] = l
	}
}

// filtered reports whether the reader reads some apps.
func (w *wrong) filtered() bool { return w.options.Project != "" }

type writer func([]byte) (int, error)

func (w writer) Write(data []byte) (int, error) { return w(data) }

// at is a position with another sequence, and without the check of the event there.
func at(position string, change int64) string {
	owed := ""
	if strings.HasSuffix(position, "!") {
		owed = "!"
	}
	id, text, ok := strings.Cut(strings.TrimSuffix(position, "!"), "/")
	if !ok {
		return position
	}
	text, _, _ = strings.Cut(text, ".")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return position
	}
	return id + "/" + strconv.FormatInt(max(1, n+change), 10) + owed
}

// Every fault is found by what it leads to. The right reader passes the same history with the same
// patience: what is found is the fault, and not a busy machine.
func TestPlantedFaults(t *testing.T) {
	t.Parallel()
	for i, f := range slices.Concat(faults, modeFaults) {
		if testing.Short() && i%8 > 0 {
			continue // `make test` plants them all
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			findOut(t, f.seed, f.run, f.want...)
		})
	}
}

const (
	// seeds is how many histories a fault may take to be found.
	seeds = 100
	// A reader that is wrong need not be waited for as long as one that is right.
	impatience    = 3 * time.Second
	maxImpatience = 48 * time.Second
)

// findOut plays histories to a wrong reader until one of these kinds of problems is found.
func findOut(t *testing.T, first uint64, read readerFunc, want ...judge.Kind) {
	t.Helper()
	dir := storage(t)
	played := func(seed uint64, read readerFunc, patience time.Duration) []judge.Problem {
		o, err := play(t.Context(), seed, dir, read, patience)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		return o.problems
	}
	for seed := first; seed < first+seeds; seed++ {
		for patience := impatience; patience <= maxImpatience; patience *= 2 {
			problems := played(seed, read, patience)
			i := slices.IndexFunc(problems, func(p judge.Problem) bool { return slices.Contains(want, p.Kind) })
			if i < 0 {
				break
			}
			right := played(seed, reader.Run, patience)
			if len(right) == 0 {
				t.Logf("seed %d: %s", seed, problems[i])
				return
			}
			t.Logf("seed %d: the right reader fails as well, with %s of patience: %s", seed, patience, right[0])
		}
	}
	t.Error("it was not found")
}

// A reader of the exact start and nothing more is found out: it knows nothing of losses and removals.
func TestSimpleReaderIsFoundOut(t *testing.T) {
	t.Parallel()
	findOut(t, 1, simple, judge.Missed, judge.Stale)
}
