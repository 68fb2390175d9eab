package knative_test

import (
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"
)

// result is the row of a scenario.
type result struct {
	scenario string
	tally
	took time.Duration
}

// results is the table of the run.
var results table //nolint:gochecknoglobals // every test adds to it, TestMain prints it

type table struct {
	mu   sync.Mutex
	rows []result
}

func (t *table) add(r result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, r)
}

// print writes the table, if there is one.
func (t *table) print(out io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.rows) == 0 {
		return
	}
	columns := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name string, sum tally, took time.Duration) {
		fmt.Fprintf(columns, "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", name, sum.versions, sum.revisions, sum.events, sum.counts, sum.gap, took.Round(100*time.Millisecond))
	}
	fmt.Fprintln(columns, "scenario\tversions of Services\tof Revisions\tevents\tof replicas or reasons alone\tin a gap\ttime")
	var sum tally
	var took time.Duration
	for _, r := range t.rows {
		row(r.scenario, r.tally, r.took)
		sum, took = sum.plus(r.tally), took+r.took
	}
	row("all", sum, took)
	_ = columns.Flush()
}
