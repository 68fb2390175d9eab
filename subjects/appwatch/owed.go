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
	w.held, w.heldEnd, w.owedWait, w.owedNext, w.due, w.tries = nil, 0, 0, time.Time{}, nil, 0
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

// settleOwed reads the bucket for a Restart that is owed, once it no longer has what is lost.
func (w *watcher) settleOwed(ctx context.Context) error {
	if w.owed == nil || w.rolled.From > 0 {
		return nil
	}
	if w.held != nil {
		return w.settleHeld(ctx)
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
	if err := w.look(ctx); err != nil {
		return err
	}
	if snap.hasty || w.isAhead(snap) {
		return nil
	}
	if waits, err := w.repairing(ctx); err != nil || waits {
		return err
	}
	if waits, err := w.suspect(ctx, snap); err != nil || waits {
		w.tries++
		return err
	}
	if behind, err := w.bucketBehind(ctx, snap); err != nil || behind {
		return err
	}
	if lacks, err := w.bucketLacks(ctx, snap); err != nil || lacks {
		return err
	}
	if snap.position > w.at.Sequence {
		w.held, w.owedWait, w.owedNext = snap, 0, time.Time{} // the events up to there come first
		return nil
	}
	return w.reconcile(snap)
}

// repairing reports whether a bridge has still to repair a loss. It fills the range, so that no event is
// in it. If there is one, the range was not lost, or its sequences were given to other events.
func (w *watcher) repairing(ctx context.Context) (bool, error) {
	pending, ok := lostPending(w.info)
	if !ok {
		return false, nil
	}
	m, err := w.api.NextMessage(ctx, w.opts.Stream, w.opts.branch+"*.*.*.*", pending.From)
	if errors.Is(err, jetapi.ErrNoMessage) {
		return true, nil
	}
	return err == nil && m.Sequence > pending.To, err
}

// isAhead reports whether an entry is of an event behind the end of the stream: the stream has lost it, or
// the entry is wrong. A copy may be behind.
func (w *watcher) isAhead(snap *snapshot) bool {
	return !w.isCopy() && snap.position > w.info.State.LastSeq
}

// suspect reports whether an entry reflects an event that is lost, and is about to be replaced: one in
// a lost range that the stream does not have.
func (w *watcher) suspect(ctx context.Context, snap *snapshot) (bool, error) {
	for _, e := range snap.entries {
		if !w.lost.contains(e.sequence) || e.sequence < w.info.State.FirstSeq && w.tries >= maxBehind {
			continue // nothing shows any more that it was lost
		}
		if w.info.HasSources() {
			return true, nil // its sequence there is not known
		}
		found, err := w.compare(ctx, known{e.sequence, e.check})
		if err != nil || found != kept {
			return true, err
		}
	}
	return false, nil
}

// settleHeld yields the snapshot that is held, once every event up to it was yielded. A copy that has
// caught up with its origin never gets the others.
func (w *watcher) settleHeld(ctx context.Context) error {
	copied := w.heldEnd > 0 && max(w.local, w.passed) >= w.heldEnd-1
	if copied || w.held.position <= w.at.Sequence || !w.info.HasSources() && w.held.position <= w.passed {
		w.at.Sequence = max(w.at.Sequence, w.held.position)
		if !w.info.HasSources() {
			w.local = max(w.local, w.at.Sequence)
		}
		return w.reconcile(w.held)
	}
	if w.heldEnd > 0 || !w.isCopy() || !w.triesOwed() {
		return nil
	}
	caughtUp, err := w.copied(ctx, w.info)
	if err != nil || !caughtUp {
		return err
	}
	// It may have got more meanwhile, which is delivered first.
	err = w.look(ctx)
	w.heldEnd = w.info.State.LastSeq + 1
	return err
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

// bucketLacks reports whether an app that exists has to come back into the bucket: somebody else has
// written its key, or has removed it. A bridge restores it, but for one that cannot be made.
func (w *watcher) bucketLacks(ctx context.Context, snap *snapshot) (bool, error) {
	if lacks, err := w.anyExists(ctx, snap, snap.overwritten); err != nil || lacks {
		return lacks, err
	}
	var keys []string
	for _, d := range w.ledger.notIn(snap) {
		if !w.gone.after(d.sequence) { // else its delete may have been removed
			keys = append(keys, d.key)
		}
	}
	removed, err := w.anyExists(ctx, snap, keys)
	if removed {
		w.tries++
	}
	return removed && w.tries < maxBehind, err
}

// anyExists reports whether the stream has an app with one of these keys, as of an event that is not yielded
// any more.
func (w *watcher) anyExists(ctx context.Context, snap *snapshot, keys []string) (bool, error) {
	for _, key := range keys {
		m, err := w.api.LastMessage(ctx, w.opts.Stream, w.opts.branch+key+".*")
		if errors.Is(err, jetapi.ErrNoMessage) {
			continue
		}
		if err != nil {
			return false, err
		}
		rest, _ := strings.CutPrefix(m.Subject, w.opts.branch)
		_, kind, ok := splitEvent(rest)
		if ok && kind != subjects.Deleted && isKind(kind, m.Header) && w.sequenceOf(m) <= max(snap.position, w.at.Sequence) {
			return true, nil
		}
	}
	return false, nil
}

// forgive notes that nothing is owed.
func (w *watcher) forgive() {
	w.owed, w.owedLost, w.perhaps, w.mild = nil, subjects.LostRange{}, false, false
	w.held, w.heldEnd, w.owedWait, w.due, w.tries = nil, 0, 0, nil, 0
}

// reconcile yields a snapshot that is owed. Every event up to it was yielded.
func (w *watcher) reconcile(snap *snapshot) error {
	if w.perhaps && !w.ledger.equals(snap) {
		// It is certain now. The entries are read again, with their bodies.
		w.held, w.heldEnd, w.perhaps, w.mild, w.owedNext = nil, 0, false, false, time.Now()
		return nil
	}
	reason, lost, perhaps := w.owed, w.owedLost, w.perhaps
	w.forgive()
	if perhaps {
		return nil
	}
	return w.show(snap, reason, lost, 0)
}
