package appwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch/internal/jetapi"
)

// owe has a snapshot read once the reader is at the end of the stream.
func (w *watcher) owe(reason error, lost subjects.LostRange) {
	if w.opts.NoSnapshot {
		return
	}
	if w.owed == nil || w.perhaps {
		w.owed, w.owedLost, w.perhaps, w.mild = reason, lost, false, false
	}
	w.held, w.owedWait, w.owedNext, w.due, w.tries = nil, 0, time.Time{}, nil, 0
}

// owePerhaps has the bucket compared with what was read. Only a difference leads to a Restart.
func (w *watcher) owePerhaps(reason error) {
	if w.owed == nil {
		w.owe(reason, subjects.LostRange{})
		w.perhaps = w.owed != nil
	}
	w.mild = false
}

// removedPerhaps handles that the stream begins at first, behind local sequences that were not
// delivered: they were removed unread, or not selected.
func (w *watcher) removedPerhaps(from, first uint64) error {
	reason := fmt.Errorf("%w, perhaps: the stream begins at %d", ErrRemoved, first)
	if !w.opts.NoSnapshot {
		w.owePerhaps(reason)
		return nil
	}
	if w.info.HasSources() {
		return nil // the sequences of the origin are not known
	}
	gone := subjects.LostRange{From: from, To: first - 1}
	w.gone = w.gone.with(gone)
	return w.yield(&Item{Type: Loss, Position: w.position(), Lost: gone, Reason: reason})
}

const (
	owedMin = 100 * time.Millisecond
	owedMax = 5 * time.Second
)

// triesOwed reports whether it is time for a try, and puts off the next one: longer each time.
func (w *watcher) triesOwed() bool {
	if time.Now().Before(w.owedNext) {
		return false
	}
	w.owedWait = min(max(2*w.owedWait, owedMin), owedMax)
	w.owedNext = time.Now().Add(w.owedWait)
	return true
}

// settleOwed reads the bucket for a Restart that is owed, once it no longer has what is lost. atEnd:
// everything up to the end of the stream was read.
func (w *watcher) settleOwed(ctx context.Context, atEnd bool) error {
	if w.owed == nil || w.rolled.From > 0 {
		return nil
	}
	if w.held != nil {
		return w.settleHeld(ctx, atEnd)
	}
	if !w.triesOwed() {
		return nil
	}
	if w.due == nil {
		if err := w.findDue(ctx); err != nil {
			return err
		}
	}
	snap, err := w.readBucket(ctx, w.at.StreamID, w.perhaps)
	if errors.Is(err, ErrDenied) || errors.Is(err, ErrClosed) {
		return err
	}
	if err != nil {
		w.retrying(err)
		return nil
	}
	w.works()
	if snap.hasty || lossPending(w.info) || snap.suspect(w.lost) {
		return nil // the bridge has not repaired it yet
	}
	if behind, err := w.bucketBehind(ctx, snap); err != nil || behind {
		return err
	}
	if snap.position > w.at.Sequence {
		w.held, w.owedWait, w.owedNext = snap, 0, time.Time{} // the events up to there come first
		return nil
	}
	return w.reconcile(snap)
}

// settleHeld yields the snapshot that is held, once every event up to it was yielded. A copy that has
// caught up with its origin never gets the others.
func (w *watcher) settleHeld(ctx context.Context, atEnd bool) error {
	if w.held.position <= w.at.Sequence {
		return w.reconcile(w.held)
	}
	if !atEnd || !w.info.IsMirror() && !w.info.HasSources() || !w.triesOwed() {
		return nil
	}
	caughtUp, err := w.copied(ctx, w.info)
	if err != nil || !caughtUp {
		return err
	}
	// It may have got more meanwhile.
	newest, err := w.api.LastSequence(ctx, w.opts.Stream, w.opts.filters)
	if err != nil || newest > w.local {
		return err
	}
	w.at.Sequence = w.held.position
	if !w.info.HasSources() {
		w.local = max(w.local, w.at.Sequence)
	}
	return w.reconcile(w.held)
}

// due is an event that the bucket has to reflect before it is compared with what was read.
type due struct {
	key      string
	sequence uint64
	gone     bool // it is a delete
}

// findDue notes the newest event that is selected. The bucket lags behind the stream: what is owed
// may be in front of that event. Later ones do not count, or it might never be far enough.
func (w *watcher) findDue(ctx context.Context) error {
	m, err := w.api.LastMessage(ctx, w.opts.Stream, w.opts.branch+w.opts.tokens+".*")
	if err != nil && !errors.Is(err, jetapi.ErrNoMessage) {
		return err
	}
	w.due = &due{}
	if err != nil {
		return nil
	}
	rest, _ := strings.CutPrefix(m.Subject, w.opts.branch)
	key, kind, ok := splitEvent(rest)
	if !ok || !isKind(kind, m.Header) {
		return nil // no event of ours: the bucket never has it
	}
	*w.due = due{key: key, sequence: w.sequenceOf(m), gone: kind == subjects.Deleted}
	return nil
}

// maxBehind is how often the bucket is read again while it lacks an event that is no longer in the
// stream. A bridge that has read it may still write it.
const maxBehind = 10

// bucketBehind reports whether events have still to be written into the bucket: those that were
// yielded, and the one that is due.
func (w *watcher) bucketBehind(ctx context.Context, snap *snapshot) (bool, error) {
	entries := make(map[string]*entry, len(snap.entries))
	for _, e := range snap.entries {
		entries[e.key] = e
	}
	var lacks []due
	check := func(d due) {
		// The bucket is written in the order of the stream. The marker of an app that is gone may have
		// been removed for its age.
		if d.sequence > snap.reached && !w.lost.contains(d.sequence) && (!d.gone || entries[d.key] != nil) {
			lacks = append(lacks, d)
		}
	}
	check(*w.due)
	for key, r := range w.ledger.apps {
		check(due{key, r.sequence, r.gone})
	}
	slices.SortFunc(lacks, func(a, b due) int { return cmp.Compare(b.sequence, a.sequence) })
	for _, d := range lacks {
		if !w.info.HasSources() && d.sequence < w.info.State.FirstSeq {
			continue // removed
		}
		m, err := w.api.LastMessage(ctx, w.opts.Stream, w.opts.branch+d.key+".*")
		if err != nil && !errors.Is(err, jetapi.ErrNoMessage) {
			return false, err
		}
		if err == nil && w.sequenceOf(m) >= d.sequence {
			return true, nil
		}
	}
	if len(lacks) == 0 {
		return false, nil
	}
	w.tries++
	return w.tries < maxBehind, nil
}

// forgive notes that nothing is owed.
func (w *watcher) forgive() {
	w.owed, w.owedLost, w.perhaps, w.mild = nil, subjects.LostRange{}, false, false
	w.held, w.owedWait, w.due, w.tries = nil, 0, nil, 0
}

// reconcile yields a snapshot that is owed. Every event up to it was yielded.
func (w *watcher) reconcile(snap *snapshot) error {
	if w.perhaps && !w.ledger.equals(snap) {
		// It is certain now. The entries are read again, with their bodies.
		w.held, w.perhaps, w.mild, w.owedNext = nil, false, false, time.Now()
		return nil
	}
	reason, lost, perhaps := w.owed, w.owedLost, w.perhaps
	w.forgive()
	if perhaps {
		return nil
	}
	return w.show(snap, reason, lost, 0)
}
