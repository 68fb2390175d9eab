package store

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

// Snapshot is what the bucket holds at one moment: the apps that exist, and the entries that are
// damaged. Of delete markers it holds a summary, since there may be many.
type Snapshot struct {
	Records  map[subjects.AppID]*app.Record
	Keys     uint64                    // of apps, delete markers included
	Markers  map[subjects.AppID]Marker // those that the load was asked for
	Deleted  app.Deletion              // the newest that a marker shows
	Position uint64                    // the highest stream sequence that an entry or marker reflects
	// positionID is the id of the event at position.
	positionID string
	Last       uint64 // the last sequence of the bucket's own stream
	Foreign    uint64 // keys that can be no app's
	// smallest is the smallest message of the bucket, nil if there is none.
	smallest *nats.Msg
	// Rewrites are entries in another encoding than the configured one.
	Rewrites []Rewrite
	Stored   map[subjects.AppID]StoredAt
}

// Rewrite is the message that replaces an app's entry.
type Rewrite struct {
	App subjects.AppID
	Msg *nats.Msg
}

// Marker is an intact delete marker.
type Marker struct {
	Event uint64 // the stream sequence that it reflects
	At    StoredAt
}

// StoredAt is where, and when, the bucket's stream stored a message.
type StoredAt struct {
	Sequence uint64
	Time     time.Time
}

// loadTries is how many consumers a load reads with before it gives up.
const loadTries = 3

// Load reads the whole bucket, at least as far as the leader of its stream has it. Of delete markers
// it keeps only those that have to be removed at some age.
func (b *Bucket) Load(ctx context.Context) (*Snapshot, error) {
	return b.LoadKeeping(ctx, func(subjects.AppID, Marker) bool { return b.MarkerMaxAge > 0 })
}

// LoadKeeping is load with the delete markers that keep selects.
func (b *Bucket) LoadKeeping(ctx context.Context, keep func(subjects.AppID, Marker) bool) (*Snapshot, error) {
	var snap *Snapshot
	var err error
	for range loadTries {
		if snap, err = b.read(ctx, keep); !errors.Is(err, ErrReplicaBehind) {
			break
		}
		b.Log.Warn("reading the bucket again", zap.String("bucket", b.Name), zap.Error(err))
	}
	if err != nil {
		return nil, fmt.Errorf("read bucket %s: %w", b.Name, err)
	}
	return snap, nil
}

// read reads the bucket with one consumer. The server may place that on a
// replica that is catching up, so what it delivers counts only once it has
// reached the newest message that the leader has.
func (b *Bucket) read(ctx context.Context, keep func(subjects.AppID, Marker) bool) (*Snapshot, error) {
	name, filter := subjects.BucketStream(b.Name), subjects.BucketFilter(b.Name)
	stream, err := b.JS.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("look up stream %s: %w", name, err)
	}
	// The last sequence first: a later write of another is then either read or refuses ours.
	first := stream.CachedInfo().State.LastSeq
	r := &bucketReader{
		bucket: b, keep: keep, last: first,
		keys: map[subjects.AppID]*bucketKey{}, kept: map[subjects.AppID]Marker{}, foreign: map[string]struct{}{},
	}
	if err := FollowLast(ctx, b.JS, name, filter, false, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
		r.add(msg, meta)
		return nil
	}); err != nil {
		return nil, err
	}
	snap := r.snapshot()
	if stream, err = b.JS.Stream(ctx, name); err != nil {
		return nil, fmt.Errorf("look up stream %s: %w", name, err)
	}
	// A replica that is behind can also show keys that the leader has no more. What was written
	// meanwhile may have been read twice, so then the numbers are not compared.
	state, keys := stream.CachedInfo().State, snap.Keys+snap.Foreign
	if state.LastSeq == first && snap.Last == first && state.NumSubjects < keys {
		return nil, fmt.Errorf("%w: it shows %d keys of %d", ErrReplicaBehind, keys, state.NumSubjects)
	}
	return snap, nil
}

// bucketReader collects the newest message of every key. A key may come more
// than once.
type bucketReader struct {
	bucket  *Bucket
	keep    func(subjects.AppID, Marker) bool
	last    uint64
	keys    map[subjects.AppID]*bucketKey
	kept    map[subjects.AppID]Marker
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
	stored  StoredAt
	rewrite *nats.Msg // in the configured encoding, nil if it is that already
}

func (r *bucketReader) add(msg jetstream.Msg, meta *jetstream.MsgMetadata) {
	r.last = max(r.last, meta.Sequence.Stream)
	intact := false
	defer func() { r.keepSmallest(msg, intact) }()
	b := r.bucket
	key, err := subjects.ParseBucketSubject(b.Name, msg.Subject())
	var id subjects.AppID
	if err == nil {
		id, err = subjects.ParseKey(key)
	}
	if err != nil {
		r.foreign[msg.Subject()] = struct{}{}
		b.Log.Warn("the bucket holds a key that is not of an app", zap.String("subject", msg.Subject()), zap.Error(err))
		return
	}
	stored := StoredAt{meta.Sequence.Stream, meta.Timestamp}
	delete(r.kept, id)
	held, err := app.ReadEntry(msg.Headers(), msg.Data())
	if err != nil {
		b.Log.Warn("bucket entry is damaged", zap.String("key", key), zap.Error(err))
		r.keys[id] = &bucketKey{record: &app.Record{Damaged: true, Entry: stored.Sequence}, stored: stored}
		return
	}
	if InRanges(b.Lost, held.Sequence) {
		r.keys[id] = &bucketKey{record: &app.Record{Damaged: true, Entry: stored.Sequence, Held: held}, stored: stored}
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
	r.keys[id] = &bucketKey{record: held, stored: stored, rewrite: b.Rewrite(msg.Subject(), msg.Headers(), held)}
}

// addMarker takes in an intact delete marker, which takes the place of an entry that was read before.
func (r *bucketReader) addMarker(id subjects.AppID, held *app.Record, stored StoredAt) {
	delete(r.keys, id)
	r.markers++
	if held.Sequence > r.bucket.Accepted {
		r.deleted.Note(id, held.DeletedVersion)
	}
	if m := (Marker{held.Sequence, stored}); r.keep(id, m) {
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
func (r *bucketReader) snapshot() *Snapshot {
	snap := &Snapshot{
		Records: make(map[subjects.AppID]*app.Record, len(r.keys)), Last: r.last, Foreign: uint64(len(r.foreign)), smallest: r.smallest,
		Stored: make(map[subjects.AppID]StoredAt, len(r.keys)),
		Keys:   uint64(len(r.keys)) + r.markers, Markers: r.kept, Deleted: r.deleted,
		Position: r.position, positionID: r.positionID,
	}
	for id, k := range r.keys {
		snap.Stored[id] = k.stored
		snap.Records[id] = k.record
		if k.rewrite != nil {
			snap.Rewrites = append(snap.Rewrites, Rewrite{id, k.rewrite})
		}
	}
	slices.SortFunc(snap.Rewrites, func(a, b Rewrite) int {
		return cmp.Compare(snap.Records[a.App].Sequence, snap.Records[b.App].Sequence)
	})
	return snap
}

// DoubtEntry marks an app's entry as damaged, so that its last event counts as published.
func (snap *Snapshot) DoubtEntry(id subjects.AppID) {
	r := snap.Records[id]
	if r.IsDamaged() {
		return
	}
	snap.Records[id] = &app.Record{Damaged: true, Entry: snap.Stored[id].Sequence, Held: r}
}
