package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// handFaults are a hand in bucket and stream that writes what a bridge would write.
// Each lasts until it is healed, and none happens once the stream was purged: what
// neither bucket nor stream has is gone, and is rightly published again.
func handFaults() []fault {
	parts := []part{storagePart, natsPart}
	hand := func(name string, play func(context.Context, *injection) error) fault {
		return fault{name: name, weight: muteWeight, parts: parts, takes: 10 * time.Second, mute: true, allowed: intact, play: play}
	}
	return []fault{
		hand("edit an entry under right headers", editEntry),
		hand("delete a key by the KV client", deleteKey),
		hand("purge a key by the KV client", purgeKeyKV),
		hand("remove an entry's message", removeEntry),
		hand("forge an entry of an app that never was", forgeEntry),
		hand("put an older entry back", oldEntry),
		{
			name: "remove an app's last event", weight: muteWeight, parts: []part{storagePart, natsPart, bridgesPart, linksPart},
			takes: 15 * time.Second, mute: true, allowed: intact, play: removeLastEvent,
		},
	}
}

// anyShown is the key of an app that the bucket has an entry of, and its entry: of
// a quiet app, now and then of one that changes all the time.
func (i *injection) anyShown(ctx context.Context) (key string, entry *audit.Message, done func(), err error) {
	done = func() {}
	if i.rng.IntN(4) == 0 && i.cfg.scenario != scenarioMute {
		key = i.anyKey()
	} else {
		app, err := i.calm.take(i.rng)
		if err != nil {
			return "", nil, done, err
		}
		key = keyOfApp(app)
		done = func() { i.calm.give(app) }
	}
	s, err := i.events.shown(ctx, i.names, key)
	if err == nil && (s.entry == nil || s.entry.Header.Get(subjects.HeaderKVOperation) != "") {
		err = fmt.Errorf("the bucket has no entry of %s", key)
	}
	if err != nil {
		done()
	}
	return key, s.entry, done, err
}

// onEntry does something to an entry, and plants it.
func (i *injection) onEntry(ctx context.Context, what string, do func(ctx context.Context, key string, entry *audit.Message) error) error {
	key, entry, done, err := i.anyShown(ctx)
	if err != nil {
		i.note("not now: %s: %v", what, err)
		return ctx.Err()
	}
	return i.onKey(ctx, what, key, false, done, func(ctx context.Context) error { return do(ctx, key, entry) })
}

// onKey does something by hand that concerns one app, plants it, and waits until its
// course is over.
func (i *injection) onKey(ctx context.Context, what, key string, owed bool, done func(), do func(context.Context) error) error {
	offsets := i.logEnds()
	over := i.differs(what, nil, namesOf(key)...)
	at := time.Now()
	limit, cancel := context.WithTimeout(ctx, storageTimeout)
	err := do(limit)
	cancel()
	if err != nil { // it may be done all the same
		i.note("not now: %s: %v", what, err)
		over()
		done()
		return ctx.Err()
	}
	i.say("%s: %s", what, key)
	p := &plant{
		name: what, what: what + ": " + key, names: namesOf(key), messages: storageMessages, offsets: offsets,
		wrong: func(ctx context.Context) string { return i.wrong(ctx, []string{key}, owed) },
	}
	i.plant(p, at)
	over()
	i.afterwards(p, func(context.Context) { done() })
	return p.wait(ctx)
}

func editEntry(ctx context.Context, i *injection) error {
	return i.onEntry(ctx, "edit the entry's body under right headers", func(ctx context.Context, key string, entry *audit.Message) error {
		app, err := appIn(*entry)
		if err != nil {
			return err
		}
		if app.GetStatus() == nil {
			return errors.New("the entry has no status")
		}
		app.Status.CurrentReplicas += 40
		return i.putEntry(ctx, key, entry.Header, app)
	})
}

// putEntry writes an entry as a bridge does, but for the fence.
func (i *injection) putEntry(ctx context.Context, key string, header nats.Header, app *appv1.App) error {
	data, form, err := appv1.Encode(app, header.Get(subjects.CEDataContentType))
	if err != nil {
		return err
	}
	if form != header.Get(subjects.CEDataContentType) {
		return fmt.Errorf("the App cannot be encoded as %s", header.Get(subjects.CEDataContentType))
	}
	return i.putMessage(ctx, key, header, data)
}

func (i *injection) putMessage(ctx context.Context, key string, header nats.Header, data []byte) error {
	msg := &nats.Msg{Subject: subjects.BucketSubject(subjects.DefaultBucket, key), Header: nats.Header{}, Data: data}
	for name, values := range header {
		if !strings.HasPrefix(name, "Nats-") {
			msg.Header[name] = values
		}
	}
	_, err := i.events.js.PublishMsg(ctx, msg)
	return err
}

func (i *injection) bucket(ctx context.Context) (jetstream.KeyValue, error) {
	return i.events.js.KeyValue(ctx, subjects.DefaultBucket)
}

func deleteKey(ctx context.Context, i *injection) error {
	return i.onEntry(ctx, "delete the key by the KV client", func(ctx context.Context, key string, _ *audit.Message) error {
		kv, err := i.bucket(ctx)
		if err == nil {
			err = kv.Delete(ctx, key)
		}
		return err
	})
}

func purgeKeyKV(ctx context.Context, i *injection) error {
	return i.onEntry(ctx, "purge the key by the KV client", func(ctx context.Context, key string, _ *audit.Message) error {
		kv, err := i.bucket(ctx)
		if err == nil {
			err = kv.Purge(ctx, key)
		}
		return err
	})
}

func removeEntry(ctx context.Context, i *injection) error {
	return i.onEntry(ctx, "remove the entry's message", func(ctx context.Context, _ string, entry *audit.Message) error {
		// A bucket denies the removal of a message by its sequence.
		return i.purge(ctx, subjects.BucketStream(subjects.DefaultBucket), jetstream.WithPurgeSubject(entry.Subject))
	})
}

func (i *injection) removeMessage(ctx context.Context, name string, sequence uint64) error {
	stream, err := i.events.js.Stream(ctx, name)
	if err == nil {
		err = stream.DeleteMsg(ctx, sequence)
	}
	return err
}

// forgeEntry makes an app up that the cluster never had, with the headers of another.
func forgeEntry(ctx context.Context, i *injection) error {
	_, entry, done, err := i.anyShown(ctx)
	if err != nil {
		i.note("not now: %v", err)
		return ctx.Err()
	}
	done()
	key := keyOfApp(testenv.App{Project: "quiet", Domain: "production", Name: fmt.Sprintf("never-%06d", i.rng.IntN(1_000_000))})
	err = i.onKey(ctx, "forge the entry of an app that never was", key, false, func() {}, func(ctx context.Context) error {
		app, err := appIn(*entry)
		if err != nil {
			return err
		}
		id, err := subjects.ParseKey(key)
		if err != nil {
			return err
		}
		app.GetMetadata().GetId().Name = id.Name
		header := maps.Clone(entry.Header)
		header[subjects.HeaderUID] = []string{fmt.Sprintf("00000000-0000-4000-8000-%012d", i.rng.IntN(1_000_000))}
		header[subjects.CESubject] = []string{key}
		return i.putEntry(ctx, key, header, app)
	})
	return err
}

// oldEntry puts the entry back that an app had before its last change.
func oldEntry(ctx context.Context, i *injection) error {
	app, err := i.calm.take(i.rng)
	if err != nil {
		i.note("not now: %v", err)
		return ctx.Err()
	}
	key, done := keyOfApp(app), func() { i.calm.give(app) }
	before, err := i.events.shown(ctx, i.names, key)
	if err == nil && before.entry == nil {
		err = errors.New("the bucket has no entry")
	}
	if err == nil {
		err = i.changed(ctx, app, before.entry.Header.Get(subjects.HeaderEventSequence))
	}
	if err != nil {
		done()
		i.note("not now: %s: %v", key, err)
		return ctx.Err()
	}
	err = i.onKey(ctx, "put an older entry back", key, false, done, func(ctx context.Context) error {
		return i.putMessage(ctx, key, before.entry.Header, before.entry.Data)
	})
	return err
}

// changed changes an app and waits until its entry shows it.
func (i *injection) changed(ctx context.Context, app testenv.App, before string) error {
	if err := i.written(ctx, func(ctx context.Context) error { return i.calm.touch(ctx, app) }); err != nil {
		return err
	}
	key := keyOfApp(app)
	return poll(ctx, storageTimeout, func(ctx context.Context) string {
		s, err := i.events.shown(ctx, i.names, key)
		switch {
		case err != nil:
			return err.Error()
		case s.entry == nil || s.entry.Header.Get(subjects.HeaderEventSequence) == before:
			return "the bucket does not show its change"
		}
		return ""
	})
}

// removeLastEvent takes one message out of the middle of the stream, so that neither
// its end nor its beginning shows that.
func removeLastEvent(ctx context.Context, i *injection) error {
	const what = "remove the app's last event"
	app, err := i.calm.take(i.rng)
	if err != nil {
		i.note("not now: %v", err)
		return ctx.Err()
	}
	key, done := keyOfApp(app), func() { i.calm.give(app) }
	event, err := i.middleEvent(ctx, app, key)
	if err != nil {
		done()
		i.note("not now: %s: %v", what, err)
		return ctx.Err()
	}
	defer i.comparisons.open(ctx, "an app's last event was removed").heal()
	err = i.onKey(ctx, fmt.Sprintf("%s, %d", what, event.Sequence), key, true, done, func(ctx context.Context) error {
		i.mu.Lock()
		i.removed = append(i.removed, subjects.LostRange{From: event.Sequence, To: event.Sequence})
		i.mu.Unlock()
		i.events.note(*event) // a reader that is behind does not get it any more
		return i.removeMessage(ctx, subjects.DefaultStream, event.Sequence)
	})
	return err
}

// middleEvent is the last event of an app, with messages before and behind it.
func (i *injection) middleEvent(ctx context.Context, app testenv.App, key string) (*audit.Message, error) {
	before, err := i.events.shown(ctx, i.names, key)
	if err != nil {
		return nil, err
	}
	sequence := ""
	if before.entry != nil {
		sequence = before.entry.Header.Get(subjects.HeaderEventSequence)
	}
	if err := i.changed(ctx, app, sequence); err != nil {
		return nil, err
	}
	other, err := i.calm.take(i.rng)
	if err != nil {
		return nil, err
	}
	defer i.calm.give(other)
	if err := i.changed(ctx, other, ""); err != nil {
		return nil, err
	}
	s, err := i.events.shown(ctx, i.names, key)
	if err != nil {
		return nil, err
	}
	if s.event == nil {
		return nil, errors.New("the stream has no event of it")
	}
	stream, err := i.events.js.Stream(ctx, subjects.DefaultStream)
	if err != nil {
		return nil, err
	}
	if state := stream.CachedInfo().State; s.event.Sequence <= state.FirstSeq || s.event.Sequence >= state.LastSeq {
		return nil, fmt.Errorf("it is at sequence %d, the stream's first or last", s.event.Sequence)
	}
	return s.event, nil
}
