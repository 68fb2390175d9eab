package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/logsvc/client"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// podLog is the log of one pod, with what writes it and what reads it.
type podLog struct {
	name    string
	number  uint64 // among those of the run
	app     subjects.AppID
	kubelet *testenv.Kubelet
	pod     *testenv.Pod
	model   *model
	rand    *rand.Rand // of the lines
	clock   nodeClock
}

// nodeClock is the clock of a node.
type nodeClock struct {
	offset atomic.Int64 // nanoseconds
	whole  atomic.Bool  // it has whole seconds
	stands atomic.Pointer[time.Time]
}

func (c *nodeClock) now() time.Time {
	if at := c.stands.Load(); at != nil {
		return *at
	}
	at := time.Now().UTC().Round(0).Add(time.Duration(c.offset.Load()))
	if c.whole.Load() {
		at = at.Truncate(time.Second)
	}
	return at
}

// change does one of the things that befall a clock.
func (c *nodeClock) change(r *rand.Rand) {
	switch r.IntN(4) {
	case 0:
		c.whole.Store(!c.whole.Load())
	case 1:
		now := c.now()
		c.stands.Store(&now)
		return
	default:
		c.offset.Add(int64(time.Duration(r.IntN(61)-30) * time.Second))
	}
	c.stands.Store(nil)
}

// read follows the log until ctx is done.
func (l *podLog) read(ctx context.Context, nc *nats.Conn) error {
	follow, all := true, -1
	_, err := client.Follow(ctx, nc, client.Request{
		App: l.app, Follow: &follow, Tail: &all, Format: subjects.LogFormatRaw,
	}, func(msg *client.Message) error {
		switch msg.Kind {
		case client.Lines:
			l.model.read(msg.Body)
		case client.Note:
			l.model.note(string(msg.Body), msg.Dropped > 0)
		case client.Last:
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("the reader of %s ended: %w", l.name, errors.Join(err, errors.New("the log goes on")))
}

// write writes until ctx is done, while the faults of the log happen.
func (l *podLog) write(ctx context.Context, cfg settings) error {
	faults := l.faults(cfg)
	for ctx.Err() == nil {
		if err := l.writeSome(ctx); err != nil {
			return err
		}
		for _, f := range faults {
			if err := f.run(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
		}
		_ = testenv.Pause(ctx, 5*time.Millisecond+time.Duration(l.rand.IntN(10))*time.Millisecond) // the loop looks at ctx
	}
	return nil
}

// writeSome writes some lines.
func (l *podLog) writeSome(ctx context.Context) error {
	var lines []string
	one := func(before string, same int) {
		lines = append(lines, l.model.add(before, same))
		for range same {
			lines = append(lines, sameLine)
		}
	}
	switch l.rand.IntN(30) {
	case 0: // in records
		one(strings.Repeat("long ", 1+l.rand.IntN(12_000)), 0)
	case 1: // the same for longer than anything may compare
		for range 1 + l.rand.IntN(5) {
			one(strings.Repeat("x", 300), 0)
		}
	case 2:
		one("before many", 1+l.rand.IntN(800))
	case 3, 4:
		for range 1 + l.rand.IntN(4) {
			one("before some", l.rand.IntN(5))
		}
	case 5:
		return l.writePieces(ctx)
	default:
		for range 1 + l.rand.IntN(30) {
			one("line", 0)
		}
	}
	if !l.pod.Write(lines...) {
		return errors.New("the container does not run")
	}
	return nil
}

// writePieces writes a line in two pieces.
func (l *podLog) writePieces(ctx context.Context) error {
	line := l.model.add("in pieces", 0) + "\n"
	cut := 1 + l.rand.IntN(len(line)-1)
	first := l.pod.WriteRaw([]byte(line[:cut]))
	_ = testenv.Pause(ctx, time.Duration(l.rand.IntN(20))*time.Millisecond) // the line is written to its end also when ctx is done
	if !first || !l.pod.WriteRaw([]byte(line[cut:])) {
		return errors.New("the container does not run")
	}
	return nil
}
