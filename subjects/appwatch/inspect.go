package appwatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/appbridge/appbridge/subjects"
)

// inspect compares the reader with the leader of the stream. idle: the consumer has nothing to
// deliver.
func (w *watcher) inspect(ctx context.Context, idle bool) error {
	if err := w.look(ctx); err != nil {
		return err
	}
	state := w.info.State // before the newest message: what it counts has been removed, or is that
	if id := streamID(w.info); id != "" && w.at.StreamID != "" && id != w.at.StreamID {
		return w.fail(fmt.Errorf("%w: its id was %s, and is %s", ErrOtherStream, w.at.StreamID, id), subjects.LostRange{})
	}
	if idle {
		if err := w.standsStill(); err != nil {
			return err
		}
	}
	w.lowerTarget()
	if w.open {
		if idle && !w.marked && w.reported >= w.target {
			return w.nothingSince(ctx)
		}
		return nil
	}
	if err := w.inspectEnd(ctx); err != nil {
		return err
	}
	if jump := w.jump; jump > 0 {
		w.jump = 0
		// Sequences behind a jump were not selected, unless retention had reached them by then.
		if state.FirstSeq > jump {
			if err := w.removedPerhaps(jump, state.FirstSeq); err != nil {
				return err
			}
		}
	}
	if idle && w.rolled.From == 0 {
		if err := w.pass(ctx, state.FirstSeq); err != nil {
			return err
		}
	}
	if !w.marked { // the snapshot would take the place of the Mark
		return nil
	}
	return w.settleOwed(ctx)
}

// lowerTarget has the Mark come at the end of a stream that was put back, before the reader got there, to
// less than it held at the start. The answer of a leader that is cut off does not do that.
func (w *watcher) lowerTarget() {
	last := w.info.State.LastSeq
	switch {
	case w.marked || last >= w.target:
		w.shortAt = time.Time{}
	case w.shortAt.IsZero():
		w.shortAt = time.Now()
	case time.Since(w.shortAt) >= endTime:
		w.target = last
	}
}

// standsStill is an error if the consumer does not get on although the stream has more.
func (w *watcher) standsStill() error {
	last := w.info.State.LastSeq
	if at := max(w.local, w.reported); at < last {
		if w.quiet++; w.quiet >= maxQuiet {
			w.quiet = 0
			return fmt.Errorf("%w: it stands at %d of %d", errBehind, at, last)
		}
	}
	return nil
}

// pass notes how far the consumer is, as it has reported. Nothing else is to be delivered up to there.
// The stream, which begins at first, was looked at after that.
func (w *watcher) pass(ctx context.Context, first uint64) error {
	next := max(w.local, w.passed) + 1
	if first > next && !w.contiguous() {
		if err := w.removedPerhaps(next, first); err != nil {
			return err
		}
		w.passed = first - 1
	}
	if next = max(w.local, w.passed) + 1; w.reported >= next {
		if err := w.gap(ctx, subjects.LostRange{From: next, To: w.reported}); err != nil {
			return err
		}
		w.passed = max(w.passed, w.reported)
	}
	w.jump = 0
	return w.markAtTarget()
}

// nothingSince marks the end of a stream that had nothing selected since Options.Since when the reader
// began. Everything behind the Mark is.
func (w *watcher) nothingSince(ctx context.Context) error {
	w.at.Sequence = w.reported
	if w.info.HasSources() {
		var err error
		if w.at.Sequence, err = w.newestOrigin(ctx); err != nil {
			return err
		}
	}
	w.open, w.started = false, true
	w.local, w.ledger.base = w.reported, w.at.Sequence
	w.noteEnd()
	return w.mark()
}

// verify compares the position with the stream before it is resumed.
func (w *watcher) verify(ctx context.Context) error {
	id, state := streamID(w.info), w.info.State
	if w.restarts != nil || w.open {
		return nil
	}
	if id != "" && w.at.StreamID != "" && id != w.at.StreamID {
		w.restarts = fmt.Errorf("%w: its id was %s, and is %s", ErrOtherStream, w.at.StreamID, id)
		return nil
	}
	if id != "" {
		w.at.StreamID = id
	}
	if err := w.inspectEnd(ctx); err != nil {
		if errors.Is(err, errRestart) {
			return nil
		}
		return err
	}
	if w.info.HasSources() {
		return nil
	}
	gone := subjects.LostRange{From: max(w.local, w.passed) + 1, To: state.FirstSeq - 1}
	if state.FirstSeq > gone.From && w.rolled.From == 0 && !w.lost.covers(gone) {
		w.restarts, w.restartsLost = fmt.Errorf("%w: sequences %s", ErrRemoved, gone), gone
		return nil
	}
	found, err := w.newestRead(ctx, state.FirstSeq)
	if found == replaced {
		w.restarts = fmt.Errorf("%w: it has another event at %d", ErrRolledBack, max(w.lastAt, w.storedAt))
	}
	return err
}

// adopt yields a snapshot and goes on behind it. Sequences from used on may be those of other events
// than before, unless it is 0.
func (w *watcher) adopt(ctx context.Context, snap *snapshot, reason error, lost subjects.LostRange, used uint64) error {
	seen := w.at.Sequence
	if used > 0 {
		seen = 0
	}
	w.settle()
	ahead := w.isAhead(snap)
	if errors.Is(reason, ErrRolledBack) && ahead {
		snap.endAt(w.info.State.LastSeq)
	}
	w.at = Position{StreamID: streamID(w.info), Sequence: snap.position}
	if !w.info.HasSources() {
		w.at.Sequence = max(snap.position, w.info.State.FirstSeq-min(w.info.State.FirstSeq, 1))
		w.local = w.at.Sequence
	}
	w.check, w.lastAt = snap.check, snap.position
	w.started = true
	suspect, err := w.suspect(ctx, snap)
	if err != nil {
		return err
	}
	hidden, err := w.anyExists(ctx, snap, snap.overwritten)
	if err != nil {
		return err
	}
	if suspect {
		w.owe(ErrNotice, lost)
	} else if snap.hasty || ahead || hidden || snap.reached < w.at.Sequence && !w.info.HasSources() {
		w.owePerhaps(ErrBucket) // it is perhaps behind the stream
	}
	err = w.show(snap, reason, lost, used)
	w.ledger.seen = seen
	return err
}

// show yields a snapshot, with a Restart before it if there is a reason, and a Mark behind it.
func (w *watcher) show(snap *snapshot, reason error, lost subjects.LostRange, used uint64) error {
	old := w.ledger
	w.ledger = newLedger(w.at.Sequence, true)
	w.ledger.position = snap.position
	if old != nil && used == 0 {
		w.ledger.recent, w.ledger.next = old.recent, old.next
	}
	again := reason != nil
	if again {
		if err := w.yield(&Item{Type: Restart, Reason: reason, Lost: lost}); err != nil {
			return err
		}
	}
	for i, e := range snap.entries {
		snap.entries[i] = nil // the loop may keep the message, the reader need not
		it := Item{Type: State, ID: e.id, Kind: e.kind, Sequence: e.sequence, msg: e.msg, entry: true, bare: w.opts.HeadersOnly, stored: e.stored}
		status := it.Status()
		was := old.of(e.key)
		w.ledger.note(e.key, e.id, e.kind, e.sequence, e.check, status)
		if again {
			it.Changed = was == nil && used > 0 && e.sequence >= used || old.differs(was, e, snap.reached, w.lost.contains)
			if was != nil {
				it.before, it.override = was.status, true
				was.shown = true
			}
		}
		if e.kind == subjects.Deleted && (!it.Changed || was != nil && was.gone) {
			continue
		}
		if err := w.yield(&it); err != nil {
			return err
		}
	}
	if again {
		for _, was := range old.unseen() {
			it := Item{Type: State, ID: was.id, Kind: subjects.Deleted, Changed: true, before: was.status, override: true, entry: true}
			if err := w.yield(&it); err != nil {
				return err
			}
		}
	}
	return w.mark()
}
