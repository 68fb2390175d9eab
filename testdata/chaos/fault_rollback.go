package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	// backPatience is how long NATS and a bridge may take to be back; after it they
	// count as back, so that a loss is not noticed late without end.
	backPatience = time.Minute
	// noticePatience is how long after that a bridge may take to name a loss.
	noticePatience = 30 * time.Second
	// drainTime is what messages need that were sent before a server ended.
	drainTime = 200 * time.Millisecond

	// checkpointAnnotation of the Lease says what was acknowledged.
	checkpointAnnotation = "appbridge.flyte.org/acknowledged"
)

// rollbackFaults put an earlier copy of what JetStream stores back: what a
// volume's snapshot does, a power failure, a restored backup.
func rollbackFaults() []fault {
	bucket := subjects.BucketStream(subjects.DefaultBucket)
	rolledBack := func(name string, streams ...string) fault {
		return fault{
			name: "roll back " + name, weight: 24, parts: everything, takes: 12 * time.Second,
			play: func(ctx context.Context, i *injection) error { return i.rollBack(ctx, name, streams) },
		}
	}
	return []fault{
		rolledBack("the stream", subjects.DefaultStream),
		rolledBack("the bucket", bucket),
		rolledBack("stream and bucket", subjects.DefaultStream, bucket),
	}
}

// rollBack copies the storage, lets the load run on, ends all NATS servers, and
// starts them on the copy of some streams.
func (i *injection) rollBack(ctx context.Context, name string, streams []string) error {
	if !i.tapped(ctx) {
		return ctx.Err()
	}
	var r rollback
	saved, err := i.nats.SaveStore(ctx, func() {
		_ = testenv.Pause(ctx, drainTime)
		_, r.floor = i.events.end()
		r.bucketFloor, _ = i.events.bucket.end()
	})
	if err != nil {
		return err
	}
	defer func() { _ = saved.Remove() }() // goes with the servers' files
	length, killed := i.between(2*time.Second, 5*time.Second), i.victims(ctx)
	i.say("roll back %s by %s; %s", name, show(length), killedText(killed))
	if err := testenv.Pause(ctx, length); err != nil {
		return err
	}
	offsets, counts := i.logEnds(), i.namedCounts()
	if len(killed) > 0 {
		defer i.gap(ctx, "bridges were killed while %s was rolled back", name).heal()
	}
	defer i.comparisons.open(ctx, name+" was rolled back").heal()
	defer i.differs(name+" was rolled back", nil)()
	if err := i.endWith(ctx, killed); err != nil {
		return err
	}
	r.memory = len(killed) == 0
	if err := i.measure(ctx, &r, streams); err != nil {
		return err
	}
	whole := len(streams) > 1 && i.rng.IntN(2) == 0 // the whole volume
	if whole {
		streams = nil
	}
	if err := i.nats.RestoreStore(saved, streams...); err != nil {
		return err
	}
	if err := i.startAll(ctx, killed); err != nil {
		return err
	}
	return i.assess(ctx, r, offsets, counts)
}

// victims are the bridges that are killed as well: none, the one that leads, all.
func (i *injection) victims(ctx context.Context) []*bridge {
	switch i.rng.IntN(6) {
	case 0:
		leader, _ := i.anyLeader(ctx)
		return []*bridge{leader}
	case 1:
		return i.bridges
	default:
		return nil
	}
}

func killedText(killed []*bridge) string {
	switch len(killed) {
	case 0:
		return "the bridges stay up"
	case 1:
		return "bridge " + killed[0].name + ", which leads, is killed too"
	default:
		return "the bridges are killed too"
	}
}

// endWith kills all NATS servers and, at the same time, bridges.
func (i *injection) endWith(ctx context.Context, killed []*bridge) error {
	var errs []error
	for server := range i.nats.Size() {
		errs = append(errs, i.nats.Kill(server))
	}
	for _, b := range killed {
		errs = append(errs, b.kill())
	}
	return errors.Join(append(errs, testenv.Pause(ctx, drainTime))...)
}

func (i *injection) startAll(ctx context.Context, killed []*bridge) error {
	var errs []error
	for server := range i.nats.Size() {
		errs = append(errs, i.nats.Start(ctx, server))
	}
	for _, b := range killed {
		errs = append(errs, b.start())
	}
	return errors.Join(errs...)
}

// measure notes what was stored when NATS ended, who knows of it, and that what
// is rolled back goes on from the copy.
func (i *injection) measure(ctx context.Context, r *rollback, streams []string) (err error) {
	epoch, high := i.events.end()
	bucketHigh, projected := i.events.bucket.end()
	rolledBack := map[string]bool{}
	for _, name := range streams {
		rolledBack[name] = true
	}
	if rolledBack[subjects.DefaultStream] {
		r.epoch, r.high = epoch+1, high
		i.events.rollBack(r.floor)
	}
	if rolledBack[subjects.BucketStream(subjects.DefaultBucket)] {
		r.bucketHigh = bucketHigh
		i.events.bucket.rollBack(r.bucketFloor)
	} else {
		r.projected = projected
	}
	if !r.memory {
		r.checkpoint, err = i.leaseCheckpoint(ctx)
	}
	return err
}

// leaseCheckpoint reads what the Lease says was acknowledged.
func (i *injection) leaseCheckpoint(ctx context.Context) (checkpoint, error) {
	var found checkpoint
	lease := &coordinationv1.Lease{}
	limit, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	if err := i.cluster.Client.Get(limit, client.ObjectKey{Namespace: testenv.DefaultNamespace, Name: leaseName}, lease); err != nil {
		return found, fmt.Errorf("read the Lease: %w", err)
	}
	if text := lease.Annotations[checkpointAnnotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &found); err != nil {
			return found, fmt.Errorf("read the Lease's annotation %s: %w", checkpointAnnotation, err)
		}
	}
	return found, nil
}

// assess waits until a bridge has named what is lost, or its time is over.
func (i *injection) assess(ctx context.Context, r rollback, offsets map[string]int64, counts namedCounts) error {
	read, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	defer func() { stop(); <-done }()
	go func() {
		defer close(done)
		if r.epoch > 0 {
			i.events.reread(read, r.floor+1, r.high)
		}
	}()
	if err := i.back(ctx); err != nil {
		return err
	}
	if r.first == 0 {
		r.first = i.firstSequence(ctx)
	}
	var f finding
	look := func(context.Context) string {
		a, err := i.aftermath(r, offsets, counts)
		if err != nil {
			return err.Error()
		}
		select {
		case <-done:
			a.reread = true
		default:
		}
		f = r.judge(a)
		if len(f.unnoticed) > 0 || !a.reread {
			return "not named: " + few(f.unnoticed)
		}
		return ""
	}
	if err := poll(ctx, noticePatience, look); ctx.Err() != nil {
		return err
	}
	i.found(f)
	i.mu.Lock()
	i.rollbacks = append(i.rollbacks, r)
	i.mu.Unlock()
	gone, _ := i.events.gone(r.epoch, r.floor, r.high)
	i.note("the stream lost %s, the bucket's stream %d", span(gone), max(r.bucketHigh, r.bucketFloor)-r.bucketFloor)
	return nil
}

// aftermath is how things are now.
func (i *injection) aftermath(r rollback, offsets map[string]int64, counts namedCounts) (a aftermath, err error) {
	a.gone, a.survived = i.events.gone(r.epoch, r.floor, r.high)
	a.named, err = i.namedSince(offsets)
	now := i.namedCounts()
	a.counted = namedCounts{now.stream - counts.stream, now.bucket - counts.bucket, now.removed - counts.removed}
	return a, err
}

// back waits until NATS is healthy and a bridge leads.
func (i *injection) back(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, backPatience)
	defer cancel()
	if err := i.nats.WaitHealthy(limit); err != nil {
		if ctx.Err() == nil {
			i.note("after %s: %v", show(backPatience), err)
		}
		return ctx.Err()
	}
	_ = poll(limit, backPatience, func(ctx context.Context) string {
		if _, s := i.anyLeader(ctx); !s.leads() {
			return "nobody leads"
		}
		return ""
	})
	return ctx.Err()
}

// firstSequence is the stream's first sequence, 0 if nobody says so.
func (i *injection) firstSequence(ctx context.Context) uint64 {
	limit, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	stream, err := i.events.js.Stream(limit, subjects.DefaultStream)
	if err != nil {
		return 0
	}
	return stream.CachedInfo().State.FirstSeq
}

// tapped has stream and bucket republish what they store, which shows even what
// is lost at once. False: that cannot be had at the moment.
func (i *injection) tapped(ctx context.Context) bool {
	limit, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	err := poll(limit, storageTimeout, i.led)
	if err == nil {
		err = i.events.tap(limit)
	}
	if err == nil {
		err = i.events.read(limit)
	}
	if err == nil {
		err = i.events.heard(limit)
	}
	if err != nil && ctx.Err() == nil {
		i.note("not now: %v", err)
	}
	return err == nil
}
