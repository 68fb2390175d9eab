package projector

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

var (
	errForeignWrite = errors.New("another client wrote to the bucket")
	// ErrKeysVanished is the result of a KeyCheck that found fewer keys than the bucket should have.
	ErrKeysVanished = errors.New("keys were removed from the bucket")
)

// KeyCheck compares the bucket's stream, each time its state is read, with what the projector wrote and
// removed.
type KeyCheck struct {
	projector *Projector
	keys      uint64 // in the bucket at the last check
	purged    uint64 // keys that the projector had removed when that check began

	// Of the check under way:
	before  uint64
	atLeast int64
}

// NewKeyCheck makes a check that begins with a bucket of so many keys.
func (p *Projector) NewKeyCheck(keys uint64) *KeyCheck { return &KeyCheck{projector: p, keys: keys} }

// Begin is called before the state is read.
func (c *KeyCheck) Begin() {
	c.before, c.atLeast = c.projector.purged.Load(), c.projector.atLeast.Load()
}

// Check has the projector read the bucket again if keys have vanished, or another client wrote to it.
// It returns errKeysVanished or errForeignWrite then.
func (c *KeyCheck) Check(state jetstream.StreamState) (err error) {
	p := c.projector
	// Without what the projector may have removed itself.
	want := max(int64(c.keys)-int64(p.purging.Load()-c.purged), min(c.atLeast, p.atLeast.Load()))
	switch {
	case int64(state.NumSubjects) < want:
		err = fmt.Errorf("%w: it holds %d of %d", ErrKeysVanished, state.NumSubjects, want)
	case state.LastSeq > p.sent.Load():
		err = errForeignWrite
	}
	if err != nil {
		p.lookAgain(err)
	}
	c.keys, c.purged = state.NumSubjects, c.before
	return err
}
