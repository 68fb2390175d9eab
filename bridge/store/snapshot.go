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
	Deleted  app.Deletions             // the newest that markers reflect
	Position uint64                    // highest stream sequence that an entry or marker reflects
	// positionID is the id of the event at Position.
	positionID string
	Last       uint64 // the last sequence of the bucket's own stream
	Foreign    uint64 // keys that can be no app's
	// smallest is the smallest message, without its expected sequence; nil in an empty bucket.
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

// loadTries is how many consumers a load tries.
const loadTries = 3

// Load reads the whole bucket, at least as far as the leader of its stream has it. Of delete
// markers it keeps only those that have to be removed at some age.
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

// read reads the bucket with one consumer. The server may place that on a replica that is catching
// up, so what it delivers counts only once it has reached the newest message that the leader has.
func (b *Bucket) read(ctx context.Context, keep func(subjects.AppID, Marker) bool) (*Snapshot, error) {
	name, filter := subjects.BucketStream(b.Name), subjects.BucketFilter(b.Name)
	_, info, err := LookUp(ctx, b.JS, name)
	if err != nil {
		return nil, err
	}
	// The last sequence first: a later write of another is then either read or refuses ours.
	first := info.State.LastSeq
	r := &bucketReader{
		Snapshot: Snapshot{
			Records: map[subjects.AppID]*app.Record{}, Stored: map[subjects.AppID]StoredAt{},
			Markers: map[subjects.AppID]Marker{}, Last: first,
		},
		bucket: b, keep: keep, rewrites: map[subjects.AppID]*nats.Msg{}, foreign: map[string]struct{}{},
	}
	if err := FollowLast(ctx, b.JS, name, filter, false, func(m *Message) error {
		r.add(m)
		return nil
	}); err != nil {
		return nil, err
	}
	snap := r.snapshot()
	if _, info, err = LookUp(ctx, b.JS, name); err != nil {
		return nil, err
	}
	// A replica that is behind may have keys that the leader removed. What was written meanwhile
	// may have been read twice, so then the numbers are not compared.
	state, keys := info.State, snap.Keys+snap.Foreign
	if state.LastSeq != first || snap.Last != first || state.NumSubjects == keys {
		return snap, nil
	}
	if keys < state.NumSubjects {
		if err := r.addUnreadable(ctx, first); err != nil {
			return nil, err
		}
		snap = r.snapshot()
		keys = snap.Keys + snap.Foreign
	}
	if state.NumSubjects < keys {
		return nil, fmt.Errorf("%w: it shows %d keys of %d", ErrReplicaBehind, keys, state.NumSubjects)
	}
	return snap, nil
}

// addUnreadable adds the keys that the leader has and cannot read, as of messages that are damaged on
// its disk. last is the last sequence of the bucket's stream.
func (r *bucketReader) addUnreadable(ctx context.Context, last uint64) error {
	b, read := r.bucket, map[string]struct{}{}
	stream, filter := subjects.BucketStream(b.Name), subjects.BucketFilter(b.Name)
	names, err := Subjects(ctx, b.JS, stream, filter)
	if err == nil {
		err = FollowLast(ctx, b.JS, stream, filter, true, func(m *Message) error {
			read[m.Subject] = struct{}{}
			return nil
		})
	}
	if err != nil {
		return err
	}
	unread := slices.DeleteFunc(names, func(name string) bool { _, found := read[name]; return found })
	return ReadEach(ctx, slices.Values(unread), func(ctx context.Context, name string) (*Message, error) {
		return OrNone(LastMessage(ctx, b.JS, stream, name))
	}, func(name string, m *Message) {
		if m != nil {
			r.add(m) // the consumer has not delivered it
			return
		}
		b.Log.Error("the server has a message of the bucket and cannot read it", zap.String("bucket", b.Name), zap.String("subject", name))
		if id, err := b.AppOf(name); err != nil {
			r.foreign[name] = struct{}{}
		} else {
			r.Stored[id] = StoredAt{Sequence: last}
			r.Records[id] = &app.Record{Damaged: true, Entry: last}
		}
	})
}

// bucketReader collects the newest message of every key. A key may come more than once.
type bucketReader struct {
	Snapshot // what was read so far; snapshot adds the rest
	bucket   *Bucket
	keep     func(subjects.AppID, Marker) bool
	rewrites map[subjects.AppID]*nats.Msg // of entries in another encoding than the configured one
	markers  uint64
	foreign  map[string]struct{}
	intact   bool // smallest is of an entry that can be read
}

func (r *bucketReader) add(m *Message) {
	r.Last = max(r.Last, m.Sequence)
	intact := false
	defer func() { r.keepSmallest(m, intact) }()
	b := r.bucket
	id, err := b.AppOf(m.Subject)
	if err != nil {
		r.foreign[m.Subject] = struct{}{}
		b.Log.Warn("the bucket holds a key that is not of an app", zap.String("subject", m.Subject), zap.Error(err))
		return
	}
	stored := StoredAt{m.Sequence, m.Stored}
	delete(r.Markers, id)
	delete(r.rewrites, id)
	r.Stored[id] = stored
	var known app.State
	if b.Known != nil {
		known = b.Known(id)
	}
	held, err := app.ReadEntryOf(m.Header, m.Data, known)
	if err != nil {
		key, _ := id.Key() // it was parsed from one
		b.Log.Warn("bucket entry is damaged", zap.String("key", key), zap.Error(err))
		r.Records[id] = &app.Record{Damaged: true, Entry: stored.Sequence}
		return
	}
	if InRanges(b.Lost, held.Sequence) {
		r.Records[id] = &app.Record{Damaged: true, Entry: stored.Sequence, Held: held}
		return
	}
	intact = true
	if held.Sequence > r.Position {
		r.Position, r.positionID = held.Sequence, m.Header.Get(subjects.CEID)
	}
	if held.Kind == subjects.Deleted {
		r.addMarker(id, held, stored)
		return
	}
	r.Records[id] = held
	if rewrite := b.Rewrite(m.Subject, m.Header, held); rewrite != nil {
		r.rewrites[id] = rewrite
	}
}

// addMarker adds an intact delete marker, in place of an entry that was read before.
func (r *bucketReader) addMarker(id subjects.AppID, held *app.Record, stored StoredAt) {
	delete(r.Records, id)
	delete(r.Stored, id)
	r.markers++
	if held.Sequence > r.bucket.Accepted {
		r.Deleted.Note(id, held.DeletedVersion, held.Sequence)
	}
	if m := (Marker{held.Sequence, stored}); r.keep(id, m) {
		r.Markers[id] = m
	}
}

// keepSmallest keeps a copy of the smallest message, of an intact entry if there is one.
func (r *bucketReader) keepSmallest(m *Message, intact bool) {
	if r.smallest != nil && (r.intact && !intact || r.intact == intact && len(m.Data) >= len(r.smallest.Data)) {
		return
	}
	h := nats.Header{}
	maps.Copy(h, m.Header)
	h.Del(subjects.HeaderExpectedLastSequence)
	r.smallest, r.intact = &nats.Msg{Subject: m.Subject, Header: h, Data: m.Data}, intact
}

func (r *bucketReader) snapshot() *Snapshot {
	r.Foreign, r.Keys = uint64(len(r.foreign)), uint64(len(r.Records))+r.markers
	for id, msg := range r.rewrites {
		r.Rewrites = append(r.Rewrites, Rewrite{id, msg})
	}
	slices.SortFunc(r.Rewrites, func(a, b Rewrite) int {
		return cmp.Compare(r.Records[a.App].Sequence, r.Records[b.App].Sequence)
	})
	snap := r.Snapshot
	return &snap
}

// Release drops what was read of single keys. Position and Last stay.
func (snap *Snapshot) Release() {
	snap.Records, snap.Stored, snap.Markers, snap.Rewrites = nil, nil, nil, nil
}

// DoubtEntry marks an app's entry as damaged, so that its last event counts as published.
func (snap *Snapshot) DoubtEntry(id subjects.AppID) {
	if r := snap.Records[id]; !r.IsDamaged() {
		snap.Records[id] = &app.Record{Damaged: true, Entry: snap.Stored[id].Sequence, Held: r}
	}
}
