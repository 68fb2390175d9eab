package appwatch

import (
	"context"
	"errors"
	"fmt"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch/internal/jetapi"
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
	if w.open {
		if idle && !w.marked {
			return w.inspectOpen(ctx)
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
	if !idle {
		if w.marked { // before that, the snapshot would take the place of the Mark
			return w.settleOwed(ctx, false)
		}
		return nil
	}
	newest, err := w.api.LastSequence(ctx, w.opts.Stream, w.opts.filters)
	if err != nil {
		return err
	}
	if newest > w.local {
		if w.quiet++; w.quiet >= maxQuiet {
			return fmt.Errorf("%w: it stands at %d of %d", errBehind, w.local, newest)
		}
		return nil
	}
	w.quiet = 0
	return w.caughtUp(ctx, state.FirstSeq, state.LastSeq)
}

// caughtUp handles that nothing selected is behind the reader's position. The stream was looked at
// before that.
func (w *watcher) caughtUp(ctx context.Context, first, last uint64) error {
	if first > w.local+1 && w.rolled.From == 0 {
		if w.contiguous() {
			if err := w.removed(subjects.LostRange{From: w.local + 1, To: first - 1}); err != nil {
				return err
			}
		} else if err := w.removedPerhaps(w.local+1, first); err != nil {
			return err
		}
	}
	if w.rolled.From == 0 && last > w.local && w.contiguous() {
		if err := w.removedAtEnd(last); err != nil {
			return err
		}
	} else if w.rolled.From == 0 && last > w.local {
		w.local = last
		if !w.info.HasSources() {
			w.at.Sequence = last
			if at := w.info.State.LastTime; !at.IsZero() {
				w.lastStored, w.storedAt = at.UnixNano(), last
			}
		}
	}
	if !w.marked {
		if err := w.mark(); err != nil {
			return err
		}
	}
	return w.settleOwed(ctx, true)
}

// removedAtEnd reports the messages between the position and the end of the stream, which has none of
// them: they were removed unread. That is certain when it was so before, since another member of the
// group may have answered one of the requests.
func (w *watcher) removedAtEnd(last uint64) error {
	before := min(w.ended, last)
	w.ended = last
	if before <= w.local {
		return nil
	}
	err := w.removed(subjects.LostRange{From: w.local + 1, To: before})
	w.local = max(w.local, before)
	return err
}

// inspectOpen marks the end of the stream if nothing that is selected was stored since
// Options.Since. Otherwise it is still to be delivered. Everything behind the Mark is.
func (w *watcher) inspectOpen(ctx context.Context) error {
	for _, filter := range w.opts.filters {
		m, err := w.api.LastMessage(ctx, w.opts.Stream, filter)
		if errors.Is(err, jetapi.ErrNoMessage) {
			continue
		}
		if err != nil {
			return err
		}
		if !m.Time.Before(w.opts.Since) {
			if w.quiet++; w.quiet >= maxQuiet {
				return fmt.Errorf("%w: it has delivered nothing, and there is %d", errBehind, m.Sequence)
			}
			return nil
		}
	}
	state := w.info.State
	w.at.Sequence = state.LastSeq
	if w.info.HasSources() {
		var err error
		if w.at.Sequence, err = w.newestOrigin(ctx); err != nil {
			return err
		}
	} else if at := state.LastTime; !at.IsZero() {
		w.lastStored, w.storedAt = at.UnixNano(), state.LastSeq
	}
	w.open, w.started = false, true
	w.local, w.ledger.base = state.LastSeq, w.at.Sequence
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
	if w.info.HasSources() {
		return nil
	}
	if err := w.inspectEnd(ctx); err != nil {
		if errors.Is(err, errRestart) {
			return nil
		}
		return err
	}
	gone := subjects.LostRange{From: w.local + 1, To: state.FirstSeq - 1}
	if state.FirstSeq > w.local+1 && w.rolled.From == 0 && !w.lost.covers(gone) {
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
func (w *watcher) adopt(snap *snapshot, reason error, lost subjects.LostRange, used uint64) error {
	seen := w.at.Sequence
	if used > 0 {
		seen = 0
	}
	w.settle()
	w.at = Position{StreamID: streamID(w.info), Sequence: snap.position}
	if !w.info.HasSources() {
		w.at.Sequence = max(snap.position, w.info.State.FirstSeq-min(w.info.State.FirstSeq, 1))
		w.local = w.at.Sequence
	}
	w.check, w.lastAt, w.lastStored, w.storedAt = checkOf(snap.newestID), snap.position, snap.stored, 0
	w.started = true
	if snap.suspect(w.lost) {
		w.owe(ErrNotice, lost)
	} else if snap.hasty || snap.reached < w.at.Sequence && !w.info.HasSources() {
		w.owePerhaps(ErrBucket) // it is perhaps behind the stream
	}
	err := w.show(snap, reason, lost, used)
	w.ledger.seen = seen
	return err
}

// show yields a snapshot, with a Restart before it if there is a reason, and a Mark behind it.
func (w *watcher) show(snap *snapshot, reason error, lost subjects.LostRange, used uint64) error {
	old := w.ledger
	w.ledger = newLedger(w.at.Sequence, true)
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
		w.ledger.note(e.key, e.id, e.kind, e.sequence, status)
		if again {
			it.Changed = used > 0 && e.sequence >= used || old.differs(was, e, snap.reached, w.lost.contains)
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
