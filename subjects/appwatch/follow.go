package appwatch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch/internal/jetapi"
)

const (
	// checkTime is how often the stream is looked at, and rolledTime while it lacks what was read.
	checkTime  = 2 * time.Second
	rolledTime = 250 * time.Millisecond
	// endTime is how long a stream ends before what was read of it until that cannot be resumed. A
	// leader that is cut off from its group answers for about 10 s.
	endTime = 15 * time.Second
	// checkMessages is how many messages are read before the clock is looked at, unless a Restart is
	// owed.
	checkMessages = 256
	// maxRanges is how many ranges of removed messages are remembered.
	maxRanges = 64
)

// follow yields what a consumer delivers.
func (w *watcher) follow(ctx context.Context, f *jetapi.Consumer) error {
	if !w.info.HasSources() {
		if err := w.markAtTarget(); err != nil {
			return err
		}
	}
	for n := 0; ; {
		msg, d, err := f.Next(ctx, w.wait())
		if err != nil {
			return err
		}
		if msg == nil {
			if passed := f.Passed(); passed > w.reported {
				w.reported, w.quiet = passed, 0
			}
			if err := w.inspect(ctx, true); err != nil {
				return err
			}
			continue
		}
		w.quiet = 0
		if err := w.message(ctx, msg, d); err != nil {
			return err
		}
		if err := w.markAtTarget(); err != nil {
			return err
		}
		if n++; (n%checkMessages == 0 || w.owed != nil) && time.Since(w.checked) > checkTime {
			if err := w.inspect(ctx, false); err != nil {
				return err
			}
		}
	}
}

// wait is how long the feed may be quiet before the stream is looked at.
func (w *watcher) wait() time.Duration {
	switch {
	case !w.marked || w.held != nil:
		return quietTime
	case w.owed != nil:
		return min(max(time.Until(w.owedNext), quietTime/2), checkTime)
	case w.rolled.From > 0:
		return rolledTime
	default:
		return checkTime
	}
}

// contiguous reports whether a sequence that is not delivered is a message that was removed: the
// reader selects all messages, and the stream has no others.
func (w *watcher) contiguous() bool {
	cfg := w.info.Config
	switch {
	case !w.opts.all() || w.info.HasSources() || cfg.MaxMsgsPerSubject > 0:
		return false
	case w.info.IsMirror():
		return len(cfg.Mirror.SubjectTransforms) == 0 && (cfg.Mirror.FilterSubject == "" || cfg.Mirror.FilterSubject == w.opts.names.Events())
	default:
		return len(cfg.Subjects) == 1 && cfg.Subjects[0] == w.opts.names.Events()
	}
}

// message handles one message of the stream.
func (w *watcher) message(ctx context.Context, msg *nats.Msg, d jetapi.Delivery) error {
	local, sequence := d.Sequence, d.Sequence
	if w.info.HasSources() {
		origin, at, ok := parseSource(first(msg.Header, subjects.HeaderStreamSource))
		if !ok {
			w.local = local // of no origin
			return nil
		}
		if at <= w.at.Sequence && w.origin != "" && w.origin != origin && !w.open {
			return fmt.Errorf("%w: stream %s has events of %s and of %s under the prefix %s", ErrOptions, w.opts.Stream, w.origin, origin, w.opts.Prefix)
		}
		sequence, w.origin = at, origin
	}
	if w.open {
		if time.Unix(0, d.Stored).Before(w.opts.Since) {
			return nil
		}
		w.open, w.started = false, true
		w.at.Sequence, w.local = sequence-1, local-1
		w.ledger.base = sequence - 1
	}
	if sequence <= w.at.Sequence {
		w.local = max(w.local, local)
		return nil
	}
	rest, isEvent := strings.CutPrefix(msg.Subject, w.opts.branch)
	isNotice := isEvent && msg.Subject == w.opts.notice
	isFiller := isEvent && msg.Subject == w.opts.filler
	var lost subjects.LostRange
	if isNotice {
		if lost, isNotice = parseNotice(msg, sequence); isNotice {
			w.lost = w.lost.with(lost)
		}
	}
	if w.rolled.From > 0 && !isNotice && !isFiller {
		if err := w.recheck(ctx); err != nil {
			return err
		}
		if w.rolled.From > 0 && !w.isCopy() {
			return w.fail(ErrRolledBack, w.rolled)
		}
		w.resumed() // the copy was behind
	}
	if next := max(w.local, w.passed) + 1; local > next {
		if err := w.gap(ctx, subjects.LostRange{From: next, To: local - 1}); err != nil {
			return err
		}
	}
	if w.held != nil && sequence > w.held.position {
		if err := w.reconcile(w.held); err != nil {
			return err
		}
	}
	w.local, w.at.Sequence, w.lastStored, w.storedAt, w.given = local, sequence, d.Stored, sequence, false
	switch {
	case isNotice:
		return w.noticed(msg, d, lost)
	case isFiller || !isEvent:
		return nil
	default:
		return w.event(msg, d, rest, sequence)
	}
}

// splitEvent splits the subject of an event, behind the branch of the events.
func splitEvent(rest string) (key string, kind subjects.EventKind, ok bool) {
	dot := strings.LastIndexByte(rest, '.')
	if dot < 0 {
		return "", "", false
	}
	return rest[:dot], subjects.EventKind(rest[dot+1:]), true
}

// isKind reports whether a header is that of an event of this kind.
func isKind(kind subjects.EventKind, h nats.Header) bool {
	named, ok := kindOf(first(h, subjects.CEType))
	return ok && named == kind
}

// event handles an event. rest is its subject behind the branch of the events.
func (w *watcher) event(msg *nats.Msg, d jetapi.Delivery, rest string, sequence uint64) error {
	key, kind, ok := splitEvent(rest)
	if !ok || !isKind(kind, msg.Header) {
		return nil // no event of ours
	}
	r := w.ledger.apps[key]
	it := Item{Type: Event, Kind: kind, Sequence: sequence, msg: msg, bare: w.opts.HeadersOnly, stored: d.Stored}
	if r != nil {
		it.ID = r.id
	} else {
		var err error
		if it.ID, _, err = w.opts.names.ParseEvent(msg.Subject); err != nil {
			return nil //nolint:nilerr // a subject that is not known
		}
	}
	previous := number(first(msg.Header, subjects.HeaderPreviousSequence))
	if r == nil || r.sequence != previous {
		if err := w.judge(r, &it, previous); err != nil {
			return err
		}
	}
	w.check, w.lastAt = checkOf(first(msg.Header, subjects.CEID)), sequence
	if r == nil {
		w.ledger.note(strings.Clone(key), it.ID, kind, sequence, w.check, it.Status())
	} else {
		w.ledger.set(r, kind, sequence, w.check, it.Status())
	}
	w.ledger.remember(sequence, w.check)
	it.Position = w.position()
	return w.yield(&it)
}

// judge compares an event with the one before it of the same app, and reports what is missing.
func (w *watcher) judge(r *record, it *Item, previous uint64) error {
	loss := Item{Type: Loss, Position: w.position()}
	switch w.ledger.judge(r, it.Kind, previous, w.lost.contains) {
	case missing:
		if w.gone.contains(previous) {
			return nil // reported
		}
		loss.Reason = fmt.Errorf("%w: event %d of %s", ErrRemoved, previous, it.ID)
		loss.Lost = subjects.LostRange{From: previous, To: previous}
	case rewritten:
		loss.Reason = fmt.Errorf("%w: event %d of %s is no longer part of the history", ErrNotice, r.sequence, it.ID)
		loss.Lost = subjects.LostRange{From: previous + 1, To: min(r.sequence, it.Sequence-1)}
		w.lost = w.lost.with(loss.Lost)
	case unknown:
		// The state of this app is known now. That of others may be missing, too.
		w.owe(fmt.Errorf("%w: %s", ErrBucket, it.ID), subjects.LostRange{})
		return nil
	default:
		return nil
	}
	// The position of the loss is before this event.
	w.owe(loss.Reason, loss.Lost)
	loss.Position = w.position().at(it.Sequence - 1)
	return w.yield(&loss)
}

// parseNotice reads a notice of loss, which has a higher sequence than what it reports. ok is false for
// a message that is none.
func parseNotice(msg *nats.Msg, sequence uint64) (lost subjects.LostRange, ok bool) {
	lost, err := subjects.ParseNotice(first(msg.Header, subjects.HeaderLostFrom), first(msg.Header, subjects.HeaderLostTo))
	return lost, err == nil && lost.To < sequence
}

// noticed handles a notice of loss.
func (w *watcher) noticed(msg *nats.Msg, d jetapi.Delivery, lost subjects.LostRange) error {
	w.resumed()
	w.check, w.lastAt = 0, 0
	w.ledger.doubts(lost)
	w.owe(ErrNotice, lost)
	return w.yield(&Item{Type: Loss, Position: w.position(), Sequence: w.at.Sequence, Lost: lost, Reason: ErrNotice, msg: msg, stored: d.Stored})
}

// removed reports messages that are gone and were not read, but for those that are known to be lost.
func (w *watcher) removed(gap subjects.LostRange) error {
	for _, gone := range w.lost.without(gap) {
		reason := fmt.Errorf("%w: sequences %s", ErrRemoved, gone)
		w.gone = append(w.gone[max(0, len(w.gone)-maxRanges+1):], gone)
		w.owe(reason, gone)
		w.at.Sequence, w.local = gone.To, max(w.local, gone.To)
		if err := w.yield(&Item{Type: Loss, Position: w.position(), Lost: gone, Reason: reason}); err != nil {
			return err
		}
	}
	return nil
}

// errSkipped: the consumer has passed an event that it did not deliver.
var errSkipped = errors.New("the consumer skipped an event")

// gap handles sequences that the consumer has passed and did not deliver: they were removed, or are
// not selected.
func (w *watcher) gap(ctx context.Context, gap subjects.LostRange) error {
	// The stream may have got another subject since it was looked at.
	if gap.To >= w.info.State.LastSeq && w.contiguous() {
		if err := w.look(ctx); err != nil {
			return err
		}
	}
	if !w.contiguous() {
		if w.jump == 0 {
			w.jump = gap.From
		}
		return nil
	}
	// It may have messages of a subject that it had once, and a mirror those of any subject.
	switch m, err := w.api.NextMessage(ctx, w.opts.Stream, ">", gap.From); {
	case err != nil && !errors.Is(err, jetapi.ErrNoMessage):
		return err
	case err == nil && m.Sequence <= gap.To && strings.HasPrefix(m.Subject, w.opts.branch):
		return fmt.Errorf("%w: %d", errSkipped, m.Sequence)
	case err == nil && m.Sequence <= gap.To:
		return nil
	}
	return w.removed(gap)
}

// markAtTarget reports that the reader has caught up, once it has.
func (w *watcher) markAtTarget() error {
	if w.marked || w.open || w.rolled.From > 0 || max(w.local, w.passed) < w.target {
		return nil
	}
	return w.mark()
}

// mark reports that the reader has caught up.
func (w *watcher) mark() error {
	w.marked = true
	return w.yield(&Item{Type: Mark, Position: w.position()})
}
