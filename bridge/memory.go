package bridge

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/publisher"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// memory is what a session leaves for the next one of the same bridge.
type memory struct {
	acknowledged store.Acknowledged // by stream and bucket, over all sessions
	doubts       doubts
	altered      altered
	// pending is the queue of the last session that was live, also after its end: what it holds is
	// still to be published. Nil while this bridge does not lead.
	pending atomic.Pointer[publisher.Queue]
	lived   atomic.Bool // a session has been live
	// checked is the number of reconnects to NATS when stream and bucket were last checked: since a
	// later reconnect another server, or another store, may be behind the connection.
	checked  atomic.Uint64
	removed  []subjects.LostRange // ranges that were reported as removed from the stream
	reported store.Loss           // the loss that was reported last and is not healed yet

	claim        *store.Claim // of this term of leadership; nil before its first session
	otherWriters int          // sessions of this term that ended with events of another writer
	rival        atomic.Bool  // another bridge was reported in this term
}

// removedRanges is how many reported ranges a bridge remembers over its sessions.
const removedRanges = 1000

// doubts are the apps whose entry in the bucket may not show their last event. The next session takes
// such an entry for damaged. Its zero value has none. Safe for concurrent use.
type doubts struct {
	mu    sync.Mutex
	wrong map[subjects.AppID]struct{}       // by the audit
	found map[subjects.AppID]*store.Message // the last messages that appends of past sessions ran into
}

// add notes apps whose entry, or last event, the audit found to be wrong.
func (d *doubts) add(ids []subjects.AppID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wrong == nil {
		d.wrong = map[subjects.AppID]struct{}{}
	}
	for _, id := range ids {
		d.wrong[id] = struct{}{}
	}
}

func (d *doubts) addFound(found map[subjects.AppID]*store.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.found == nil {
		d.found = map[subjects.AppID]*store.Message{}
	}
	maps.Copy(d.found, found)
}

func (d *doubts) forgetFound() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.found)
}

// confirm forgets the messages that the stream does not have any more: it has lost them, or they were
// removed. What they showed may be owed again.
func (d *doubts) confirm(ctx context.Context, at func(ctx context.Context, sequence uint64) (*store.Message, error)) error {
	d.mu.Lock()
	found := maps.Clone(d.found)
	d.mu.Unlock()
	return store.ReadEach(ctx, maps.Keys(found), func(ctx context.Context, id subjects.AppID) (*store.Message, error) {
		return store.OrNone(at(ctx, found[id].Sequence))
	}, func(id subjects.AppID, m *store.Message) {
		if had := found[id]; m == nil || m.Subject != had.Subject || !m.Stored.Equal(had.Stored) {
			d.mu.Lock()
			defer d.mu.Unlock()
			delete(d.found, id)
		}
	})
}

// ids are the apps of the messages that appends ran into.
func (d *doubts) ids() []subjects.AppID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.found))
}

// mark marks the entries of these apps as damaged, so that what was published of them is read from
// the stream. What the audit found counts once.
func (d *doubts) mark(snap *store.Snapshot, s subjects.Subjects) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, m := range d.found {
		had := snap.Records[id] // of an app without a record, readPublished reads the last event
		if _, err := m.Record(s); err == nil && had != nil && had.Fence() < m.Sequence && m.Sequence <= snap.Position {
			snap.Records[id] = &app.Record{Damaged: true} // the bucket should have shown it
		}
	}
	for id := range d.wrong {
		snap.DoubtEntry(id)
	}
	clear(d.wrong)
}

// correct brings the records of apps up to the last messages that appends ran into. Those that the
// records show by now are forgotten.
func (d *doubts) correct(records map[subjects.AppID]*app.Record, s subjects.Subjects) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, m := range d.found {
		if records[id].Fence() >= m.Sequence {
			delete(d.found, id)
		} else if r, err := m.Record(s); err == nil {
			records[id] = r
		} else {
			records[id] = records[id].Behind(m.Sequence) // it counts for the fence only
		}
	}
}
