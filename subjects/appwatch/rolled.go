package appwatch

import (
	"context"
	"errors"
	"fmt"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch/internal/jetapi"
)

// rolledLooks is how often the stream is looked at, once it has as many sequences as were read,
// before a notice of loss is no longer expected.
const rolledLooks = 8

// inspectEnd looks for a stream that ends before what was read of it.
func (w *watcher) inspectEnd(ctx context.Context) error {
	if w.info.IsMirror() || w.info.HasSources() {
		return nil // it is filled again from its origin
	}
	last, found := w.info.State.LastSeq, false
	if last < w.at.Sequence {
		w.rolledAt = 0
		if w.rolled.From == 0 || last+1 < w.rolled.From {
			w.rolled, found = subjects.LostRange{From: last + 1, To: w.at.Sequence}, true
		}
	}
	if w.rolled.From == 0 {
		return nil
	}
	if err := w.recheck(ctx); err != nil || w.rolled.From == 0 {
		return err
	}
	if found {
		w.retrying(fmt.Errorf("%w: it ends at %d, and %d was read", ErrRolledBack, last, w.at.Sequence))
	}
	// A bridge that knows of the loss fills the range and appends a notice. One that does not appends
	// events in it.
	m, err := w.api.NextMessage(ctx, w.opts.Stream, w.opts.branch+"*.*.*.*", w.rolled.From)
	if err != nil && !errors.Is(err, jetapi.ErrNoMessage) {
		return err
	}
	if err == nil && m.Sequence <= w.rolled.To {
		return w.fail(ErrRolledBack, w.rolled)
	}
	// It may have done so before the stream was looked at.
	m, err = w.api.LastMessage(ctx, w.opts.Stream, w.opts.branch+"*.*.*.*")
	if err != nil && !errors.Is(err, jetapi.ErrNoMessage) {
		return err
	}
	if err == nil && m.Sequence <= w.rolled.To && w.lastStored > 0 && m.Time.UnixNano() > w.lastStored {
		return w.fail(ErrRolledBack, w.rolled)
	}
	if last >= w.at.Sequence && !lossPending(w.info) {
		if w.rolledAt++; w.rolledAt > rolledLooks {
			return w.fail(ErrRolledBack, w.rolled)
		}
	}
	return nil
}

// recheck looks whether the stream still lacks what was read. A server that was not the leader, or no
// longer, may have answered before its newest messages had reached it.
func (w *watcher) recheck(ctx context.Context) error {
	switch found, err := w.newestRead(ctx, w.rolled.From); {
	case err != nil:
		return err
	case found == kept:
		w.rolled, w.rolledAt = subjects.LostRange{}, 0
		w.works()
	case found == replaced:
		return w.fail(ErrRolledBack, w.rolled)
	}
	return nil
}

// finding is what the stream has in the place of the newest message that was read.
type finding int

const (
	unsure   finding = iota // nothing, or it is not known what was there
	kept                    // that message
	replaced                // another one
)

// newestRead looks for the newest message that was read, unless its sequence is before from.
func (w *watcher) newestRead(ctx context.Context, from uint64) (finding, error) {
	at := max(w.storedAt, w.lastAt)
	byID := w.lastAt == at && w.check != 0
	if at == 0 || at < from || !byID && w.storedAt < at {
		return unsure, nil
	}
	m, err := w.api.MessageAt(ctx, w.opts.Stream, at)
	if errors.Is(err, jetapi.ErrNoMessage) {
		return unsure, nil
	}
	if err != nil {
		return unsure, err
	}
	same := m.Time.UnixNano() == w.lastStored
	if byID {
		same = checkOf(first(m.Header, subjects.CEID)) == w.check
	}
	switch {
	case same:
		return kept, nil
	case m.Subject == w.opts.filler || m.Subject == w.opts.notice:
		return unsure, nil // a loss is being repaired
	default:
		return replaced, nil
	}
}

// restart reads the snapshot again.
func (w *watcher) restart(ctx context.Context) error {
	var used uint64 // sequences from here on may be used again
	var err error
	switch {
	case errors.Is(w.restarts, ErrOtherStream):
		used = 1
	case errors.Is(w.restarts, ErrRolledBack):
		if used, err = w.parted(ctx); err != nil {
			return err
		}
	}
	if used > 0 {
		w.lost, w.gone = w.lost.before(used).with(lostRanges(w.info)...), w.gone.before(used)
	}
	if w.opts.NoSnapshot {
		return w.skip(ctx, used)
	}
	snap, err := w.readBucket(ctx, streamID(w.info), false)
	if err != nil {
		return err
	}
	return w.adopt(snap, w.restarts, w.restartsLost, used)
}

// parted is the first sequence of a stream that was rolled back that may have another event than
// before: the oldest message is there that was stored after everything that was read. Where it is not
// known when that was, it may be any.
func (w *watcher) parted(ctx context.Context) (uint64, error) {
	if w.storedAt == 0 {
		return max(w.info.State.FirstSeq, 1), nil
	}
	first, err := w.search(ctx, func(m *jetapi.Message) bool { return m.Time.UnixNano() > w.lastStored })
	if w.rolled.From > 0 {
		first = min(first, w.rolled.From)
	}
	return first, err
}

// skip goes on with the oldest event that is left, or that has a sequence which is used again.
func (w *watcher) skip(ctx context.Context, used uint64) error {
	first := max(w.info.State.FirstSeq, 1)
	at := first - 1
	it := &Item{Type: Loss, Reason: w.restarts, Lost: w.restartsLost}
	switch {
	case errors.Is(w.restarts, ErrRolledBack):
		at = max(first, used) - 1
		it.Lost = subjects.LostRange{From: used, To: max(used, w.at.Sequence)}
	case w.info.HasSources():
		m, err := w.api.NextMessage(ctx, w.opts.Stream, w.opts.names.Events(), first)
		if err != nil && !errors.Is(err, jetapi.ErrNoMessage) {
			return err
		}
		at = 0
		if err == nil {
			at = max(w.sequenceOf(m), 1) - 1
		}
	case it.Lost.From > 0:
		w.gone = w.gone.with(it.Lost)
	}
	w.at = Position{StreamID: streamID(w.info), Sequence: at}
	w.local, w.ledger = first-1, newLedger(at, false)
	if !w.info.HasSources() {
		w.local = at
	}
	w.settle()
	it.Position = w.position()
	return w.yield(it)
}
