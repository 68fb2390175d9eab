package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/testdata/testenv"
)

const mebibyte = 1 << 20

// playOutage takes NATS away for minutes while very many changes happen, and
// watches what they cost the bridge.
func playOutage(ctx context.Context, w *world) error {
	w.out.heading("Creating %d apps", w.cfg.apps)
	if err := w.load.createAll(ctx); err != nil {
		return err
	}
	if err := w.settled(ctx, settlePatience); err != nil {
		return fmt.Errorf("before the outage: %w", err)
	}
	b := w.bridges[0]
	before, err := memoryOf(b)
	if err != nil {
		return err
	}
	w.out.heading("Stopping NATS for %s, with %d changes meanwhile", w.cfg.length, w.cfg.changes)
	w.countFault()
	for server := range w.nats.Size() {
		if err := w.nats.Kill(server); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := w.load.spread(ctx, w.cfg.changes, w.cfg.length); err != nil {
		return err
	}
	if err := testenv.Pause(ctx, w.cfg.length-time.Since(began)); err != nil {
		return err
	}
	during, err := memoryOf(b)
	if err != nil {
		return err
	}
	waiting := b.look(ctx)
	away := time.Since(began)
	for server := range w.nats.Size() {
		if err := w.nats.Start(ctx, server); err != nil {
			return err
		}
	}
	back := time.Now()
	w.out.now("NATS is back after %s", show(away))
	if err := w.settled(ctx, settlePatience); err != nil {
		return fmt.Errorf("after the outage: %w", err)
	}
	caughtUp := time.Since(back)
	after, err := memoryOf(b)
	if err != nil {
		return err
	}
	w.out.line("   waiting at the end  %.0f changes, estimated at %.1f MiB by the bridge", waiting.metrics[metricPending], waiting.metrics[metricBytes]/mebibyte)
	w.out.line("   merged              %.0f updates", b.total(metricMerged))
	w.out.line("   caught up           %s after NATS was back", show(caughtUp))
	w.out.line("   resident memory     %s before, %s at the end of the outage, %s at most, %s after", before.resident, during.resident, after.peak, after.resident)
	w.out.line("   --pending-bytes     %d MiB", w.cfg.pending)
	return nil
}

// memory is what a process takes.
type memory struct{ resident, peak kibibytes }

type kibibytes int64

func (k kibibytes) String() string { return fmt.Sprintf("%.0f MiB", float64(k)/1024) }

func memoryOf(b *bridge) (memory, error) {
	p := b.running()
	if p == nil {
		return memory{}, errors.New("read a bridge's memory: it is down")
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return memory{}, fmt.Errorf("read a bridge's memory: %w", err)
	}
	return parseMemory(string(text))
}

// parseMemory reads the form of /proc/<pid>/status.
func parseMemory(text string) (m memory, err error) {
	fields := map[string]*kibibytes{"VmRSS": &m.resident, "VmHWM": &m.peak}
	found := 0
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		into := fields[name]
		if into == nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return memory{}, fmt.Errorf("read a bridge's memory: %w", err)
		}
		*into = kibibytes(n)
		found++
	}
	if found < len(fields) {
		return memory{}, errors.New("read a bridge's memory: not in what the system says of it")
	}
	return m, nil
}

// createAll creates every app there is to be.
func (l *load) createAll(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, wr := range l.writers {
		g.Go(func() error {
			for _, a := range wr.apps {
				if err := wr.create(ctx, l.w.cluster, a); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// spread makes so many changes in the given time, of all apps alike: mostly
// updates, some deletions with a creation after them.
func (l *load) spread(ctx context.Context, changes int, length time.Duration) error {
	g, ctx := errgroup.WithContext(ctx)
	each := time.Duration(int64(length) * writers / int64(changes))
	for _, wr := range l.writers {
		g.Go(func() error {
			tick := time.NewTicker(each)
			defer tick.Stop()
			for n := range changes / writers {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return ctx.Err()
				}
				l.attempts.Add(1)
				do := (*writer).annotate
				if wr.rng.IntN(50) == 0 {
					do = (*writer).recreate
				}
				if err := do(wr, ctx, l.w.cluster, wr.apps[n%len(wr.apps)]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}
