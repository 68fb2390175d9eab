package appwatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch/internal/jetapi"
)

// inspectEnd looks for a stream that ends before what was read of it.
func (w *watcher) inspectEnd(ctx context.Context) error {
	last, known, err := w.end(ctx)
	if err != nil || !known {
		return err
	}
	found := false
	if last < w.at.Sequence && (w.rolled.From == 0 || last+1 < w.rolled.From) {
		w.rolled, w.rolledAt, found = subjects.LostRange{From: last + 1, To: w.at.Sequence}, time.Now(), true
	}
	if w.isCopy() && last >= w.at.Sequence {
		w.resumed() // it was behind
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
	// A bridge that knows of the loss fills the range and appends a notice.
	if repairing, err := w.repairing(ctx); err != nil || repairing || time.Since(w.rolledAt) < endTime {
		return err
	}
	return w.fail(ErrRolledBack, w.rolled)
}

// end is the newest sequence of the origin that the stream has. It is not known of a copy that may get
// more, or does not select all: only the end of a whole copy is compared, with a position that it was
// given.
func (w *watcher) end(ctx context.Context) (last uint64, known bool, err error) {
	if !w.isCopy() {
		return w.info.State.LastSeq, true, nil
	}
	if !w.given || !w.info.IsWhole() {
		return 0, false, nil
	}
	if lag, silence, _ := w.info.Behind(); lag > 0 || silence < 0 || silence > endTime {
		w.rolledAt = time.Now()
		return 0, false, nil
	}
	if w.info.IsMirror() {
		return w.info.State.LastSeq, true, nil
	}
	last, err = w.newestOrigin(ctx)
	return last, err == nil, err
}

// isCopy reports whether the stream gets its messages from another one.
func (w *watcher) isCopy() bool { return w.info.IsMirror() || w.info.HasSources() }

// resumed notes that the stream lacks nothing that was read, or that what it lacks is repaired.
func (w *watcher) resumed() {
	if w.rolled.From > 0 {
		w.rolled = subjects.LostRange{}
		w.works()
	}
}

// recheck looks whether the stream still lacks what was read. A server that was not the leader, or no
// longer, may have answered before its newest messages had reached it.
func (w *watcher) recheck(ctx context.Context) error {
	found, err := w.newestRead(ctx, w.rolled.From)
	if found == kept {
		w.resumed()
		return nil
	}
	if events := w.ledger.known(w.info.State.LastSeq); err == nil && found == unsure && len(events) > 0 && !w.isCopy() {
		// The sequences may have been given to other events up to here.
		found, err = w.compare(ctx, events[len(events)-1])
	}
	if err == nil && found == replaced {
		return w.fail(ErrRolledBack, w.rolled)
	}
	return err
}

// finding is what the stream has in the place of the newest message that was read.
type finding int

const (
	unsure   finding = iota // nothing, or it is not known what was there
	kept                    // that message
	replaced                // another one
)

// newestRead looks for the newest message that was read, unless its sequence is before from. A stream
// with sources has other sequences.
func (w *watcher) newestRead(ctx context.Context, from uint64) (finding, error) {
	at := max(w.storedAt, w.lastAt)
	if at == 0 || at < from || w.info.HasSources() {
		return unsure, nil
	}
	if w.lastAt == at && w.check != 0 {
		return w.compare(ctx, known{at, w.check})
	}
	if w.storedAt < at {
		return unsure, nil
	}
	return w.found(ctx, at, func(m *jetapi.Message) bool { return m.Time.UnixNano() == w.lastStored })
}

// compare looks for an event that was read.
func (w *watcher) compare(ctx context.Context, k known) (finding, error) {
	return w.found(ctx, k.sequence, func(m *jetapi.Message) bool { return checkOf(first(m.Header, subjects.CEID)) == k.check })
}

// found looks for a message that was read.
func (w *watcher) found(ctx context.Context, sequence uint64, same func(*jetapi.Message) bool) (finding, error) {
	m, err := w.api.MessageAt(ctx, w.opts.Stream, sequence)
	switch {
	case errors.Is(err, jetapi.ErrNoMessage):
		return unsure, nil
	case err != nil:
		return unsure, err
	case same(m):
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
	snap, err := w.readSnapshot(ctx)
	if err != nil {
		return err
	}
	return w.adopt(ctx, snap, w.restarts, w.restartsLost, used)
}

// parted is the first sequence of a stream that was rolled back that may have another event than
// before. Up to some event the stream is as it was. So the events that were read are as they were up to
// there, and no later one is.
func (w *watcher) parted(ctx context.Context) (uint64, error) {
	if w.info.HasSources() {
		return 1, nil // the sequences are those of the origin
	}
	start := max(w.info.State.FirstSeq, 1)
	events := w.ledger.known(w.info.State.LastSeq)
	events = slices.DeleteFunc(events, func(k known) bool { return k.sequence < start })
	low, high := 0, len(events)
	for low < high {
		middle := low + (high-low)/2
		found, err := w.compare(ctx, events[middle])
		switch {
		case err != nil:
			return 0, err
		case found == kept:
			low = middle + 1
		default:
			high = middle
		}
	}
	if low == 0 {
		return start, nil
	}
	return events[low-1].sequence + 1, nil
}

// skip goes on with the oldest event that is left, or that has a sequence which is used again.
func (w *watcher) skip(ctx context.Context, used uint64) error {
	first := max(w.info.State.FirstSeq, 1)
	at := first - 1
	it := &Item{Type: Loss, Reason: w.restarts, Lost: w.restartsLost}
	if errors.Is(w.restarts, ErrRolledBack) {
		at = max(first, used) - 1
		it.Lost = subjects.LostRange{From: used, To: max(used, w.at.Sequence)}
	}
	switch {
	case w.info.HasSources():
		m, err := w.api.NextMessage(ctx, w.opts.Stream, w.opts.names.Events(), first)
		if err != nil && !errors.Is(err, jetapi.ErrNoMessage) {
			return err
		}
		at = 0
		if err == nil {
			at = max(w.sequenceOf(m), 1) - 1
		}
	case it.Lost.From > 0 && used == 0:
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
