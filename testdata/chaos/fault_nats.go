package main

import (
	"context"
	"errors"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// natsFaults happen to NATS and to the way there. None of them is an excuse.
func natsFaults(servers int) []fault {
	faults := []fault{
		{name: "cut the leader's link to NATS", weight: 4, parts: []part{linksPart}, takes: 4 * time.Second, play: cutNATSLink},
		{name: "hang the leader's link to NATS", weight: 6, parts: []part{linksPart}, takes: 4 * time.Second, play: hangNATSLink},
		{name: "kill a NATS server", weight: 6, parts: []part{natsPart, storagePart}, takes: 5 * time.Second, play: killNATS},
		{name: "restart a NATS server", weight: 4, parts: []part{natsPart, storagePart}, takes: 5 * time.Second, play: restartNATS},
	}
	if servers < 3 {
		return faults
	}
	return append(faults,
		fault{name: "kill the stream's leader", weight: 6, parts: []part{natsPart, storagePart}, takes: 5 * time.Second, play: killStreamLeader},
		fault{name: "restart all NATS servers in turn", weight: 3, parts: []part{natsPart, storagePart}, takes: 20 * time.Second, play: rollNATS},
		fault{name: "isolate the stream's leader", weight: 6, parts: []part{natsPart, storagePart}, takes: 8 * time.Second, play: isolateLeader},
		fault{name: "kill all NATS servers", weight: 3, parts: []part{natsPart, storagePart}, takes: 6 * time.Second, play: killAllNATS},
	)
}

func cutNATSLink(ctx context.Context, i *injection) error {
	b, s := i.anyLeader(ctx)
	length := i.between(time.Second, 15*time.Second)
	i.say("cut the link of bridge %s, %s, to NATS for %s", b.name, role(s), show(length))
	err := b.cutNATS()
	return errors.Join(err, testenv.Pause(ctx, length), b.healNATS())
}

func hangNATSLink(ctx context.Context, i *injection) error {
	b, s := i.anyLeader(ctx)
	length := i.between(time.Second, 15*time.Second)
	i.say("hang the link of bridge %s, %s, to NATS for %s", b.name, role(s), show(length))
	err := b.hangNATS()
	return errors.Join(err, testenv.Pause(ctx, length), b.healNATS())
}

func killNATS(ctx context.Context, i *injection) error {
	return i.killServer(ctx, i.rng.IntN(i.nats.Size()), "")
}

func killStreamLeader(ctx context.Context, i *injection) error {
	server, err := i.nats.Leader(ctx, subjects.DefaultStream)
	if err != nil {
		i.note("no NATS server is killed: %v", err)
		return nil
	}
	return i.killServer(ctx, server, ", the stream's leader")
}

func (i *injection) killServer(ctx context.Context, server int, what string) error {
	down := i.between(0, 8*time.Second)
	i.say("kill NATS server %d%s; back after %s", server+1, what, show(down))
	err := i.nats.Kill(server)
	return errors.Join(err, testenv.Pause(ctx, down), i.nats.Start(ctx, server))
}

func restartNATS(ctx context.Context, i *injection) error {
	server, down := i.rng.IntN(i.nats.Size()), i.between(0, 4*time.Second)
	i.say("stop NATS server %d; back after %s", server+1, show(down))
	err := i.nats.Stop(server)
	return errors.Join(err, testenv.Pause(ctx, down), i.nats.Start(ctx, server))
}

func rollNATS(ctx context.Context, i *injection) error {
	i.say("restart all NATS servers, one after the other")
	for server := range i.nats.Size() {
		if err := errors.Join(i.nats.Stop(server), i.nats.Start(ctx, server), testenv.Pause(ctx, 3*time.Second)); err != nil {
			return err
		}
	}
	return nil
}

func isolateLeader(ctx context.Context, i *injection) error {
	server, err := i.nats.Leader(ctx, subjects.DefaultStream)
	if err != nil {
		i.note("no NATS server is isolated: %v", err)
		return nil
	}
	length := i.between(5*time.Second, 15*time.Second)
	i.say("part NATS server %d, the stream's leader, from the others for %s", server+1, show(length))
	err = i.nats.Isolate(server)
	return errors.Join(err, testenv.Pause(ctx, length), i.nats.Heal())
}

func killAllNATS(ctx context.Context, i *injection) error {
	down := i.between(0, 5*time.Second)
	i.say("kill all NATS servers; back after %s", show(down))
	var errs []error
	for server := range i.nats.Size() {
		errs = append(errs, i.nats.Kill(server))
	}
	errs = append(errs, testenv.Pause(ctx, down))
	for server := range i.nats.Size() {
		errs = append(errs, i.nats.Start(ctx, server))
	}
	return errors.Join(errs...)
}
