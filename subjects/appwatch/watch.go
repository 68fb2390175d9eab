package appwatch

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch/internal/jetapi"
)

// Watch yields the apps and their events. With zero Options these are a State for each app that
// exists, a Mark, and every Event behind it, in the order of the stream, once.
//
// It goes on until ctx is done, which ends the sequence without an error, or until the loop is left.
// An error comes with a zero Item, and is the last: it wraps ErrOptions, ErrDenied or ErrClosed.
// Everything else is retried, and reported to Options.OnRetry.
//
// Watch starts a goroutine only with Latest, which ends before the loop does. The sequence can be
// used more than once, and each time begins again. js is not changed, and can be shared.
func Watch(ctx context.Context, js jetstream.JetStream, opts Options) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		p, err := opts.validate()
		if err != nil {
			yield(Item{}, err)
			return
		}
		watch := watchAll
		if p.Latest {
			watch = watchLatest
		}
		if err := watch(ctx, js, p, func(it Item) bool { return yield(it, nil) }); err != nil {
			yield(Item{}, err)
		}
	}
}

// watchAll yields items that are selected.
func watchAll(ctx context.Context, js jetstream.JetStream, p *prepared, yield func(Item) bool) error {
	return newWatcher(js, p, func(it *Item) bool { return ctx.Err() == nil && (!p.wants(it) || yield(*it)) }).run(ctx)
}

const (
	// retryMin and retryMax bound the pause before a try. A reader goes on soon after a server is
	// back, so the pauses stay short.
	retryMin = 50 * time.Millisecond
	retryMax = 300 * time.Millisecond
)

// errStopped ends a watch without an error: the loop was left.
var errStopped = errors.New("stopped")

// watcher reads for one loop. Its goroutine alone uses it.
type watcher struct {
	opts *prepared
	api  *jetapi.Client
	emit func(*Item) bool // false: the loop was left

	failing bool // OnRetry was called with an error
	failed  int  // tries since the last success

	// at is where the reader is: everything up to at.Sequence was yielded, or is in a snapshot that
	// was. local is the same place in the stream that is read: another sequence if that has sources.
	at      Position
	local   uint64
	origin  string // of a stream with sources: the stream that at is of, empty before the first message
	started bool   // at is valid
	open    bool   // at is the oldest event since Options.Since, which has not been found yet
	// passed is the local sequence up to which nothing else is to be delivered, and reported the same
	// of the present consumer: 0 before it has reported that.
	passed   uint64
	reported uint64
	// check is that of the event at lastAt, 0 if it is not known. lastStored is when the message at
	// storedAt was stored, which is the newest that was read: 0 if there is none.
	check      uint32
	lastAt     uint64
	lastStored int64
	storedAt   uint64

	ledger *ledger
	lost   ranges
	gone   ranges             // reported as removed
	info   *jetapi.StreamInfo // of the stream, as the newest look-up has it

	marked bool
	target uint64 // local sequence of the Mark that ends From and Since
	// shortAt is since when the stream ends before target, which it then may never reach.
	shortAt time.Time

	// owed is why a snapshot has to be read again once the reader is at the end of the stream.
	owed     error
	owedLost subjects.LostRange
	perhaps  bool          // only if the snapshot differs
	mild     bool          // and each resumption finds out by itself
	owedNext time.Time     // not before
	owedWait time.Duration // pause before the next try
	due      *due          // the bucket has to be this far
	tries    int           // how often it was not, for an event that is gone
	held     *snapshot     // is yielded before the first event behind its position
	heldEnd  uint64        // sequence behind the end of a copy that had caught up meanwhile, 0 before
	// restarts is why the next session begins with a snapshot.
	restarts     error
	restartsLost subjects.LostRange
	// rolled is what the stream seems to lack of what was read of it, while that may still be repaired.
	rolled   subjects.LostRange
	rolledAt time.Time // since when
	given    bool      // at is Options.From, and nothing was read since

	checked time.Time // when the stream was looked at
	jump    uint64    // lowest local sequence behind a jump since then, 0 if there was none
	quiet   int       // looks at the stream that found more than the consumer has passed, which stood still
}

// newWatcher listens to the connection from here on, until run returns.
func newWatcher(js jetstream.JetStream, p *prepared, emit func(*Item) bool) *watcher {
	return &watcher{opts: p, api: jetapi.New(js), emit: emit}
}

// run watches until ctx is done or the loop is left, without an error, or nothing more can be done.
func (w *watcher) run(ctx context.Context) error {
	defer w.api.Close()
	for {
		err := w.api.WaitConnected(ctx, w.retrying)
		if err == nil {
			err = w.session(ctx)
		}
		switch {
		case ctx.Err() != nil || errors.Is(err, errStopped):
			return nil
		case errors.Is(err, ErrClosed) || errors.Is(err, ErrDenied) || errors.Is(err, ErrOptions):
			return err
		case errors.Is(err, errRestart): // not a failure: the next session begins with a snapshot
			continue
		}
		w.retrying(err)
		if err := w.pause(ctx); err != nil {
			return nil //nolint:nilerr // ctx is done
		}
	}
}

// pause waits before the next try, for less time if the connection changes.
func (w *watcher) pause(ctx context.Context) error {
	wait := min(retryMin<<min(w.failed, 10), retryMax)
	w.failed++
	timer := time.NewTimer(wait/2 + rand.N(wait)) //nolint:gosec // not a secret
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.api.Changes():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (w *watcher) retrying(err error) {
	w.failing = true
	if w.opts.OnRetry != nil {
		w.opts.OnRetry(err)
	}
}

// works notes that the reader reads.
func (w *watcher) works() {
	w.failed = 0
	if w.failing && w.rolled.From == 0 {
		w.failing = false
		if w.opts.OnRetry != nil {
			w.opts.OnRetry(nil)
		}
	}
}

// yield hands out an item.
func (w *watcher) yield(it *Item) error {
	if !w.emit(it) {
		return errStopped
	}
	return nil
}

// position is at, as items have it.
func (w *watcher) position() Position {
	p := w.at.at(w.at.Sequence)
	if !w.info.HasSources() {
		p = w.at.at(max(w.at.Sequence, w.passed))
	}
	p.Owed = w.owed != nil && !w.mild
	p.doubt = p.Owed && (w.perhaps || errors.Is(w.owed, ErrBucket))
	if w.lastAt == p.Sequence {
		p.Check = w.check
	}
	return p
}

// session reads with one consumer. The next one goes on where it ends.
func (w *watcher) session(ctx context.Context) error {
	if err := w.look(ctx); err != nil {
		return err
	}
	if err := w.begin(ctx); err != nil {
		return err
	}
	from := w.local + 1
	w.reported = 0
	if w.open {
		var err error
		if from, err = w.firstSince(ctx); err != nil {
			return err
		}
	}
	f, err := w.api.Consume(ctx, w.opts.Stream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		FilterSubjects: w.opts.filters, HeadersOnly: w.opts.HeadersOnly, InactiveThreshold: w.info.Config.ConsumerLimits.InactiveThreshold,
	}, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if w.open { // no position says yet whether the stream was put back meanwhile
		if err := w.look(ctx); err != nil {
			return err
		}
		if last := w.info.State.LastSeq; last+1 < from {
			return fmt.Errorf("%w: it ends at %d, and %d was to be read next", ErrRolledBack, last, from)
		}
	}
	w.works()
	return w.follow(ctx, f)
}

// clockMargin is how far the times that servers stored may step back: a new leader has another clock.
const clockMargin = 10 * time.Minute

// firstSince is a sequence that is not behind the first message since Options.Since. Every message before
// one that was stored clockMargin earlier is older; the others are read, in order. The server's own
// search relies on ordered times.
func (w *watcher) firstSince(ctx context.Context) (uint64, error) {
	since := w.opts.Since.Add(-clockMargin)
	return w.search(ctx, func(m *jetapi.Message) bool { return !m.Time.Before(since) })
}

// look reads what the stream is.
func (w *watcher) look(ctx context.Context) error {
	info, err := w.api.Stream(ctx, w.opts.Stream)
	if err != nil {
		return err
	}
	w.info = info
	w.lost = w.lost.with(lostRanges(info)...)
	w.checked = time.Now()
	return nil
}

// begin finds the position to read from.
func (w *watcher) begin(ctx context.Context) error {
	if !w.started && w.restarts == nil {
		if err := w.start(ctx); err != nil {
			return err
		}
	}
	if w.started {
		if err := w.verify(ctx); err != nil {
			return err
		}
	}
	if w.restarts != nil {
		if err := w.restart(ctx); err != nil {
			return err
		}
	}
	if w.info.HasSources() && !w.open {
		return w.locate(ctx)
	}
	return nil
}

// start sets the first position.
func (w *watcher) start(ctx context.Context) error {
	state := w.info.State
	switch {
	case !w.opts.From.IsZero():
		w.at = w.opts.From
		w.check, w.lastAt, w.at.Check = w.at.Check, w.at.Sequence, 0
		w.local, w.target, w.given = w.at.Sequence, state.LastSeq, true
		w.ledger = newLedger(w.at.Sequence, false)
		w.ledger.certain = w.check != 0
		w.noteEnd()
		if w.at.Owed {
			reason := ErrBucket
			if !w.at.doubt {
				reason = ErrNotice
				w.ledger.doubts(w.lost...)
			}
			w.owe(fmt.Errorf("%w before the position %s", reason, w.at), subjects.LostRange{})
		}
		w.compareUnseen()
	case !w.opts.Since.IsZero():
		w.open, w.target = true, state.LastSeq
		w.at = Position{StreamID: streamID(w.info)}
		w.ledger = newLedger(0, false)
		w.compareUnseen()
	case w.opts.NoSnapshot:
		w.at, w.local, w.target = Position{StreamID: streamID(w.info), Sequence: state.LastSeq}, state.LastSeq, state.LastSeq
		if w.info.HasSources() {
			var err error
			if w.at.Sequence, err = w.newestOrigin(ctx); err != nil {
				return err
			}
		}
		w.ledger = newLedger(w.at.Sequence, false)
		w.noteEnd()
	default:
		snap, err := w.readSnapshot(ctx)
		if err != nil {
			return err
		}
		return w.adopt(ctx, snap, nil, subjects.LostRange{}, 0)
	}
	w.started = true
	return nil
}

// noteEnd notes when the message at the position was stored, if that is the newest one of the stream.
func (w *watcher) noteEnd() {
	state := w.info.State
	if !w.info.HasSources() && w.at.Sequence == state.LastSeq && !state.LastTime.IsZero() {
		w.lastStored, w.storedAt = state.LastTime.UnixNano(), state.LastSeq
	}
}

// compareUnseen has the bucket compared if the sequences do not show what was removed before the
// beginning of the reader.
func (w *watcher) compareUnseen() {
	if !w.contiguous() {
		w.owePerhaps(ErrRemoved)
		w.mild = w.perhaps
	}
}

// settle forgets what a snapshot has settled.
func (w *watcher) settle() {
	w.restarts, w.restartsLost = nil, subjects.LostRange{}
	w.rolled = subjects.LostRange{}
	w.forgive()
	w.jump, w.passed, w.quiet = 0, 0, 0
	w.check, w.lastAt, w.storedAt = 0, 0, 0
	w.open, w.given = false, false
}

// fail has the next session begin with a snapshot.
func (w *watcher) fail(reason error, lost subjects.LostRange) error {
	w.restarts, w.restartsLost = reason, lost
	return errRestart
}

// errRestart ends a session: the position cannot be resumed.
var errRestart = errors.New("the snapshot is read again")
