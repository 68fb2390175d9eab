package main

import (
	"context"
	"time"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// listFaults make the lists of the kinds that an app's state is joined from end apart.
func listFaults() []fault {
	view := []part{apiLinkPart, apiPart, bridgesPart}
	return []fault{
		{name: "lists that end apart", blinds: true, weight: 8, parts: view, takes: 15 * time.Second, play: listsApart},
		{name: "plain lists that end apart after stuck ones", blinds: true, weight: 4, parts: view, takes: listDeadline + 20*time.Second, play: plainListsApart},
	}
}

// listsApart has a bridge list again, and its lists end one after the other.
func listsApart(ctx context.Context, i *injection) error {
	return i.scatterLists(ctx, 0, "the watches of bridge %s, %s, expire; its lists end apart")
}

// plainListsApart has the bookmark missing first that ends each list, so that plain lists follow.
func plainListsApart(ctx context.Context, i *injection) error {
	return i.scatterLists(ctx, listDeadline, "the watches of bridge %s, %s, expire; its lists never end, and the plain lists that follow end apart")
}

// scatterLists ends the lists of a bridge in random order, 0.3 to 2 s one after the other. Some are
// kept back before the API server makes them, some after that. stuck is for how long none ends.
func (i *injection) scatterLists(ctx context.Context, stuck time.Duration, what string) error {
	b, s := i.anyLeader(ctx)
	if i.rng.IntN(4) == 0 {
		b = i.bridges[i.rng.IntN(len(i.bridges))]
		s = b.look(ctx)
	}
	i.say(what, b.name, role(s))
	defer i.gap(ctx, "the lists of bridge %s ended apart", b.name).heal()
	defer i.plants.explain(&cause{why: "lists that end apart", bridge: b.name, sides: []string{sideSource}})()

	type pass struct {
		at       time.Time
		answered bool // the list is made before that
	}
	passes, at := map[string]pass{}, time.Now().Add(stuck+i.between(0, 5*time.Second))
	resources := []string{"services", "revisions", "pods"}
	for _, n := range i.rng.Perm(len(resources)) {
		at = at.Add(300*time.Millisecond + time.Duration(i.rng.Int64N(int64(1700*time.Millisecond))))
		passes[resources[n]] = pass{at, i.rng.IntN(2) == 0}
		i.note("%s after %s", resources[n], show(time.Until(at)))
	}
	b.mute.GateLists(func(ctx context.Context, resource string, answered bool) {
		if p := passes[resource]; p.answered == answered {
			_ = testenv.Pause(ctx, time.Until(p.at)) // a request that is given up has ended
		}
	})
	if stuck > 0 {
		b.mute.DropEndBookmark()
	}
	defer b.mute.Heal()
	b.mute.ExpireWatches()
	return testenv.Pause(ctx, time.Until(at)+time.Second)
}
