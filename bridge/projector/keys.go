package projector

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// key is what the projector knows of an app's key in the bucket. Keys do not expire.
type key struct {
	exists bool           // the app does: it is no delete marker
	event  uint64         // the stream sequence that it reflects, 0 if that is not known
	at     store.StoredAt // zero if that is not known: what the bucket holds is compared with the stream
	swept  bool           // an old delete marker that is being removed
}

// marker reports whether the key is known to be a delete marker.
func (k key) marker() bool { return !k.exists && k.event > 0 && k.at.Sequence > 0 }

// setKey notes what the bucket holds of an app. A delete marker is noted while markers have to be
// removed at some age. mu must be held.
func (p *Projector) setKey(id subjects.AppID, k key) {
	if k.exists || p.bucket.MarkerMaxAge > 0 {
		p.keys[id] = k
	} else {
		delete(p.keys, id)
	}
}

// stored notes that the bucket has acknowledged a write. first is true for the first event of the
// app.
func (p *Projector) stored(id subjects.AppID, k key, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, had := p.keys[id]; first && !had {
		p.atLeast.Add(1)
	}
	p.setKey(id, k)
	delete(p.flying, k.at.Sequence)
	delete(p.refused, id)
}

// flying is a write whose outcome is open.
type flying struct {
	app   subjects.AppID
	event uint64 // the stream sequence that it reflects
}

// fly notes that a write is sent which gets a sequence of the bucket's stream if it is stored.
func (p *Projector) fly(sequence uint64, w flying) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flying[sequence] = w
}

// refly checks the writes whose outcome was open when the bucket was read. If another writer took
// the sequence of one, that write is refused, but the one behind it, which expected a message
// there, is not. So the bucket may reflect a later event without an earlier one. mu must be held.
func (p *Projector) refly(snap *store.Snapshot, suspects map[subjects.AppID]bool) {
	for _, w := range p.flying {
		r, m := snap.Records[w.app], snap.Markers[w.app]
		switch {
		case w.event > snap.Position || m.Event >= w.event:
		case r == nil:
			snap.Records[w.app] = &app.Record{Damaged: true, Lost: p.keys[w.app].exists}
		case !r.Damaged && r.Sequence < w.event:
			if _, suspect := suspects[w.app]; !suspect {
				suspects[w.app] = true
			}
		}
	}
	clear(p.flying) // what is stored late is suspect, and found to be right
}

// wrote reports whether this projector wrote the message of an app's key at a sequence of the
// bucket's stream. mu must be held.
func (p *Projector) wrote(id subjects.AppID, at uint64) bool {
	if k := p.keys[id]; k.at.Sequence == at && at > 0 {
		return true
	}
	w, ok := p.flying[at]
	return ok && w.app == id
}

// markersNeeded selects the delete markers that a read of the bucket has to return: those that are
// removed at some age, those that another bridge wrote, and those in the place of an entry.
func (p *Projector) markersNeeded() func(subjects.AppID, store.Marker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	under := map[subjects.AppID]bool{}
	for _, w := range p.flying {
		under[w.app] = true
	}
	return func(id subjects.AppID, m store.Marker) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		_, known := p.keys[id]
		return known || under[id] || p.bucket.MarkerMaxAge > 0 || m.Event > p.followed.Load()
	}
}

// errDistrusted has the projection start over: an entry may be another than it should be.
var errDistrusted = errors.New("a bucket entry may differ from its app's last event")

// Distrust has the projector compare the keys of apps with their last events, and write those that
// differ or are missing. exists is true for apps that exist.
func (p *Projector) Distrust(exists bool, ids ...subjects.AppID) {
	if len(ids) == 0 {
		return
	}
	p.mu.Lock()
	for _, id := range ids {
		k := p.keys[id]
		p.keys[id] = key{exists: exists || k.exists, event: k.event}
	}
	p.mu.Unlock()
	p.lookAgain(errDistrusted)
}

// Disown has the keys of apps purged that were never published.
func (p *Projector) Disown(ids ...subjects.AppID) {
	if len(ids) == 0 {
		return
	}
	p.mu.Lock()
	for _, id := range ids {
		delete(p.keys, id) // else the app would count as one that exists
	}
	p.mu.Unlock()
	p.lookAgain(errDistrusted)
}

// admit compares a bucket that was just read with what it held before. Keys that are gone count as
// damaged. It returns the suspects: keys that this projector did not write, although it has
// followed the stream that far. The value is true if it had written the key before.
func (p *Projector) admit(snap *store.Snapshot) (suspects map[subjects.AppID]bool) {
	suspects = map[subjects.AppID]bool{}
	p.mu.Lock()
	defer p.mu.Unlock()
	followed, missing := p.followed.Load(), 0
	for id, r := range snap.Records {
		k, had := p.keys[id]
		at := snap.Stored[id]
		switch {
		case r.Damaged:
			r.Lost = k.exists
			if k.exists {
				p.keys[id] = key{exists: true}
			}
		case p.admitted && r.Sequence <= followed && !p.wrote(id, at.Sequence):
			suspects[id] = had
		default:
			p.keys[id] = key{exists: true, event: r.Sequence, at: at}
		}
	}
	for id, k := range p.keys {
		if snap.Records[id] != nil {
			continue
		}
		m, marked := snap.Markers[id]
		switch {
		case marked && (m.Event > followed || p.wrote(id, m.At.Sequence)):
			p.setKey(id, key{event: m.Event, at: m.At})
		case marked:
			suspects[id] = true
		case k.swept:
			delete(p.keys, id)
		default:
			missing++
			snap.Records[id] = &app.Record{Damaged: true, Lost: k.exists}
			p.keys[id] = key{exists: k.exists}
		}
	}
	for id, m := range snap.Markers {
		if _, had := p.keys[id]; !had {
			p.setKey(id, key{event: m.Event, at: m.At})
		}
	}
	p.admitted = true
	p.atLeast.Store(int64(snap.Keys + snap.Foreign))
	p.refly(snap, suspects)
	if missing > 0 {
		p.log.Error("keys are missing in the bucket; writing them again", zap.Int("keys", missing))
	}
	if written := p.written.Load(); written > snap.Position {
		p.lag.note(written, time.Now())
		p.written.Store(snap.Position) // the rest has to be written again
	}
	return suspects
}

// purge removes an app's key at sequence of the bucket's stream, not what was written since, and
// counts it for the KeyCheck.
func (p *Projector) purge(ctx context.Context, id subjects.AppID, sequence uint64) error {
	if sequence == 0 {
		return nil
	}
	p.purging.Add(1)
	p.atLeast.Add(-1)
	if err := p.bucket.PurgeApp(ctx, id, sequence); err != nil {
		return err
	}
	p.purged.Add(1)
	return nil
}

// KeyState is what the projector knows of one app's key in the bucket.
type KeyState struct {
	Known   bool
	Exists  bool   // it is no delete marker
	Event   uint64 // the stream sequence that it reflects, 0 if that is not known
	Entry   uint64 // its sequence in the bucket's stream, 0 if that is not known
	Touched uint64 // the sequence of an event of the app that the session has not judged yet
}

// KeyStates returns what is known of the keys of apps, and up to which sequence the bucket reflects
// the stream.
func (p *Projector) KeyStates(ids []subjects.AppID) (states map[subjects.AppID]KeyState, written uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	states = make(map[subjects.AppID]KeyState, len(ids))
	for _, id := range ids {
		k, ok := p.keys[id]
		states[id] = KeyState{Known: ok, Exists: k.exists, Event: k.event, Entry: k.at.Sequence, Touched: p.touched[id]}
	}
	return states, p.written.Load()
}

var (
	errForeignWrite = errors.New("another client wrote to the bucket")
	// ErrKeysVanished is the result of a KeyCheck that found fewer keys than the bucket should
	// have.
	ErrKeysVanished = errors.New("keys were removed from the bucket")
)

// KeyCheck compares the bucket's stream, each time its state is read, with what the projector wrote
// and removed.
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

// Check has the projector read the bucket again if keys have vanished, or another client wrote to
// it. It returns errKeysVanished or errForeignWrite then.
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
