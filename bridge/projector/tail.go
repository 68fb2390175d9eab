package projector

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// tail is how far one projection has followed the stream. Its goroutine alone uses it.
type tail struct {
	*Projector
	target  uint64 // the newest message of the stream when the projection started
	at      uint64 // the newest message that was delivered
	checked uint64 // up to here no sequence is missing that has not been reported
	quiet   int    // calls of idle since the last message
	// skips is true if the consumer begins with the last messages of each subject;
	// skipped is a sequence from which on it delivers all.
	skips   bool
	skipped uint64
	// vanished is the end of the stream when the last call of idle found that
	// nothing is left of what follows checked, 0 if it did not.
	vanished uint64
}

func (t *tail) caughtUp() {
	t.once.Do(func() { close(t.CaughtUp) })
}

// start finds out, once there is a consumer that begins with the last messages
// of each subject, up to where it may skip others.
func (t *tail) start(ctx context.Context) error {
	if !t.skips {
		return nil
	}
	info, err := t.lookUp(ctx)
	if err != nil {
		return err
	}
	t.skips, t.skipped = false, info.State.LastSeq
	t.checked = max(t.checked, t.skipped)
	return nil
}

// reach notes that a message is delivered. It returns an error if messages before it were removed that
// were not projected.
func (t *tail) reach(ctx context.Context, sequence uint64) error {
	if err := t.start(ctx); err != nil {
		return err
	}
	t.quiet, t.vanished = 0, 0
	t.at = sequence
	if sequence <= t.checked {
		return nil // it was projected before
	}
	from := t.checked + 1
	t.checked = sequence
	if from == sequence {
		return nil
	}
	if err := t.compareUndelivered(ctx, from, sequence-1); err != nil {
		return err
	}
	return t.removed(from, sequence-1)
}

// idle compares a projection to which nothing is delivered with the stream's leader.
func (t *tail) idle(ctx context.Context) error {
	if err := t.start(ctx); err != nil {
		return err
	}
	if t.written.Load() >= t.at {
		t.failures.Store(0) // nothing to write, so nothing fails
	}
	vanished := t.vanished
	t.vanished = 0
	info, err := t.lookUp(ctx) // before the newest message: what it counts has been removed or is that
	var newest uint64
	if err == nil {
		newest, err = store.LastSequence(ctx, t.bucket.JS, t.stream, store.AllMessages)
	}
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return err
	case err != nil && !t.bucket.JS.Conn().IsConnected():
		return nil
	case err != nil:
		// Without the leader it is not known whether anything is missing.
		if t.quiet++; t.quiet >= store.MaxIdle {
			return fmt.Errorf("read the end of stream %s: %w", t.stream, err)
		}
		return nil
	case newest > t.at:
		if err := t.compareUndelivered(ctx, t.at+1, newest); err != nil {
			return err
		}
		if t.quiet++; t.quiet >= store.MaxIdle {
			return fmt.Errorf("%w: it stands at sequence %d of %d of stream %s", store.ErrReplicaBehind, t.at, newest, t.stream)
		}
		return nil
	}
	t.quiet = 0
	t.caughtUp()
	if err := t.compareLate(ctx); err != nil {
		return err
	}
	// Nothing is left of what follows. At the second time in a row nothing of
	// it is on its way either.
	if vanished > t.checked {
		from := t.checked + 1
		t.checked = vanished
		if err := t.removed(from, vanished); err != nil {
			return err
		}
	}
	if info.State.LastSeq > t.checked {
		t.vanished = info.State.LastSeq
	}
	return nil
}

const logRemoved = "events were removed from the stream before they were projected"

// ErrRemoved ends a session: events that the bucket does not reflect are gone from
// the stream. The next session compares the cluster with what is left.
var ErrRemoved = errors.New(logRemoved)

// removed handles the sequences from and to, and those between. The bucket does
// not reflect them, and the stream has them no more. Those that were gone before
// the session read the stream are in none of its records, so that its comparison
// finds what they were about. For all others it returns an error.
func (p *Projector) removed(from, to uint64) error {
	var err error
	for _, gap := range store.WithoutRanges(subjects.LostRange{From: from, To: to}, p.lost) {
		p.metrics.removedSequences.Add(float64(gap.To - gap.From + 1))
		if p.supersedes {
			continue // what removed them is a newer event of the same subject
		}
		p.log.Error(logRemoved, zap.String("stream", p.stream), zap.Uint64("from", gap.From), zap.Uint64("to", gap.To))
		p.lost = append(p.lost, gap) // reported once, also over the sessions
		if gap.From <= p.followed.Load() || gap.To > p.end {
			err = fmt.Errorf("%w: stream %s, sequences %s", ErrRemoved, p.stream, gap)
		}
	}
	return err
}

func (p *Projector) notice(sequence uint64, header nats.Header) {
	p.known.NoteNotice(sequence)
	lost, err := store.ParseNotice(sequence, header)
	if err != nil {
		p.log.Warn("cannot parse a notice of loss in the stream", zap.Uint64("sequence", sequence), zap.Error(err))
		return
	}
	p.log.Info("the stream holds a notice of loss",
		zap.Uint64("sequence", sequence), zap.Uint64("from", lost.From), zap.Uint64("to", lost.To))
}
