package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// snapshot is what the bucket holds at one moment: the apps that exist, and the entries that are
// damaged. Of delete markers it holds a summary, since there may be many.
type snapshot struct {
	records  map[subjects.AppID]*app.Record
	keys     uint64                    // of apps, delete markers included
	markers  map[subjects.AppID]marker // those that the load was asked for
	deleted  app.Deletion              // the newest that a marker shows
	position uint64                    // the highest stream sequence that an entry or marker reflects
	// positionID is the id of the event at position.
	positionID string
	last       uint64 // the last sequence of the bucket's own stream
	foreign    uint64 // keys that can be no app's
	// smallest is the smallest message of the bucket, nil if there is none.
	smallest *nats.Msg
	// rewrites are entries in another encoding than the configured one.
	rewrites []rewrite
	stored   map[subjects.AppID]storedAt
}

// rewrite is the message that replaces an app's entry.
type rewrite struct {
	app subjects.AppID
	msg *nats.Msg
}

// marker is an intact delete marker.
type marker struct {
	event uint64 // the stream sequence that it reflects
	at    storedAt
}

// storedAt is where, and when, the bucket's stream stored a message.
type storedAt struct {
	sequence uint64
	time     time.Time
}

// loadTries is how many consumers a load reads with before it gives up.
const loadTries = 3

// load reads the whole bucket, at least as far as the leader of its stream has it. Of delete markers
// it keeps only those that have to be removed at some age.
func (b *bucket) load(ctx context.Context) (*snapshot, error) {
	return b.loadKeeping(ctx, func(subjects.AppID, marker) bool { return b.markerMaxAge > 0 })
}

// loadKeeping is load with the delete markers that keep selects.
func (b *bucket) loadKeeping(ctx context.Context, keep func(subjects.AppID, marker) bool) (*snapshot, error) {
	var snap *snapshot
	var err error
	for range loadTries {
		if snap, err = b.read(ctx, keep); !errors.Is(err, errReplicaBehind) {
			break
		}
		b.log.Warn("reading the bucket again", zap.String("bucket", b.name), zap.Error(err))
	}
	if err != nil {
		return nil, fmt.Errorf("read bucket %s: %w", b.name, err)
	}
	return snap, nil
}

// read reads the bucket with one consumer. The server may place that on a
// replica that is catching up, so what it delivers counts only once it has
// reached the newest message that the leader has.
func (b *bucket) read(ctx context.Context, keep func(subjects.AppID, marker) bool) (*snapshot, error) {
	name, filter := subjects.BucketStream(b.name), subjects.BucketFilter(b.name)
	stream, err := b.js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("look up stream %s: %w", name, err)
	}
	// The last sequence first: a later write of another is then either read or refuses ours.
	first := stream.CachedInfo().State.LastSeq
	r := &bucketReader{
		bucket: b, keep: keep, last: first,
		keys: map[subjects.AppID]*bucketKey{}, kept: map[subjects.AppID]marker{}, foreign: map[string]struct{}{},
	}
	if err := followLast(ctx, b.js, name, filter, false, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
		r.add(msg, meta)
		return nil
	}); err != nil {
		return nil, err
	}
	snap := r.snapshot()
	if stream, err = b.js.Stream(ctx, name); err != nil {
		return nil, fmt.Errorf("look up stream %s: %w", name, err)
	}
	// A replica that is behind can also show keys that the leader has no more. What was written
	// meanwhile may have been read twice, so then the numbers are not compared.
	state, keys := stream.CachedInfo().State, snap.keys+snap.foreign
	if state.LastSeq == first && snap.last == first && state.NumSubjects < keys {
		return nil, fmt.Errorf("%w: it shows %d keys of %d", errReplicaBehind, keys, state.NumSubjects)
	}
	return snap, nil
}

// bucketReader collects the newest message of every key. A key may come more
// than once.
type bucketReader struct {
	bucket  *bucket
	keep    func(subjects.AppID, marker) bool
	last    uint64
	keys    map[subjects.AppID]*bucketKey
	kept    map[subjects.AppID]marker
	markers uint64
	deleted app.Deletion
	foreign map[string]struct{}
	// position is the highest stream sequence that an intact entry or marker reflects, positionID
	// the id of its event.
	position   uint64
	positionID string
	// smallest is the smallest message, without the header that fenced it.
	smallest *nats.Msg
	intact   bool // smallest is of an entry that can be read
}

// bucketKey is what was read of an app's key.
type bucketKey struct {
	record  *app.Record
	stored  storedAt
	rewrite *nats.Msg // in the configured encoding, nil if it is that already
}

func (r *bucketReader) add(msg jetstream.Msg, meta *jetstream.MsgMetadata) {
	r.last = max(r.last, meta.Sequence.Stream)
	intact := false
	defer func() { r.keepSmallest(msg, intact) }()
	b := r.bucket
	key, err := subjects.ParseBucketSubject(b.name, msg.Subject())
	var id subjects.AppID
	if err == nil {
		id, err = subjects.ParseKey(key)
	}
	if err != nil {
		r.foreign[msg.Subject()] = struct{}{}
		b.log.Warn("the bucket holds a key that is not of an app", zap.String("subject", msg.Subject()), zap.Error(err))
		return
	}
	stored := storedAt{meta.Sequence.Stream, meta.Timestamp}
	delete(r.kept, id)
	held, err := app.ReadEntry(msg.Headers(), msg.Data())
	if err != nil {
		b.log.Warn("bucket entry is damaged", zap.String("key", key), zap.Error(err))
		r.keys[id] = &bucketKey{record: &app.Record{Damaged: true, Entry: stored.sequence}, stored: stored}
		return
	}
	if contains(b.lost, held.Sequence) {
		r.keys[id] = &bucketKey{record: &app.Record{Damaged: true, Entry: stored.sequence, Held: held}, stored: stored}
		return
	}
	intact = true
	if held.Sequence > r.position {
		r.position, r.positionID = held.Sequence, msg.Headers().Get(subjects.CEID)
	}
	if held.Kind == subjects.Deleted {
		r.addMarker(id, held, stored)
		return
	}
	r.keys[id] = &bucketKey{record: held, stored: stored, rewrite: b.rewrite(msg.Subject(), msg.Headers(), held)}
}

// addMarker takes in an intact delete marker, which takes the place of an entry that was read before.
func (r *bucketReader) addMarker(id subjects.AppID, held *app.Record, stored storedAt) {
	delete(r.keys, id)
	r.markers++
	if held.Sequence > r.bucket.accepted {
		r.deleted.Note(id, held.DeletedVersion)
	}
	if m := (marker{held.Sequence, stored}); r.keep(id, m) {
		r.kept[id] = m
	}
}

// keepSmallest keeps a copy of the smallest message, of an intact entry if there is one.
func (r *bucketReader) keepSmallest(msg jetstream.Msg, intact bool) {
	if r.smallest != nil && (r.intact && !intact || r.intact == intact && len(msg.Data()) >= len(r.smallest.Data)) {
		return
	}
	h := nats.Header{}
	maps.Copy(h, msg.Headers())
	h.Del(subjects.HeaderExpectedLastSequence)
	r.smallest, r.intact = &nats.Msg{Subject: msg.Subject(), Header: h, Data: msg.Data()}, intact
}

// snapshot is what was read.
func (r *bucketReader) snapshot() *snapshot {
	snap := &snapshot{
		records: make(map[subjects.AppID]*app.Record, len(r.keys)), last: r.last, foreign: uint64(len(r.foreign)), smallest: r.smallest,
		stored: make(map[subjects.AppID]storedAt, len(r.keys)),
		keys:   uint64(len(r.keys)) + r.markers, markers: r.kept, deleted: r.deleted,
		position: r.position, positionID: r.positionID,
	}
	for id, k := range r.keys {
		snap.stored[id] = k.stored
		snap.records[id] = k.record
		if k.rewrite != nil {
			snap.rewrites = append(snap.rewrites, rewrite{id, k.rewrite})
		}
	}
	slices.SortFunc(snap.rewrites, func(a, b rewrite) int {
		return cmp.Compare(snap.records[a.app].Sequence, snap.records[b.app].Sequence)
	})
	return snap
}

// doubtEntry marks an app's entry as damaged, so that its last event counts as published.
func (snap *snapshot) doubtEntry(id subjects.AppID) {
	r := snap.records[id]
	if r.IsDamaged() {
		return
	}
	snap.records[id] = &app.Record{Damaged: true, Entry: snap.stored[id].sequence, Held: r}
}
