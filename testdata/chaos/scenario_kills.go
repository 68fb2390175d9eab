package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// playKills kills the one bridge there is, again and again: sometimes before
// it is ready, sometimes a moment after.
func playKills(ctx context.Context, w *world) error {
	w.out.heading("Killing the bridge %d times: %d apps, %d changes a second", w.cfg.count, w.cfg.apps, w.cfg.rate)
	rng := rand.New(rand.NewPCG(w.cfg.seed, 2000))
	b := w.bridges[0]
	early := 0
	for n := range w.cfg.count {
		i := &injection{world: w, rng: rng, end: time.Now().Add(time.Minute)}
		w.countFault()
		if rng.IntN(4) > 0 {
			if err := poll(ctx, startPatience, w.led); err != nil {
				return err
			}
		} else {
			early++
		}
		if err := testenv.Pause(ctx, i.between(0, 1500*time.Millisecond)); err != nil {
			return err
		}
		g := i.gap(ctx, "the bridge was killed")
		if err := errors.Join(b.kill(), b.start()); err != nil {
			return err
		}
		g.heal()
		if (n+1)%10 == 0 {
			w.out.now("killed %d times, %d of them without waiting until it was ready", n+1, early)
		}
	}
	return poll(ctx, startPatience, w.led)
}
