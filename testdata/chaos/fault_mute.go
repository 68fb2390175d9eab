package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	muteWeight = 12
	// listDeadline is how long a bridge waits for the end of a list before it takes
	// another way, and what that costs it besides.
	listDeadline = 30 * time.Second
	listSlack    = 10 * time.Second
)

// muteFaults make the watches of bridges mute, whatever happens then.
func muteFaults() []fault {
	view := []part{apiLinkPart, apiPart, bridgesPart}
	return []fault{
		{name: "freeze the open watches", blinds: true, weight: muteWeight, parts: view, takes: 15 * time.Second, mute: true, play: freezeOpen},
		{name: "freeze all watches", blinds: true, weight: muteWeight / 2, parts: view, takes: 40 * time.Second, mute: true, play: freezeAll},
		{name: "half-open connections to the API server", blinds: true, weight: muteWeight, parts: view, takes: 25 * time.Second, mute: true, play: halfOpen},
		{name: "start without the end of the list", blinds: true, weight: muteWeight, parts: view, takes: 40 * time.Second, mute: true, play: startWithoutEnd},
		{name: "list again without the end of the list", blinds: true, weight: muteWeight / 2, parts: view, takes: 45 * time.Second, mute: true, play: relistWithoutEnd},
		{name: "serve a stale cache over a restart", blinds: true, weight: muteWeight / 2, parts: view, takes: 45 * time.Second, mute: true, play: staleRestart},
	}
}

// unseenChanges change quiet apps in every way while a watch is mute. It returns
// their keys, and what makes them whole again.
func (i *injection) unseenChanges(ctx context.Context) (keys []string, after func(context.Context), err error) {
	var apps []testenv.App
	after = func(ctx context.Context) {
		for _, app := range apps {
			i.calm.renew(ctx, app)
		}
	}
	for _, change := range []func(context.Context, testenv.App) error{
		i.calm.touch,
		func(ctx context.Context, app testenv.App) error {
			_, err := i.cluster.Scale(ctx, app.Service(), 2+i.rng.Int32N(5))
			return err
		},
		func(ctx context.Context, app testenv.App) error { return i.cluster.Delete(ctx, app.Service()) },
		nil,
	} {
		app := i.calm.name()
		if change == nil {
			err = i.written(ctx, func(ctx context.Context) error { return i.calm.make(ctx, app) })
		} else if app, err = i.calm.take(i.rng); err == nil {
			err = i.written(ctx, func(ctx context.Context) error { return change(ctx, app) })
		}
		if err != nil {
			return keys, after, err
		}
		apps, keys = append(apps, app), append(keys, keyOfApp(app))
	}
	return keys, after, nil
}

// hideFrom plants a fault that hides everything from a bridge, nil: from all.
func (i *injection) hideFrom(ctx context.Context, b *bridge, what string, offsets map[string]int64) (*plant, error) {
	at := time.Now()
	keys, after, err := i.unseenChanges(ctx)
	p := &plant{name: what, what: what, bridge: b, offsets: offsets, messages: watchMessages}
	if err != nil {
		after(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("%s: change apps: %w", what, err)
	}
	p.wrong = func(ctx context.Context) string { return i.wrong(ctx, keys, false) }
	if b == nil {
		p.whole = i.answer // that nobody leads is what may be wrong
	}
	i.plant(p, at)
	i.afterwards(p, after)
	return p, nil
}

// freezeOpen is a watch that stays open and shows nothing more.
func freezeOpen(ctx context.Context, i *injection) error {
	b, s := i.anyLeader(ctx)
	i.say("freeze the open watches of bridge %s, %s", b.name, role(s))
	defer i.gap(ctx, "the watches of bridge %s were frozen", b.name).heal()
	offsets := i.logEnds()
	b.mute.FreezeOpenWatches()
	p, err := i.hideFrom(ctx, b, "freeze the open watches of bridge "+b.name, offsets)
	if err != nil {
		return err
	}
	return p.wait(ctx)
}

// freezeAll also freezes those that the bridge opens, until it has found it.
func freezeAll(ctx context.Context, i *injection) error {
	b, s := i.anyLeader(ctx)
	i.say("freeze all watches of bridge %s, %s, until it has found it", b.name, role(s))
	defer i.gap(ctx, "all watches of bridge %s were frozen", b.name).heal()
	offsets, frozen := i.logEnds(), time.Now()
	b.mute.FreezeWatches()
	defer b.mute.Heal()
	p, err := i.hideFrom(ctx, b, "freeze all watches of bridge "+b.name, offsets)
	if err != nil {
		return err
	}
	limit := i.cfg.audit + findPatience
	if err := poll(ctx, limit, func(context.Context) string {
		c := p.now()
		if c.found.IsZero() {
			return "not found"
		}
		return ""
	}); ctx.Err() != nil {
		return err
	}
	b.mute.Heal()
	i.note("watches work again after %s; those that were opened meanwhile stay mute", show(time.Since(frozen)))
	p.extend(listSlack)
	return p.wait(ctx)
}

// extend gives a plant its time again from now on, and more.
func (p *plant) extend(more time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.course.since = time.Now()
	p.course.patience += more
}

// halfOpen is a connection whose other end is gone without a word.
func halfOpen(ctx context.Context, i *injection) error {
	b, s := i.anyLeader(ctx)
	i.say("the connections of bridge %s, %s, to the API server are half open", b.name, role(s))
	defer i.gap(ctx, "the connections of bridge %s were half open", b.name).heal()
	offsets := i.logEnds()
	b.mute.HalfOpen()
	defer b.mute.Heal()
	p, err := i.hideFrom(ctx, b, "half-open connections of bridge "+b.name, offsets)
	if err != nil {
		return err
	}
	return p.wait(ctx)
}

// startWithoutEnd is an API server, or a proxy, that never says that a list is complete.
func startWithoutEnd(ctx context.Context, i *injection) error {
	i.say("restart all bridges; they start with watches that never end their list")
	defer i.gap(ctx, "bridges started without the end of their lists").heal()
	offsets := i.logEnds()
	var errs []error
	for _, b := range i.bridges {
		b.stop() // which releases the Lease: it is not what is waited for here
		b.mute.DropEndBookmark()
		defer b.mute.Heal()
	}
	for _, b := range i.bridges {
		errs = append(errs, b.start())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	at := time.Now()
	p := &plant{
		name: "start without the end of the list", what: "the bridges started without the end of their lists", offsets: offsets,
		messages: []string{logPlainList}, longer: listSlack,
		wrong: func(ctx context.Context) string { return i.led(ctx) },
		whole: i.answer,
	}
	i.plant(p, at)
	return p.wait(ctx)
}

// answer reports whether all bridges are there.
func (w *world) answer() bool {
	for _, b := range w.bridges {
		if !b.lastSeen().answered {
			return false
		}
	}
	return true
}

// relistWithoutEnd has the same happen while bridges run. They start again before: a bridge that met
// such a list lately asks for plain ones.
func relistWithoutEnd(ctx context.Context, i *injection) error {
	i.say("restart all bridges, compact etcd and kill the API server; the lists that follow never end")
	defer i.gap(ctx, "bridges listed again without the end of the list").heal()
	for _, b := range i.bridges {
		b.stop()
		if err := b.start(); err != nil {
			return err
		}
	}
	if err := poll(ctx, startPatience, i.led); err != nil {
		return err
	}
	over := i.differs("the API server was killed", []string{sideSource})
	defer over()
	for _, b := range i.bridges {
		b.mute.DropEndBookmark()
		defer b.mute.Heal()
	}
	offsets := i.logEnds()
	err := errors.Join(i.cluster.KillAPIServer(), i.cluster.Compact(ctx, i.history))
	if err := errors.Join(err, i.cluster.StartAPIServer(ctx)); err != nil {
		return err
	}
	p, err := i.hideFrom(ctx, nil, "lists that never end after a compaction", offsets)
	if err != nil {
		return err
	}
	p.extend(listSlack)
	return p.wait(ctx)
}

// staleRestart is a cache of the API server that stands still while bridges start:
// they are shown how it was before.
func staleRestart(ctx context.Context, i *injection) error {
	length := i.between(8*time.Second, listDeadline+8*time.Second)
	i.say("kill all bridges; the API server's cache stands still for %s", show(length))
	defer i.gap(ctx, "bridges started on a stale cache").heal()
	offsets := i.logEnds()
	var errs []error
	for _, b := range i.bridges {
		errs = append(errs, b.mute.ServeStale(ctx), b.kill())
		defer b.mute.Heal()
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	p, err := i.hideFrom(ctx, nil, "a stale cache over a restart", offsets)
	if err != nil {
		return err
	}
	for _, b := range i.bridges {
		errs = append(errs, b.start())
	}
	if err := errors.Join(append(errs, testenv.Pause(ctx, length))...); err != nil {
		return err
	}
	for _, b := range i.bridges {
		b.mute.Heal()
	}
	p.extend(listSlack)
	return p.wait(ctx)
}
