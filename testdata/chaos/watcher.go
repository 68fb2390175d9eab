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

// watched are the readers of package appwatch that run along, by what they are called in the verdict.
func watched() map[string]appwatch.Options {
	return map[string]appwatch.Options{
		"all apps":          {},
		"one project":       {Project: "shop", HeadersOnly: true},
		"the newest states": {Latest: true, HeadersOnly: true},
	}
}

// watcher is a consumer that uses package appwatch, as users do: it keeps a copy of the apps and a
// position, and goes on from there whenever it stopped. Its view is judged at the end.
type watcher struct {
	name   string
	opts   appwatch.Options
	conn   *nats.Conn
	js     jetstream.JetStream
	fail   func(format string, args ...any)
	cancel context.CancelFunc
	done   chan struct{} // closed when the reading has ended

	mu        sync.Mutex
	position  appwatch.Position
	first     uint64 // the first mark
	last      uint64 // the newest event
	delivered map[uint64]bool
	covered   []subjects.LostRange // what it reported as gone, or has in a snapshot alone
	removed   []subjects.LostRange // what it said is not in the stream any more
	apps      map[string]uint64    // by key: the event of each app that exists
	snapshot  map[string]uint64    // being read; nil: none is
	skips     bool                 // the events up to the mark are in the snapshot alone
	events    int
	losses    int
	restarts  int
	turns     int
}

// startWatchers starts a reader of each kind.
func (w *world) startWatchers() error {
	options := watched()
	for _, name := range slices.Sorted(maps.Keys(options)) {
		r, err := newWatcher(w.nats.URL(), name, options[name], w.fail)
		if err != nil {
			return err
		}
		w.watchers = append(w.watchers, r)
	}
	return nil
}

func newWatcher(url, name string, opts appwatch.Options, fail func(string, ...any)) (*watcher, error) {
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
	w := unreadWatcher(name, opts, fail)
	w.conn, w.js, w.cancel, w.done = conn, js, cancel, make(chan struct{})
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			w.turn(ctx)
		}
	}()
	return w, nil
}

// unreadWatcher has read nothing, and has no connection.
func unreadWatcher(name string, opts appwatch.Options, fail func(string, ...any)) *watcher {
	return &watcher{
		name: name, opts: opts, delivered: map[uint64]bool{}, apps: map[string]uint64{},
		fail: func(format string, args ...any) {
			fail("the reader of package appwatch (%s) %s", name, fmt.Sprintf(format, args...))
		},
	}
}

// turn reads for a while, from the position that was kept.
func (w *watcher) turn(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second+rand.N(watcherTurn))
	defer cancel()
	opts := w.opts
	opts.From = w.begin()
	for item, err := range appwatch.Watch(ctx, w.js, opts) {
		if err != nil {
			w.fail("ended: %v", err)
			return
		}
		w.take(item)
	}
}

// begin begins a turn, and returns the position to read from.
func (w *watcher) begin() appwatch.Position {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.snapshot = nil
	if w.position.IsZero() {
		w.snapshot, w.skips = map[string]uint64{}, true
	}
	if w.opts.Latest { // it may begin with states that it had before it stopped
		w.delivered = map[uint64]bool{}
	}
	w.turns++
	return w.position
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
		w.lost(item)
	case appwatch.Restart:
		w.restarts++
		w.restart(item)
	}
}

// lost takes what a loss or a restart names.
func (w *watcher) lost(item appwatch.Item) {
	if item.Lost.To == 0 {
		return
	}
	w.covered = append(w.covered, item.Lost)
	if errors.Is(item.Reason, appwatch.ErrNotice) {
		w.removed = nil // an earlier copy of the stream may have it again
	}
	if errors.Is(item.Reason, appwatch.ErrRemoved) && w.opts.Project == "" { // a reader of some apps cannot be sure
		w.removed = append(w.removed, item.Lost)
	}
}

// restart begins a snapshot again. Only where the position cannot be resumed it stands for events.
func (w *watcher) restart(item appwatch.Item) {
	w.snapshot, w.skips = map[string]uint64{}, false
	switch {
	case errors.Is(item.Reason, appwatch.ErrRemoved):
		w.skips = true
		if item.Lost.To == 0 && w.opts.Project == "" {
			w.fail("began again (%v), and names nothing that is gone", item.Reason)
		}
		w.lost(item)
	case errors.Is(item.Reason, appwatch.ErrRolledBack), errors.Is(item.Reason, appwatch.ErrOtherStream):
		w.skips = true
		w.delivered, w.last = map[uint64]bool{}, 0 // sequences are used again
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
	switch {
	case w.delivered[item.Sequence]:
		w.fail("got event %d twice", item.Sequence)
	case item.Sequence <= w.last && !w.opts.Latest: // the newest states keep no order between apps
		w.fail("was at sequence %d and got sequence %d", w.last, item.Sequence)
	}
	w.last = max(w.last, item.Sequence)
	w.delivered[item.Sequence] = true
	key, err := item.ID.Key()
	switch {
	case err != nil:
		w.fail("got an event of %s: %v", item.ID, err)
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
		covered := slices.ContainsFunc(w.covered, func(r subjects.LostRange) bool { return r.Contains(sequence) })
		if sequence > w.first && !w.delivered[sequence] && !covered {
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
		if id, err := subjects.ParseKey(key); err != nil || w.opts.Project != "" && id.Project != w.opts.Project {
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

// present are messages that the reader said are gone, and that the stream has at the end.
func (w *watcher) present(ctx context.Context) (present []string, err error) {
	stream, err := w.js.Stream(ctx, subjects.DefaultStream)
	if err != nil {
		return nil, err
	}
	state := stream.CachedInfo().State
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, gone := range w.removed {
		for sequence := max(gone.From, state.FirstSeq); sequence <= min(gone.To, state.LastSeq); sequence++ {
			msg, err := stream.GetMsg(ctx, sequence)
			switch {
			case err == nil && isRenamed(msg.Subject):
			case err == nil:
				present = append(present, strconv.FormatUint(sequence, 10))
			case !errors.Is(err, jetstream.ErrMsgNotFound):
				return nil, err
			}
		}
	}
	return present, nil
}

// judgeWatchers compares the views of the readers of package appwatch with the stream and the bucket,
// which are at rest.
func (w *world) judgeWatchers(ctx context.Context) {
	for _, r := range w.watchers {
		w.judgeWatcher(ctx, r)
	}
}

func (w *world) judgeWatcher(ctx context.Context, r *watcher) {
	err := poll(ctx, settlePatience, func(context.Context) string {
		all, err := w.events.entries(ctx)
		if err != nil {
			return err.Error()
		}
		return r.differs(w.withoutPlanted(all))
	})
	if err != nil {
		r.fail("has a copy that differs from the bucket: %v", err)
	}
	var missed []string
	if r.opts.Project == "" && !r.opts.Latest {
		_, last := w.events.end()
		missed = r.missed(w.events.events(0, last))
	}
	if len(missed) > 0 {
		r.fail("missed %d events: %s", len(missed), few(missed))
	}
	present, err := r.present(ctx)
	switch {
	case err != nil:
		r.fail("cannot be judged: %v", err)
	case len(present) > 0:
		r.fail("reported %d messages as removed that the stream has: %s", len(present), few(present))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w.out.line("   package appwatch     %s: %d events, missed=%d, in %d turns; it reported %d losses and began %d snapshots again",
		r.name, r.events, len(missed), r.turns, r.losses, r.restarts)
}
