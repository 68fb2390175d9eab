package main

import (
	"context"
	"errors"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	smallPayload = 16 << 10
	// smallStore is less than what is stored, so that nothing more is taken.
	smallStore = 4 << 10
)

// limitFaults are limits of the NATS servers that a restart brings, and that
// another one takes back; and a restart below a large bucket.
func limitFaults(servers int) []fault {
	faults := []fault{
		{name: "lower max_payload", weight: 24, parts: everything, takes: 12 * time.Second, play: lowerPayload},
		{name: "fill JetStream's disk", weight: 24, parts: everything, takes: 10 * time.Second, play: fillDisk},
	}
	if servers < 3 {
		return faults
	}
	return append(faults,
		fault{name: "restart all NATS servers in turn, with a large bucket", weight: 24, parts: everything, takes: 20 * time.Second, play: rollLargeBucket},
	)
}

// limited restarts all NATS servers with limits, and at the end without.
func (i *injection) limited(ctx context.Context, limits testenv.NATSLimits, meanwhile func(context.Context) error) error {
	err := i.restartWith(ctx, limits)
	if err == nil {
		err = meanwhile(ctx)
	}
	return errors.Join(err, i.restartWith(ctx, testenv.NATSLimits{}), i.back(ctx))
}

func (i *injection) restartWith(ctx context.Context, limits testenv.NATSLimits) error {
	errs := []error{i.nats.SetLimits(limits)}
	for server := range i.nats.Size() {
		errs = append(errs, i.nats.Stop(server))
	}
	return errors.Join(append(errs, i.startAll(ctx, nil))...)
}

// limiting has the servers take limits while something happens, and at the end none.
type limiting func(context.Context, testenv.NATSLimits, func(context.Context) error) error

func lowerPayload(ctx context.Context, i *injection) error {
	return i.smallerPayload(ctx, "restart", i.limited)
}

// reloadPayload is lowerPayload without a restart: connections stay.
func reloadPayload(ctx context.Context, i *injection) error {
	return i.smallerPayload(ctx, "reload", i.limitedByReload)
}

// smallerPayload makes events and entries too large that were not: what fits has
// to be published without what may be left out.
func (i *injection) smallerPayload(ctx context.Context, how string, limit limiting) error {
	length := i.between(3*time.Second, 8*time.Second)
	i.say("%s NATS with max_payload %d below events and entries of twice that, for %s", how, smallPayload, show(length))
	i.load.bulk.touch(ctx)
	err := limit(ctx, testenv.NATSLimits{MaxPayload: smallPayload}, func(ctx context.Context) error {
		i.load.bulk.remove(ctx, 3)
		return i.load.bulk.keep(ctx, length)
	})
	i.load.bulk.touch(ctx) // so that nothing stays without what was left out
	return err
}

// fillDisk has JetStream refuse whatever it would have to store.
func fillDisk(ctx context.Context, i *injection) error {
	length := i.between(2*time.Second, 6*time.Second)
	limits, what := testenv.NATSLimits{FileStore: smallStore}, "max_file_store"
	if i.rng.IntN(2) == 0 {
		limits, what = testenv.NATSLimits{AccountStore: smallStore}, "the account's disk limit"
	}
	i.say("restart NATS with %s %d, for %s", what, smallStore, show(length))
	return i.limited(ctx, limits, func(ctx context.Context) error { return testenv.Pause(ctx, length) })
}

// rollLargeBucket restarts one server after the other while a replica may still
// have to catch up with a large bucket.
func rollLargeBucket(ctx context.Context, i *injection) error {
	i.say("restart all NATS servers, one after the other, with a large bucket")
	i.load.bulk.touch(ctx)
	for server := range i.nats.Size() {
		end := i.nats.Stop
		if i.rng.IntN(2) == 0 {
			end = i.nats.Kill
		}
		err := errors.Join(end(server), i.load.bulk.keep(ctx, time.Second), i.nats.Start(ctx, server), i.load.bulk.keep(ctx, 2*time.Second))
		if err != nil {
			return err
		}
	}
	return nil
}
