package main

import (
	"context"
	"errors"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// kubeFaults happen to the API server and to the way there. A bridge may then
// have to list anew, and what came and went meanwhile it cannot see.
func kubeFaults() []fault {
	return []fault{
		{name: "kill the API server", blinds: true, weight: 1, parts: []part{apiPart}, takes: 8 * time.Second, play: killAPI},
		{name: "restart the API server", blinds: true, weight: 1, parts: []part{apiPart}, takes: 8 * time.Second, play: restartAPI},
		{name: "compact etcd", blinds: true, weight: 1, parts: []part{apiPart}, takes: 8 * time.Second, play: compactEtcd},
		{name: "cut a bridge's link to the API server", blinds: true, weight: 1, parts: []part{apiLinkPart}, takes: 4 * time.Second, play: cutAPILink},
		{name: "hang a bridge's link to the API server", blinds: true, weight: 1, parts: []part{apiLinkPart}, takes: 4 * time.Second, play: hangAPILink},
	}
}

func killAPI(ctx context.Context, i *injection) error {
	down := i.between(0, 3*time.Second)
	i.say("kill the API server; back after %s", show(down))
	defer i.gap(ctx, "the API server was killed").heal()
	defer i.differs("the API server was killed", []string{sideSource})()
	err := i.cluster.KillAPIServer()
	return errors.Join(err, testenv.Pause(ctx, down), i.cluster.StartAPIServer(ctx))
}

func restartAPI(ctx context.Context, i *injection) error {
	i.say("restart the API server in good order")
	defer i.gap(ctx, "the API server was restarted").heal()
	defer i.differs("the API server was restarted", []string{sideSource})()
	return i.cluster.RestartAPIServer(ctx)
}

// compactEtcd makes etcd forget the past, and the API server with it: whoever
// watched from there has to list anew.
func compactEtcd(ctx context.Context, i *injection) error {
	down := i.between(0, 2*time.Second)
	i.say("compact etcd and kill the API server; back after %s", show(down))
	defer i.gap(ctx, "etcd was compacted").heal()
	defer i.differs("etcd was compacted", []string{sideSource})()
	err := errors.Join(i.cluster.KillAPIServer(), i.cluster.Compact(ctx, i.history))
	return errors.Join(err, testenv.Pause(ctx, down), i.cluster.StartAPIServer(ctx))
}

func cutAPILink(ctx context.Context, i *injection) error {
	b, s := i.anyLeader(ctx)
	if i.rng.IntN(4) == 0 {
		b = i.bridges[i.rng.IntN(len(i.bridges))]
		s = b.look(ctx)
	}
	length := i.between(time.Second, 12*time.Second)
	i.say("cut the link of bridge %s, %s, to the API server for %s", b.name, role(s), show(length))
	defer i.gap(ctx, "bridge %s was cut off from the API server", b.name).heal()
	defer i.plants.explain(&cause{why: "cut off from the API server", bridge: b.name, sides: []string{sideSource}})()
	err := b.api.Cut()
	return errors.Join(err, testenv.Pause(ctx, length), b.api.Heal())
}

func hangAPILink(ctx context.Context, i *injection) error {
	b, s := i.anyLeader(ctx)
	length := i.between(time.Second, 12*time.Second)
	i.say("hang the link of bridge %s, %s, to the API server for %s", b.name, role(s), show(length))
	defer i.gap(ctx, "the link of bridge %s to the API server hung", b.name).heal()
	defer i.plants.explain(&cause{why: "the link to the API server hung", bridge: b.name, sides: []string{sideSource}})()
	err := b.api.Hang()
	return errors.Join(err, testenv.Pause(ctx, length), b.api.Heal())
}
