package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

const storageTimeout = 5 * time.Second

// storageFaults are an operator's hands in the stream and in the bucket. None
// of them is an excuse.
//
// The stream's past can be taken away only while the bucket knows all of it,
// and the bucket's only while the stream does: what neither has is gone.
func storageFaults() []fault {
	parts := []part{storagePart, natsPart}
	return []fault{
		{name: "delete the bucket", weight: 1, parts: parts, takes: storageTimeout, allowed: intact, play: deleteBucket},
		{name: "purge the bucket", weight: 1, parts: parts, takes: storageTimeout, allowed: intact, play: purgeBucket},
		{name: "purge a key", weight: 1, parts: parts, takes: storageTimeout, allowed: intact, play: purgeKey},
		{name: "write garbage into the bucket", weight: 1, parts: parts, takes: storageTimeout, allowed: intact, play: spoilEntry},
		{name: "put a foreign key into the bucket", weight: 1, parts: parts, takes: storageTimeout, play: plantKey},
		{name: "send a foreign message", weight: 2, parts: parts, takes: storageTimeout, play: foreignEvent},
		{name: "delete the stream", weight: 2, parts: everything, takes: 15 * time.Second, play: deleteStream},
		{name: "purge the stream", weight: 2, parts: everything, takes: 15 * time.Second, play: purgeStream},
	}
}

// intact reports whether the stream remembers what the bucket shows.
func intact(w *world) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.streamPurged
}

// attempt tries something on JetStream, which may just be looking for a leader.
func (i *injection) attempt(ctx context.Context, do func(context.Context) error) error {
	limit, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	for {
		err := do(limit)
		if err == nil {
			return nil
		}
		if testenv.Pause(limit, sampleInterval) != nil {
			if ctx.Err() == nil {
				i.note("that did not work: %v", err)
			}
			return ctx.Err()
		}
	}
}

func deleteBucket(ctx context.Context, i *injection) error {
	i.say("delete the bucket")
	defer i.differs("delete the bucket", nil)()
	return i.attempt(ctx, func(ctx context.Context) error {
		return ignoreMissing(i.events.js.DeleteKeyValue(ctx, subjects.DefaultBucket))
	})
}

func purgeBucket(ctx context.Context, i *injection) error {
	i.say("purge the bucket")
	defer i.differs("purge the bucket", nil)()
	return i.attempt(ctx, func(ctx context.Context) error {
		return i.purge(ctx, subjects.BucketStream(subjects.DefaultBucket))
	})
}

func (i *injection) purge(ctx context.Context, name string, opts ...jetstream.StreamPurgeOpt) error {
	stream, err := i.events.js.Stream(ctx, name)
	if err == nil {
		err = stream.Purge(ctx, opts...)
	}
	return ignoreMissing(err)
}

// anyKey is the key of an app that there are events of.
func (i *injection) anyKey() string {
	keys := slices.Sorted(maps.Keys(i.events.apps()))
	return keys[i.rng.IntN(len(keys))]
}

func purgeKey(ctx context.Context, i *injection) error {
	key := i.anyKey()
	i.say("purge the key %s", key)
	defer i.differs("purge a key", nil, namesOf(key)...)()
	return i.attempt(ctx, func(ctx context.Context) error {
		return i.purge(ctx, subjects.BucketStream(subjects.DefaultBucket),
			jetstream.WithPurgeSubject(subjects.BucketSubject(subjects.DefaultBucket, key)))
	})
}

func spoilEntry(ctx context.Context, i *injection) error {
	key := i.anyKey()
	i.say("write garbage into the bucket at %s", key)
	defer i.differs("write garbage into the bucket", nil, namesOf(key)...)()
	return i.attempt(ctx, func(ctx context.Context) error {
		_, err := i.events.js.Publish(ctx, subjects.BucketSubject(subjects.DefaultBucket, key), []byte("garbage"))
		return err
	})
}

func plantKey(ctx context.Context, i *injection) error {
	key := []string{"shop.production.nobody", "operators-note", "shop.production.nobody.either"}[i.rng.IntN(3)]
	i.say("put the foreign key %s into the bucket", key)
	i.differs("a foreign key", nil, namesOf(key)...) // it stays
	i.mu.Lock()
	i.planted[key] = true
	i.mu.Unlock()
	return i.attempt(ctx, func(ctx context.Context) error {
		kv, err := i.events.js.KeyValue(ctx, subjects.DefaultBucket)
		if err == nil {
			_, err = kv.Put(ctx, key, []byte("hello"))
		}
		return err
	})
}

func foreignEvent(ctx context.Context, i *injection) error {
	key := i.anyKey()
	if i.rng.IntN(4) == 0 {
		key = "shop.production.ghost"
	}
	id, err := subjects.ParseKey(key)
	if err != nil {
		return err
	}
	subject, err := i.names.Event(id, subjects.Updated)
	if err != nil {
		return err
	}
	i.say("send a foreign message to %s", subject)
	i.differs("a foreign message", nil, namesOf(key)...) // it stays
	return i.attempt(ctx, func(ctx context.Context) error {
		_, err := i.events.js.Publish(ctx, subject, []byte("hello"))
		return err
	})
}

func deleteStream(ctx context.Context, i *injection) error {
	return i.loseStream(ctx, "delete the stream", func(ctx context.Context) error {
		return ignoreMissing(i.events.js.DeleteStream(ctx, subjects.DefaultStream))
	})
}

func purgeStream(ctx context.Context, i *injection) error {
	return i.loseStream(ctx, "purge the stream", func(ctx context.Context) error {
		return i.purge(ctx, subjects.DefaultStream)
	})
}

// loseStream takes the past away while nothing is on its way, so that all of
// it has been read before.
func (i *injection) loseStream(ctx context.Context, what string, do func(context.Context) error) error {
	resume := i.load.pause()
	defer resume()
	if err := i.settled(ctx, 10*time.Second); err != nil {
		i.note("not now: %s: %v", what, err)
		return ctx.Err()
	}
	i.say("%s", what)
	defer i.differs(what, nil)()
	i.mu.Lock()
	i.streamPurged = true
	i.mu.Unlock()
	return i.attempt(ctx, do)
}

// ignoreMissing passes over that what is to go is not there.
func ignoreMissing(err error) error {
	for _, missing := range []error{jetstream.ErrStreamNotFound, jetstream.ErrBucketNotFound} {
		if errors.Is(err, missing) {
			return nil
		}
	}
	return err
}
