package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// playMute plants mute faults, one after the other. Each has to be found and healed
// by the bridges: nothing else does.
func playMute(ctx context.Context, w *world) error {
	w.out.heading("Planting %d mute faults, one after the other: %d apps, %d changes a second beside them", w.cfg.count, w.cfg.apps, w.cfg.rate)
	if !w.audits {
		w.out.now("this appbridge has no --audit-interval: it does not compare while it runs")
	}
	if err := w.calm.create(ctx); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(w.cfg.seed, 4000))
	faults := slices.DeleteFunc(mutedFaults(), func(f fault) bool {
		return f.loaded || w.cfg.faults != nil && !w.cfg.faults.MatchString(f.name)
	})
	if len(faults) == 0 {
		return errors.New("no mute fault has such a name")
	}
	var order []int
	kinds := map[string]bool{}
	for n := range w.cfg.count {
		if len(order) == 0 {
			order = rng.Perm(len(faults))
		}
		f := faults[order[0]]
		order = order[1:]
		p, err := w.plantOne(ctx, rng, f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		c := p.now()
		kinds[f.name] = true
		w.out.now("    %2d %-52s %s", n+1, f.name, c.String())
		if why := c.complete(); why != "" {
			w.out.now("       NOT SO: %s", why)
		}
		if c.healed.IsZero() {
			if err := w.startAfresh(ctx); err != nil {
				return err
			}
		}
		w.mute = append(w.mute, plantedOne{f.name, c})
	}
	w.kinds = len(kinds)
	return nil
}

// plantedOne is a line of the table.
type plantedOne struct {
	name   string
	course course
}

// plantTries is how often a fault that could not be planted is tried again.
const (
	plantTries = 5
	plantRest  = 30 * time.Second
)

// plantOne plants a fault in a world in which nothing else is wrong, and waits until
// its course is over.
func (w *world) plantOne(ctx context.Context, rng *rand.Rand, f fault) (*plant, error) {
	for range plantTries {
		_ = poll(ctx, plantRest, w.recovered) // what was not healed shows in the next one's line
		before := len(w.plants.list())
		in := &injection{world: w, rng: rng, end: time.Now().Add(time.Hour)}
		end := w.plants.begin(in)
		err := f.play(ctx, in)
		end()
		if err != nil {
			return nil, err
		}
		if all := w.plants.list(); len(all) > before {
			return all[before], all[before].wait(ctx)
		}
	}
	return nil, fmt.Errorf("it could not be planted in %d tries", plantTries)
}

// startAfresh starts the bridges again after a fault that they did not heal, so that
// the next one is judged by itself.
func (w *world) startAfresh(ctx context.Context) error {
	w.out.now("       the bridges start again, so that the next fault is planted in a world that is whole")
	defer w.gaps.open(ctx, "bridges that had not healed a fault were started again").heal()
	var errs []error
	for _, b := range w.bridges {
		b.mute.Heal()
		errs = append(errs, b.kill())
	}
	for _, b := range w.bridges {
		errs = append(errs, b.start())
	}
	return errors.Join(append(errs, poll(ctx, startPatience, w.led))...)
}

// muteLine is the outcome of the scenario in one line.
func muteLine(all []plantedOne, kinds, falseFindings int) (line string, ok bool) {
	found, healed := 0, 0
	ok = len(all) > 0 && falseFindings == 0
	for _, one := range all {
		if one.course.effect && !one.course.found.IsZero() {
			found++
		}
		if one.course.effect && !one.course.healed.IsZero() {
			healed++
		}
		ok = ok && one.course.complete() == ""
	}
	return fmt.Sprintf("mute: planted=%d found=%d healed=%d kinds=%d false=%d", len(all), found, healed, kinds, falseFindings), ok
}
