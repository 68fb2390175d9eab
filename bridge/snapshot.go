package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// snapshot is what the bucket holds at one moment: the apps that exist, and the entries that are
// damaged. Of delete markers it holds a summary, since there may be many.
type snapshot struct {
	records  map[subjects.AppID]*record
	keys     uint64                    // of apps, delete markers included
	markers  map[subjects.AppID]marker // those that the load was asked for
	deleted  deletion                  // the newest that a marker shows
	position uint64                    // the highest stream sequence that an entry or marker reflects
	// positionID is the id of the event at position.
	positionID string
	last       uint64 // the last sequence of the bucket's own stream
	foreign    uint64 // keys that can be no app's
	// smallest is the smallest message of the bucket, nil if there is none.
	smallest *nats.Msg
	// rewrites are entries in another encoding than the configured one.
	rewrites []entry
	stored   map[subjects.AppID]storedAt
	// suspects are entries that the projector did not write, as far as it knows.
	suspects []suspect
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

// bucket reads and addresses the entries of a KV bucket through its stream:
// the client's KV calls carry no headers.
type bucket struct {
	js   jetstream.JetStream
	name string
	form string // content type of the entries to write
	// lost are the ranges that the stream has lost. An entry that reflects one of their sequences
	// counts as damaged: the app's last surviving event is what was published of it.
	lost []subjects.LostRange
	log  *zap.Logger
	// maxSize is the largest message that the server takes, in bytes with its
	// headers; nil or 0: there is no limit.
	maxSize func() int
	// markerMaxAge is how old a delete marker may become, 0 for any age.
	markerMaxAge time.Duration
	// accepted is the newest sequence of a history of the cluster that is over.
	accepted uint64
}

// limit is the largest entry that can be written now, 0 without a limit.
func (b *bucket) limit() int {
	if b.maxSize == nil {
		return 0
	}
	return b.maxSize()
}

// writeRoom is what the header of the fence adds to an entry.
const writeRoom = len(subjects.HeaderExpectedLastSequence) + len(": 18446744073709551615\r\n")

// sizeOfEntry is the size of an entry once it is written.
func sizeOfEntry(msg *nats.Msg) int { return msg.Size() + writeRoom }

// fits reports whether an entry is not larger than limit, if there is one.
func fits(msg *nats.Msg, limit int) bool { return limit <= 0 || sizeOfEntry(msg) <= limit }

// subject is that of an app's entry.
func (b *bucket) subject(id subjects.AppID) (string, error) {
	key, err := id.Key()
	if err != nil {
		return "", err
	}
	return subjects.BucketSubject(b.name, key), nil
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
		b.log.Warn("the bucket is read again", zap.String("bucket", b.name), zap.Error(err))
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
	// meanwhile may have been read twice, so then the number says nothing.
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
	deleted deletion
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
	record  *record
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
		b.log.Warn("bucket holds a foreign key", zap.String("subject", msg.Subject()), zap.Error(err))
		return
	}
	stored := storedAt{meta.Sequence.Stream, meta.Timestamp}
	delete(r.kept, id)
	held, err := recordOfEntry(msg.Headers(), msg.Data())
	if err != nil {
		b.log.Warn("bucket entry is damaged", zap.String("key", key), zap.Error(err))
		r.keys[id] = &bucketKey{record: &record{damaged: true, entry: stored.sequence}, stored: stored}
		return
	}
	if contains(b.lost, held.sequence) {
		r.keys[id] = &bucketKey{record: &record{damaged: true, entry: stored.sequence, held: held}, stored: stored}
		return
	}
	intact = true
	if held.sequence > r.position {
		r.position, r.positionID = held.sequence, msg.Headers().Get(subjects.CEID)
	}
	if held.kind == subjects.Deleted {
		r.addMarker(id, held, stored)
		return
	}
	r.keys[id] = &bucketKey{record: held, stored: stored, rewrite: b.rewrite(msg.Subject(), msg.Headers(), held)}
}

// addMarker takes in an intact delete marker, which takes the place of an entry that was read before.
func (r *bucketReader) addMarker(id subjects.AppID, held *record, stored storedAt) {
	delete(r.keys, id)
	r.markers++
	if held.sequence > r.bucket.accepted {
		r.deleted.note(id, held.deletedVersion)
	}
	if m := (marker{held.sequence, stored}); r.keep(id, m) {
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
		records: make(map[subjects.AppID]*record, len(r.keys)), last: r.last, foreign: uint64(len(r.foreign)), smallest: r.smallest,
		stored: make(map[subjects.AppID]storedAt, len(r.keys)),
		keys:   uint64(len(r.keys)) + r.markers, markers: r.kept, deleted: r.deleted,
		position: r.position, positionID: r.positionID,
	}
	for id, k := range r.keys {
		snap.stored[id] = k.stored
		snap.records[id] = k.record
		if k.rewrite != nil {
			snap.rewrites = append(snap.rewrites, entry{msg: k.rewrite, app: id, exists: true})
		}
	}
	slices.SortFunc(snap.rewrites, func(a, b entry) int {
		return cmp.Compare(snap.records[a.app].sequence, snap.records[b.app].sequence)
	})
	return snap
}

// rewrite is an entry in the configured encoding, nil if it has that or cannot
// have it.
func (b *bucket) rewrite(subject string, header nats.Header, r *record) *nats.Msg {
	if r.kind == subjects.Deleted || r.contentType == b.form {
		return nil
	}
	data, form, err := appv1.Encode(r.app, b.form)
	if err != nil || form == r.contentType {
		return nil
	}
	h := maps.Clone(header)
	h.Del(subjects.HeaderExpectedLastSequence)
	h.Set(subjects.CEDataContentType, form)
	if msg := (&nats.Msg{Subject: subject, Header: h, Data: data}); fits(msg, b.limit()) {
		return msg
	}
	return nil
}

// purge removes a key, up to sequence upTo of the bucket's stream: not what was
// written since. Zero: whatever there is.
func (b *bucket) purge(ctx context.Context, subject string, upTo uint64) error {
	stream, err := b.js.Stream(ctx, subjects.BucketStream(b.name))
	if err != nil {
		return unavailable("look up bucket "+b.name, err)
	}
	opts := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject(subject)}
	if upTo > 0 {
		opts = append(opts, jetstream.WithPurgeSequence(upTo+1))
	}
	if err := stream.Purge(ctx, opts...); err != nil {
		return fmt.Errorf("purge %s from bucket %s: %w", printable(subject), b.name, err)
	}
	return nil
}

// purgeApp removes an app's entry that no event stands behind: the one at
// sequence of the bucket's stream, nothing if that is 0.
func (b *bucket) purgeApp(ctx context.Context, id subjects.AppID, sequence uint64) error {
	if sequence == 0 {
		return nil
	}
	subject, err := b.subject(id)
	if err != nil {
		return err
	}
	return b.purge(ctx, subject, sequence)
}

// entry is the bucket's message for an event.
func (b *bucket) entry(id subjects.AppID, r *record, eventHeader nats.Header) (*nats.Msg, error) {
	return b.entryWithin(id, r, eventHeader, b.limit())
}

// whole is the bucket's message for an event, however large it is.
func (b *bucket) whole(id subjects.AppID, r *record, eventHeader nats.Header) (*nats.Msg, error) {
	return b.entryWithin(id, r, eventHeader, 0)
}

// entryWithin is the bucket's message for an event, at most as large as limit if
// that is not 0. One that would be larger keeps the encoding of the event if
// that helps; else it leaves out the spec, then the status, and names them
// beside what the event left out.
func (b *bucket) entryWithin(id subjects.AppID, r *record, eventHeader nats.Header, limit int) (*nats.Msg, error) {
	subject, err := b.subject(id)
	if err != nil {
		return nil, err
	}
	h := nats.Header{}
	for name, values := range eventHeader {
		if strings.HasPrefix(name, flyteHeaders) || strings.HasPrefix(name, cloudEventsHeaders) {
			h[name] = values
		}
	}
	h.Set(subjects.HeaderEventSequence, strconv.FormatUint(r.sequence, 10))
	msg := &nats.Msg{Subject: subject, Header: h}
	if r.kind == subjects.Deleted {
		h.Set(subjects.HeaderKVOperation, subjects.KVDelete)
		if !fits(msg, limit) {
			return nil, fmt.Errorf("%w: the delete marker has %d of %d bytes", errTooLarge, sizeOfEntry(msg), limit)
		}
		return msg, nil
	}
	forms := []string{b.form}
	if r.contentType != b.form {
		forms = append(forms, r.contentType)
	}
	app := r.app
	cut := slices.DeleteFunc(strings.Split(h.Get(subjects.HeaderTruncated), ","), func(f string) bool { return f == "" })
	for _, field := range []string{"", subjects.TruncatedSpec, subjects.TruncatedStatus} {
		switch field {
		case subjects.TruncatedSpec:
			app = proto.CloneOf(app)
			app.Spec = nil
		case subjects.TruncatedStatus:
			app.Status = nil
		}
		if field != "" && !slices.Contains(cut, field) {
			cut = append(cut, field)
			h.Set(subjects.HeaderTruncated, strings.Join(cut, ","))
		}
		for _, form := range forms {
			data, form, err := appv1.Encode(app, form)
			if err != nil {
				return nil, err
			}
			msg.Data = data
			h.Set(subjects.CEDataContentType, form)
			if fits(msg, limit) {
				return msg, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: the bucket entry has %d of %d bytes, without spec and status", errTooLarge, sizeOfEntry(msg), limit)
}

// The headers that a bucket entry takes over from its event.
const (
	flyteHeaders       = "Flyte-"
	cloudEventsHeaders = "ce-"
)

// printable is a name as it may stand on a terminal: one with control
// characters is quoted.
func printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` || !utf8.ValidString(name) {
		return quoted
	}
	return name
}
