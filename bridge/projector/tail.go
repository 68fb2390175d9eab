package projector

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/store"
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
		newest, err = store.LastSequence(ctx, t.bucket.JS.Conn(), t.stream, store.AllMessages)
	}
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return err
	case err != nil:
		return nil // NATS is unavailable for the moment
	case newest > t.at:
		if t.quiet++; t.quiet >= store.MaxIdle {
			return fmt.Errorf("%w: it stands at sequence %d of %d of stream %s", store.ErrReplicaBehind, t.at, newest, t.stream)
		}
		return nil
	}
	t.quiet = 0
	t.caughtUp()
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
