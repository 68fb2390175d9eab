package main

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// shortAge is how long events are kept while retention overtakes the bucket.
const shortAge = 3 * time.Second

// removalFaults take events out of the stream while more come in, so that some
// may go before they are in the bucket.
func removalFaults() []fault {
	return []fault{
		{name: "purge the stream under load", weight: 24, parts: everything, takes: 8 * time.Second, play: purgeUnderLoad},
		{name: "let retention overtake the bucket", weight: 24, parts: everything, takes: 14 * time.Second, play: overtakeBucket},
	}
}

func purgeUnderLoad(ctx context.Context, i *injection) error {
	return i.removing(ctx, func(ctx context.Context) error {
		times := 1 + i.rng.IntN(3)
		i.say("purge the stream under load, %d times", times)
		for n := range times {
			if n > 0 {
				if err := testenv.Pause(ctx, i.between(200*time.Millisecond, time.Second)); err != nil {
					return err
				}
			}
			if err := i.attempt(ctx, func(ctx context.Context) error { return i.purge(ctx, subjects.DefaultStream) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// overtakeBucket has the bucket refuse what is written to it, while the stream
// keeps events for a short time only. A bridge sees the bucket's limit after a
// while and stops publishing; what it published until then is removed.
func overtakeBucket(ctx context.Context, i *injection) error {
	return i.removing(ctx, func(ctx context.Context) error {
		bucket := subjects.BucketStream(subjects.DefaultBucket)
		limit, what := func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 10 }, "values of 10 bytes at most"
		if i.rng.IntN(2) == 0 {
			limit, what = func(cfg *jetstream.StreamConfig) { cfg.MaxBytes = 1 }, "no more bytes" // it discards new ones
		}
		length := shortAge + i.between(2*time.Second, 5*time.Second)
		i.say("the bucket takes %s, and the stream keeps events for %s, for %s", what, show(shortAge), show(length))
		var age, duplicates time.Duration
		err := errors.Join(
			i.insist(ctx, bucket, limit),
			i.insist(ctx, subjects.DefaultStream, func(cfg *jetstream.StreamConfig) {
				age, duplicates = cfg.MaxAge, cfg.Duplicates
				cfg.MaxAge, cfg.Duplicates = shortAge, min(shortAge, cfg.Duplicates)
			}),
			testenv.Pause(ctx, length),
		)
		return errors.Join(err,
			i.insist(ctx, bucket, func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize, cfg.MaxBytes = -1, -1 }),
			i.insist(ctx, subjects.DefaultStream, func(cfg *jetstream.StreamConfig) { cfg.MaxAge, cfg.Duplicates = age, duplicates }),
		)
	})
}

// insist changes the configuration of a stream. That it cannot be changed is an
// error: nothing would put it back.
func (i *injection) insist(ctx context.Context, name string, change func(*jetstream.StreamConfig)) error {
	return poll(ctx, backPatience, func(ctx context.Context) string {
		limit, cancel := context.WithTimeout(ctx, storageTimeout)
		defer cancel()
		err := i.events.configure(limit, name, func(cfg *jetstream.StreamConfig) bool { change(cfg); return true })
		if err != nil {
			return "change stream " + name + ": " + err.Error()
		}
		return ""
	})
}

// removing lets events be removed and then requires that those that had not
// been projected are named.
func (i *injection) removing(ctx context.Context, remove func(context.Context) error) error {
	if !i.tapped(ctx) {
		return ctx.Err()
	}
	_, above := i.events.end()
	offsets, counts := i.logEnds(), i.namedCounts()
	i.mu.Lock()
	i.streamPurged = true
	i.mu.Unlock()
	defer i.comparisons.open(ctx, "events were removed").heal()
	defer i.differs("events were removed", nil)()
	if err := remove(ctx); err != nil {
		return err
	}
	first := i.firstSequence(ctx)
	if first <= above {
		i.note("nothing was removed")
		return nil
	}
	if err := i.back(ctx); err != nil {
		return err
	}
	r := removal{above: above, upTo: first - 1}
	var f finding
	var unprojected []uint64
	err := poll(ctx, noticePatience, func(ctx context.Context) string {
		a, err := i.aftermath(rollback{}, offsets, counts)
		if err != nil {
			return err.Error()
		}
		unprojected = i.events.bucket.without(i.events.events(r.above, r.upTo))
		if f = r.judge(unprojected, a); len(f.unnoticed) > 0 {
			return f.unnoticed[0]
		}
		return i.led(ctx)
	})
	if ctx.Err() != nil {
		return err
	}
	i.found(f)
	i.note("removed up to sequence %d; not projected before: %s", r.upTo, span(unprojected))
	return nil
}
