package main

import (
	"context"
	"fmt"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// playQuiet lets the bridges run over apps that do not change.
func playQuiet(ctx context.Context, w *world) error {
	w.out.heading("Nothing happens for %s: %d apps", w.cfg.length, w.cfg.apps)
	if err := w.load.createAll(ctx); err != nil {
		return err
	}
	if err := w.calm.create(ctx); err != nil {
		return err
	}
	return w.steady(ctx)
}

// playLoad lets them run under load, without a fault.
func playLoad(ctx context.Context, w *world) error {
	w.out.heading("Load without a fault for %s: %d apps, %d changes a second", w.cfg.length, w.cfg.apps, w.cfg.rate)
	return w.steady(ctx)
}

// steady waits for the length of the run, and counts the rounds of the audits.
func (w *world) steady(ctx context.Context) error {
	if !w.audits {
		w.out.now("this appbridge has no --audit-interval: it does not compare while it runs")
	}
	before, began := w.rounds(), time.Now()
	if err := testenv.Pause(ctx, w.cfg.length); err != nil {
		return err
	}
	w.steadySeconds += time.Since(began).Seconds()
	w.steadyRounds += w.rounds() - before
	return nil
}

// rounds are the complete rounds of all audits.
func (w *world) rounds() (n float64) {
	for _, b := range w.bridges {
		n += b.total(metricRounds)
	}
	return n
}

// steadyLine is the outcome in one line. There has to be a round for at least a
// quarter of the intervals: else there was nothing to find a difference.
func steadyLine(scenario string, seconds, rounds float64, interval time.Duration, findings int) (line string, ok bool) {
	line = fmt.Sprintf("%s: seconds=%.0f rounds=%.0f findings=%d", scenario, seconds, rounds, findings)
	return line, findings == 0 && rounds >= seconds/interval.Seconds()/4 && rounds >= 1
}
