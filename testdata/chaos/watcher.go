package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// watcherTurn is how long a watcher reads at most before it stops and resumes from its position.
const watcherTurn = 10 * time.Second

// watcher is a consumer that uses package appwatch, as users do: it keeps a copy of all apps and a
// position, and goes on from there whenever it stopped. Its view is judged at the end.
type watcher struct {
	conn   *nats.Conn
	js     jetstream.JetStream
	fail   func(format string, args ...any)
	cancel context.CancelFunc
	done   chan struct{} // closed when the reading has ended

	mu        sync.Mutex
	position  appwatch.Position
	first     uint64 // the first mark
	last      uint64 // the newest event
	delivered map[uint64]string
	covered   []subjects.LostRange // what it reported as gone, or has in a snapshot alone
	apps      map[string]uint64    // by key: the event of each app that exists
	snapshot  map[string]uint64    // being read; nil: none is
	skips     bool                 // the events up to the mark are in the snapshot alone
	events    int
	losses    int
	restarts  int
	turns     int
}

func newWatcher(url string, fail func(string, ...any)) (*watcher, error) {
	conn, err := nats.Connect(url, nats.Name("chaos watcher"), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.ReconnectBufSize(-1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("use JetStream: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{
		conn: conn, js: js, fail: fail, cancel: cancel, done: make(chan struct{}),
		delivered: map[uint64]string{}, apps: map[string]uint64{},
	}
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			w.turn(ctx)
		}
	}()
	return w, nil
}

// turn reads for a while, from the position that was kept.
func (w *watcher) turn(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second+rand.N(watcherTurn))
	defer cancel()
	w.mu.Lock()
	from := w.position
	w.snapshot = nil
	if from.IsZero() {
		w.snapshot, w.skips = map[string]uint64{}, true
	}
	w.turns++
	w.mu.Unlock()
	for item, err := range appwatch.Watch(ctx, w.js, appwatch.Options{From: from}) {
		if err != nil {
			w.fail("the reader of package appwatch ended: %v", err)
			return
		}
		w.take(item)
	}
}

func (w *watcher) take(item appwatch.Item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !item.Position.IsZero() {
		w.position = item.Position
	}
	switch item.Type {
	case appwatch.State:
		if key, err := item.ID.Key(); err == nil && item.Exists() && w.snapshot != nil {
			w.snapshot[key] = item.Sequence
		}
	case appwatch.Mark:
		w.mark(item.Position.Sequence)
	case appwatch.Event:
		w.event(item)
	case appwatch.Loss:
		w.losses++
		if lost := item.Lost; lost.To > 0 {
			w.covered = append(w.covered, lost)
		}
	case appwatch.Restart:
		w.restarts++
		w.snapshot, w.skips = map[string]uint64{}, !errors.Is(item.Reason, appwatch.ErrNotice)
	}
}

func (w *watcher) mark(sequence uint64) {
	if w.snapshot == nil {
		return
	}
	if w.skips {
		w.covered = append(w.covered, subjects.LostRange{From: w.last + 1, To: max(sequence, w.last+1)})
		w.last = sequence // the history may be another
	}
	if w.turns == 1 && w.first == 0 {
		w.first = sequence
	}
	w.apps, w.snapshot = w.snapshot, nil
}

func (w *watcher) event(item appwatch.Item) {
	w.events++
	if item.Sequence <= w.last {
		w.fail("the reader of package appwatch was at sequence %d and got sequence %d", w.last, item.Sequence)
	}
	w.last = max(w.last, item.Sequence)
	w.delivered[item.Sequence] = item.MessageID()
	key, err := item.ID.Key()
	switch {
	case err != nil:
		w.fail("the reader of package appwatch got an event of %s: %v", item.ID, err)
	case item.Exists():
		w.apps[key] = item.Sequence
	default:
		delete(w.apps, key)
	}
}

// missed are the events of the stream, as others read it, that were neither delivered nor reported.
func (w *watcher) missed(events []uint64) (missed []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, sequence := range events {
		_, had := w.delivered[sequence]
		covered := slices.ContainsFunc(w.covered, func(r subjects.LostRange) bool { return r.Contains(sequence) })
		if sequence > w.first && !had && !covered {
			missed = append(missed, strconv.FormatUint(sequence, 10))
		}
	}
	return missed
}

// differs is how the copy differs from the bucket's entries, "" if it does not.
func (w *watcher) differs(entries []audit.Message) string {
	want := map[string]uint64{}
	for _, e := range entries {
		key, err := subjects.ParseBucketSubject(subjects.DefaultBucket, e.Subject)
		if err != nil || e.Header.Get(subjects.HeaderKVOperation) != "" {
			continue
		}
		if _, err := subjects.ParseKey(key); err != nil {
			continue
		}
		sequence, err := strconv.ParseUint(e.Header.Get(subjects.HeaderEventSequence), 10, 64)
		if err == nil {
			want[key] = sequence
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if w.apps[key] != want[key] {
			return fmt.Sprintf("it has %s as of event %d, the bucket as of %d", key, w.apps[key], want[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(w.apps)) {
		if _, ok := want[key]; !ok {
			return fmt.Sprintf("it has %s as of event %d, the bucket has no entry", key, w.apps[key])
		}
	}
	return ""
}

func (w *watcher) close() {
	w.cancel()
	<-w.done
	w.conn.Close()
}

// judgeWatcher compares the view of the reader of package appwatch with the stream and the bucket,
// which are at rest.
func (w *world) judgeWatcher(ctx context.Context) {
	entries := func() ([]audit.Message, error) {
		all, err := w.events.entries(ctx)
		return w.withoutPlanted(all), err
	}
	err := poll(ctx, settlePatience, func(context.Context) string {
		all, err := entries()
		if err != nil {
			return err.Error()
		}
		return w.watcher.differs(all)
	})
	if err != nil {
		w.fail("the copy of package appwatch differs from the bucket: %v", err)
	}
	_, last := w.events.end()
	missed := w.watcher.missed(w.events.events(0, last))
	if len(missed) > 0 {
		w.fail("the reader of package appwatch missed %d events: %s", len(missed), few(missed))
	}
	r := w.watcher
	r.mu.Lock()
	defer r.mu.Unlock()
	w.out.line("   package appwatch     %d events, missed=%d, in %d turns; it reported %d losses and began %d snapshots again",
		r.events, len(missed), r.turns, r.losses, r.restarts)
}
