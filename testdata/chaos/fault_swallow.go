package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// swallowPatience is how long an event that is to be swallowed may take to come by.
const swallowPatience = 5 * time.Second

// The types of a watch's events.
const (
	watchAdded    = "ADDED"
	watchModified = "MODIFIED"
	watchDeleted  = "DELETED"
)

// victim is the object whose watch event is to be swallowed.
type victim struct {
	app     testenv.App
	kind    string
	object  string // its name
	events  int    // how many of its events are swallowed
	types   []string
	happens func(context.Context) error // what makes the event
	after   func(context.Context)       // makes the app whole again
}

// swallowFaults are watch events that never reach a bridge.
func swallowFaults() []fault {
	parts := []part{apiLinkPart, apiPart}
	swallowing := func(what string, choose func(context.Context, *injection) (*victim, error)) fault {
		return fault{
			name: "swallow the watch event of " + what, weight: muteWeight, parts: parts, takes: 4 * time.Second, mute: true,
			play: func(ctx context.Context, i *injection) error { return i.swallow(ctx, what, choose) },
		}
	}
	return []fault{
		swallowing("a created Service", createdService),
		swallowing("an updated Service", updatedService),
		swallowing("a deleted Service", deletedService),
		swallowing("a created Revision", createdRevision),
		swallowing("an updated Revision", updatedRevision),
		swallowing("a deleted Revision", deletedRevision),
		{name: "swallow a watch event of the load", weight: muteWeight, parts: parts, takes: 4 * time.Second, mute: true, loaded: true, play: swallowOfLoad},
	}
}

func createdService(_ context.Context, i *injection) (*victim, error) {
	app := i.calm.name()
	return &victim{
		app: app, kind: audit.KindService, object: app.Service().Name, events: 1, types: []string{watchAdded},
		happens: func(ctx context.Context) error { _, err := i.cluster.Create(ctx, app); return err },
		after:   func(ctx context.Context) { i.calm.renew(ctx, app) },
	}, nil
}

// quietVictim is a Service that is there.
func (i *injection) quietVictim(kind, object, eventType string, happens func(context.Context, testenv.App) error) (*victim, error) {
	app, err := i.calm.take(i.rng)
	if err != nil {
		return nil, err
	}
	if object == "" {
		object = app.Service().Name
	}
	return &victim{
		app: app, kind: kind, object: object, events: 1, types: []string{eventType},
		happens: func(ctx context.Context) error { return happens(ctx, app) },
		after:   func(ctx context.Context) { i.calm.renew(ctx, app) },
	}, nil
}

func updatedService(_ context.Context, i *injection) (*victim, error) {
	return i.quietVictim(audit.KindService, "", watchModified, i.calm.touch)
}

func deletedService(_ context.Context, i *injection) (*victim, error) {
	return i.quietVictim(audit.KindService, "", watchDeleted, func(ctx context.Context, app testenv.App) error {
		return i.cluster.Delete(ctx, app.Service())
	})
}

// createdRevision also swallows the status that is written next, which would show it.
func createdRevision(_ context.Context, i *injection) (*victim, error) {
	revision := fmt.Sprintf("rollout-%06d", i.rng.IntN(1_000_000))
	v, err := i.quietVictim(audit.KindRevision, revision, watchAdded, func(ctx context.Context, app testenv.App) error {
		_, err := i.cluster.Ready(ctx, app.Service(), revision, 3)
		return err
	})
	if v != nil {
		v.events, v.types = 2, []string{watchAdded, watchModified}
	}
	return v, err
}

func updatedRevision(ctx context.Context, i *injection) (*victim, error) {
	return i.readyVictim(ctx, watchModified, func(ctx context.Context, app testenv.App, _ *servingv1.Service) error {
		replicas := 2 + i.rng.Int32N(5) // renew writes 1
		_, err := i.cluster.Scale(ctx, app.Service(), replicas)
		return err
	})
}

func deletedRevision(ctx context.Context, i *injection) (*victim, error) {
	return i.readyVictim(ctx, watchDeleted, func(ctx context.Context, _ testenv.App, svc *servingv1.Service) error {
		return i.cluster.DeleteRevision(ctx, svc)
	})
}

// readyVictim is the Revision that a Service names ready.
func (i *injection) readyVictim(ctx context.Context, eventType string, happens func(context.Context, testenv.App, *servingv1.Service) error) (*victim, error) {
	var svc *servingv1.Service
	v, err := i.quietVictim(audit.KindRevision, "", eventType, func(ctx context.Context, app testenv.App) error { return happens(ctx, app, svc) })
	if err != nil {
		return nil, err
	}
	svc = v.app.Service()
	if err := i.cluster.Client.Get(ctx, client.ObjectKeyFromObject(svc), svc); err != nil {
		return nil, err
	}
	v.object = svc.Status.LatestReadyRevisionName
	return v, nil
}

// watched is the bridge whose watch is to be made mute: mostly the one that leads.
func (i *injection) watched(ctx context.Context) *bridge {
	b, _ := i.anyLeader(ctx)
	if i.rng.IntN(4) == 0 {
		b = i.bridges[i.rng.IntN(len(i.bridges))]
	}
	return b
}

// swallow keeps the event of a victim from a bridge.
func (i *injection) swallow(ctx context.Context, what string, choose func(context.Context, *injection) (*victim, error)) error {
	v, err := choose(ctx, i)
	if err != nil {
		i.note("not now: %v", err)
		return ctx.Err()
	}
	b := i.watched(ctx)
	offsets, p, before := i.logEnds(), b.running(), len(b.mute.Swallowed())
	b.mute.SwallowEvents(v.events, func(kind, name, eventType string) bool {
		return kind == v.kind && name == v.object && slices.Contains(v.types, eventType)
	})
	defer b.mute.Heal()
	if err := i.written(ctx, v.happens); err != nil {
		i.note("not now: %v", err)
		v.after(context.WithoutCancel(ctx))
		return ctx.Err()
	}
	if !i.swallowedBy(ctx, b, before, v.events) {
		i.note("no watch of bridge %s brought the event", b.name)
		v.after(context.WithoutCancel(ctx))
		return ctx.Err()
	}
	at := time.Now()
	i.say("swallow the watch event of %s, %s, for bridge %s, %s", what, v.object, b.name, role(b.lastSeen()))
	made := i.hidden(b, p, "swallowed for bridge "+b.name+": "+what+", "+v.object, offsets, keyOfApp(v.app), b.mute.Swallowed()[before:])
	i.plant(made, at)
	i.afterwards(made, v.after)
	return nil
}

// afterwards makes good what a fault did to an app, once its course is over.
func (i *injection) afterwards(p *plant, do func(context.Context)) {
	i.spawn(func(ctx context.Context) {
		if p.wait(ctx) == nil {
			do(ctx)
		}
	})
}

// written does something to the cluster, which may take a moment.
func (i *injection) written(ctx context.Context, do func(context.Context) error) error {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return do(limit)
}

// swallowedBy waits until n events were swallowed after the first before ones. It reports whether any
// was: the wait for all of them may end.
func (i *injection) swallowedBy(ctx context.Context, b *bridge, before, n int) bool {
	if poll(ctx, swallowPatience, func(context.Context) string {
		if len(b.mute.Swallowed()) < before+n {
			return "not swallowed"
		}
		return ""
	}) == nil {
		return true
	}
	b.mute.Heal() // so that none is swallowed after this look
	return len(b.mute.Swallowed()) > before
}

// hidden is the plant of events that a bridge does not know of.
func (i *injection) hidden(b *bridge, p *process, what string, offsets map[string]int64, key string, events []testenv.SwallowedEvent) *plant {
	var objects []string
	for _, e := range events {
		objects = append(objects, e.Name)
	}
	names := namesOf(key, objects...)
	newest := events[len(events)-1]
	made := &plant{name: "swallow", what: what, bridge: b, names: names, messages: watchMessages, offsets: offsets}
	made.wrong = func(ctx context.Context) string {
		if why := i.wrong(ctx, []string{key}, false); why != "" {
			return why
		}
		// What it has not seen, a bridge that stands by must still find.
		s := b.lastSeen()
		switch version := i.view.versionOf(newest.Kind, newest.Name); {
		case s.leads() || b.running() != p || version > number(newest.ResourceVersion):
			return ""
		case made.naming() == "":
			return fmt.Sprintf("bridge %s stands by and has not seen %s %s at %s", b.name, newest.Kind, newest.Name, newest.ResourceVersion)
		case s.metrics[metricUnrepaired] > 0:
			return fmt.Sprintf("bridge %s has found and not repaired it", b.name)
		}
		return ""
	}
	return made
}

func number(version string) int64 {
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// swallowOfLoad swallows whatever comes next of the apps that change all the time.
func swallowOfLoad(ctx context.Context, i *injection) error {
	b := i.watched(ctx)
	kind := []string{audit.KindService, audit.KindService, audit.KindRevision}[i.rng.IntN(3)]
	eventType := []string{watchAdded, watchModified, watchModified, watchDeleted}[i.rng.IntN(4)]
	offsets, p, before := i.logEnds(), b.running(), len(b.mute.Swallowed())
	b.mute.SwallowEvents(1, func(k, name, t string) bool { return k == kind && t == eventType && strings.HasPrefix(name, "app-") })
	defer b.mute.Heal()
	if !i.swallowedBy(ctx, b, before, 1) {
		i.note("nothing came by that could be swallowed")
		return ctx.Err()
	}
	at := time.Now()
	e := b.mute.Swallowed()[before]
	if err := i.history.WaitFor(ctx, number(e.ResourceVersion)); err != nil {
		return err
	}
	key := i.view.ownerOf(e.Kind, e.Name)
	i.say("swallow the watch event %s of %s %s at %s, for bridge %s, %s", e.Type, e.Kind, e.Name, e.ResourceVersion, b.name, role(b.lastSeen()))
	if key == "" {
		i.note("it is no Revision that an app shows")
		i.plants.explain(&cause{why: "swallowed", bridge: b.name, names: []string{e.Name}})()
		return nil
	}
	i.plant(i.hidden(b, p, fmt.Sprintf("swallowed for bridge %s: %s of %s %s", b.name, e.Type, e.Kind, e.Name), offsets, key, []testenv.SwallowedEvent{e}), at)
	return nil
}
