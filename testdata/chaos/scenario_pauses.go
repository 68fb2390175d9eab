package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// playPauses has the leading bridge fall asleep with events on their way, again
// and again, and wake up when the other one has long gone on: what it then
// sends is stale, and has to be refused.
func playPauses(ctx context.Context, w *world) error {
	w.out.heading("Pausing the leading bridge %d times with events on their way: %d apps, %d changes a second", w.cfg.count, w.cfg.apps, w.cfg.rate)
	rng := rand.New(rand.NewPCG(w.cfg.seed, 3000))
	conflicts := func() (n float64) {
		for _, b := range w.bridges {
			n += b.total(metricConflicts)
		}
		return n
	}
	before := conflicts()
	for range w.cfg.count {
		i := &injection{world: w, rng: rng}
		if err := i.pauseWithEvents(ctx); err != nil {
			return err
		}
	}
	refused := conflicts() - before
	w.out.now("%.0f stale events were refused", refused)
	if refused == 0 {
		w.fail("no append was refused: the paused bridges had nothing stale to send, so nothing was tried")
	}
	return nil
}

func (i *injection) pauseWithEvents(ctx context.Context) error {
	var b *bridge
	if err := poll(ctx, startPatience, func(ctx context.Context) (why string) {
		b, why = i.leading(ctx)
		return why
	}); err != nil {
		return err
	}
	other := i.bridges[0]
	if other == b {
		other = i.bridges[1]
	}
	if err := b.hangNATS(); err != nil {
		return err
	}
	var waiting float64
	err := poll(ctx, startPatience, func(ctx context.Context) string {
		if waiting = b.look(ctx).metrics[metricPending]; waiting < 20 {
			return fmt.Sprintf("only %.0f changes wait for NATS", waiting)
		}
		return ""
	})
	defer i.gap(ctx, "bridge %s was paused with events on their way", b.name).heal()
	err = errors.Join(err, b.pause(), b.healNATS())
	if err != nil {
		return errors.Join(err, b.resume())
	}
	i.say("bridge %s stands still with %.0f changes on their way", b.name, waiting)
	asleep := time.Now()
	revision := i.history.Seen()
	err = poll(ctx, startPatience, func(ctx context.Context) string {
		if s := other.look(ctx); !s.leads() || !s.ready {
			return fmt.Sprintf("bridge %s does not take over", other.name)
		}
		return ""
	})
	if err == nil {
		err = i.toldUpTo(ctx, revision)
	}
	slept := time.Since(asleep)
	if err = errors.Join(err, b.resume()); err != nil {
		return err
	}
	// It has noticed when it stands by.
	err = poll(ctx, startPatience, func(ctx context.Context) string {
		if s := b.look(ctx); !s.answered || s.leads() {
			return fmt.Sprintf("bridge %s still takes itself for the leader", b.name)
		}
		return ""
	})
	i.note("%s went on, %s was woken after %s and noticed", other.name, b.name, show(slept))
	return err
}
