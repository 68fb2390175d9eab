package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// randomFaults are all that may happen to so many NATS servers.
func randomFaults(servers int) []fault {
	return slices.Concat(bridgeFaults(), natsFaults(servers), kubeFaults(), storageFaults(), rollbackFaults(), removalFaults(), limitFaults(servers), lastingFaults(servers), mutedFaults(), listFaults())
}

// rivalFaults are those for bridges that elect no leader. After a loss nothing but the Lease knows what
// was acknowledged, and what a hand or a mute fault has changed is found by whichever looks first.
func rivalFaults(servers int) []fault {
	return slices.DeleteFunc(slices.Concat(bridgeFaults(), natsFaults(servers), kubeFaults()), func(f fault) bool {
		return strings.Contains(f.name, "Lease")
	})
}

// mutedFaults are all that no part reports.
func mutedFaults() []fault { return slices.Concat(swallowFaults(), muteFaults(), handFaults()) }

// playRandom has every kind of fault happen, at random.
func playRandom(ctx context.Context, w *world) error {
	w.out.heading("Making trouble for %s: %d apps, %d changes a second", w.cfg.length, w.cfg.apps, w.cfg.rate)
	all := randomFaults(w.nats.Size())
	if w.rivals {
		all = rivalFaults(w.nats.Size())
	}
	faults := slices.DeleteFunc(all, func(f fault) bool {
		return w.cfg.faults != nil && !w.cfg.faults.MatchString(f.name)
	})
	if err := poll(ctx, startPatience, func(context.Context) string {
		if apps := len(w.events.apps()); apps < min(w.cfg.apps, 10) {
			return fmt.Sprintf("only %d apps have events", apps)
		}
		return ""
	}); err != nil {
		return err
	}
	if err := w.calm.create(ctx); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(w.cfg.seed, uint64(1000+w.nats.Size())))
	return w.torment(ctx, rng, faults, w.cfg.length)
}
