package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
)

const leaseName = "appbridge"

// bridgeFaults happen to the processes of the bridges.
func bridgeFaults() []fault {
	return []fault{
		{name: "kill the leader", blinds: true, weight: 3, parts: []part{bridgesPart}, takes: 3 * time.Second, play: killLeader},
		{name: "kill both bridges", blinds: true, weight: 1, parts: []part{bridgesPart}, takes: 3 * time.Second, play: killAll},
		{name: "kill the standby", weight: 1, parts: []part{bridgesPart}, takes: 3 * time.Second, play: killStandby},
		{name: "restart the bridges", blinds: true, weight: 2, parts: []part{bridgesPart}, takes: 15 * time.Second, play: rollBridges},
		{name: "pause the leader past its Lease", blinds: true, weight: 2, parts: []part{bridgesPart}, takes: 21 * time.Second, play: pausePastLease},
		{name: "take the Lease away", blinds: true, weight: 2, parts: []part{bridgesPart}, takes: 6 * time.Second, play: takeLease},
		{name: "pause the leader", weight: 3, parts: []part{bridgesPart}, takes: 4 * time.Second, play: pauseShortly},
	}
}

// anyLeader is the bridge that says it leads, else any; and what it says.
func (i *injection) anyLeader(ctx context.Context) (*bridge, status) {
	b := i.bridges[i.rng.IntN(len(i.bridges))]
	s := b.look(ctx)
	for _, other := range i.bridges {
		if other == b || s.leads() {
			continue
		}
		if o := other.look(ctx); o.leads() {
			b, s = other, o
		}
	}
	return b, s
}

// gap opens a gap from now on.
func (i *injection) gap(ctx context.Context, format string, args ...any) *gap {
	return i.gaps.open(ctx, fmt.Sprintf(format, args...))
}

func killLeader(ctx context.Context, i *injection) error {
	b, s := i.anyLeader(ctx)
	down := i.between(0, 2*time.Second)
	i.say("kill bridge %s, %s; back after %s", b.name, role(s), show(down))
	defer i.gap(ctx, "bridge %s was killed", b.name).heal()
	err := b.kill()
	return errors.Join(err, testenv.Pause(ctx, down), b.start())
}

func role(s status) string {
	switch {
	case s.leads():
		return "which leads"
	case !s.answered:
		return "which does not answer"
	default:
		return "which does not lead"
	}
}

// show is a length of time for a reader.
func show(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func killAll(ctx context.Context, i *injection) error {
	down := i.between(0, 4*time.Second)
	i.say("kill both bridges; back after %s", show(down))
	defer i.gap(ctx, "both bridges were killed").heal()
	var errs []error
	for _, b := range i.bridges {
		errs = append(errs, b.kill())
	}
	errs = append(errs, testenv.Pause(ctx, down))
	for _, b := range i.bridges {
		errs = append(errs, b.start())
	}
	return errors.Join(errs...)
}

// killStandby makes no gap: the other one goes on leading.
func killStandby(ctx context.Context, i *injection) error {
	leader, why := i.leading(ctx)
	if leader == nil {
		i.note("no bridge is killed: %s", why)
		return nil
	}
	for _, b := range i.bridges {
		if b != leader {
			down := i.between(0, 2*time.Second)
			i.say("kill bridge %s, which stands by; back after %s", b.name, show(down))
			return errors.Join(b.kill(), testenv.Pause(ctx, down), b.start())
		}
	}
	return nil
}

// rollBridges is what an upgrade does: the standby first, then the leader.
func rollBridges(ctx context.Context, i *injection) error {
	leader, _ := i.anyLeader(ctx)
	i.say("restart both bridges in good order, %s last", leader.name)
	defer i.gap(ctx, "both bridges were restarted").heal()
	for _, b := range i.bridges {
		if b == leader {
			continue
		}
		b.stop()
		if err := errors.Join(b.start(), testenv.Pause(ctx, time.Second)); err != nil {
			return err
		}
	}
	leader.stop()
	return leader.start()
}

func pausePastLease(ctx context.Context, i *injection) error {
	b, s := i.anyLeader(ctx)
	length := i.between(18*time.Second, 20*time.Second)
	i.say("pause bridge %s, %s, for %s: past its Lease", b.name, role(s), show(length))
	defer i.gap(ctx, "bridge %s was paused past its Lease", b.name).heal()
	return i.paused(ctx, b, length)
}

func pauseShortly(ctx context.Context, i *injection) error {
	b, s := i.anyLeader(ctx)
	length := i.between(2*time.Second, 5*time.Second)
	i.say("pause bridge %s, %s, for %s", b.name, role(s), show(length))
	return i.paused(ctx, b, length)
}

// takeLease lets the standby lead at once, while the leader takes itself for it
// until it looks.
func takeLease(ctx context.Context, i *injection) error {
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: testenv.DefaultNamespace, Name: leaseName}
	defer i.gap(ctx, "the Lease was taken away").heal()
	limit, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := i.cluster.Client.Get(limit, key, lease); err != nil {
			return err
		}
		lease.Spec.HolderIdentity = nil
		return i.cluster.Client.Update(limit, lease)
	})
	if err != nil {
		i.note("the Lease could not be taken away: %v", err)
		return ctx.Err()
	}
	i.say("take the Lease away from whoever holds it")
	return nil
}

func (i *injection) paused(ctx context.Context, b *bridge, length time.Duration) error {
	err := b.pause()
	return errors.Join(err, testenv.Pause(ctx, length), b.resume())
}
