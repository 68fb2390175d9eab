package appwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch/internal/jetapi"
)

// quietTime is how long nothing has to arrive before a reader asks the leader how far it is.
const quietTime = 100 * time.Millisecond

// maxQuiet is how often in a row a consumer may be quiet although the leader has more: the server
// may have placed it on a replica that is catching up.
const maxQuiet = 40

// subjectTime is added to the time of a request for each subject, where the server goes over all of
// them.
const subjectTime = 10 * time.Microsecond

var (
	errBehind   = errors.New("the consumer is behind the leader of its stream")
	errIdentity = errors.New("stream and bucket do not belong together")
)

// entry is what the bucket has of an app: a value or a delete marker.
type entry struct {
	id       subjects.AppID
	key      string
	kind     subjects.EventKind // of the event that it reflects
	sequence uint64             // of that event
	check    uint32             // of its id
	stored   int64
	msg      *nats.Msg
}

// snapshot is the bucket at one moment, in its order.
type snapshot struct {
	entries  []*entry
	position uint64 // the highest sequence of an event that an entry reflects
	reached  uint64 // at least position: the bucket reflects every event up to here, also of other apps
	check    uint32 // of the id of that event
	hasty    bool   // entries may be missing that were written again meanwhile, here or at the origin
	// overwritten are the keys whose newest message is not of appbridge: it hides the app's entry.
	overwritten []string
}

// readSnapshot reads the bucket, and then what the stream is: what was stored meanwhile may be in the
// bucket.
func (w *watcher) readSnapshot(ctx context.Context) (*snapshot, error) {
	id := streamID(w.info)
	snap, err := w.readBucket(ctx, id, false)
	if err != nil {
		return nil, err
	}
	if err := w.look(ctx); err != nil {
		return nil, err
	}
	if now := streamID(w.info); now != id {
		return nil, fmt.Errorf("%w: the id of %s was %s, and is %s", errIdentity, w.opts.Stream, id, now)
	}
	return snap, nil
}

// readBucket reads the entries of the selected apps, at least as far as the leader has them; headers:
// without their bodies. A bucket with another identity than wantID is an error, if both have one.
func (w *watcher) readBucket(ctx context.Context, wantID string, headers bool) (*snapshot, error) {
	info, err := w.api.Stream(ctx, w.opts.BucketStream)
	if err != nil {
		return nil, err
	}
	if id := streamID(info); id != "" && wantID != "" && id != wantID {
		return nil, fmt.Errorf("%w: %s has the id %s, %s has %s", errIdentity, w.opts.Stream, wantID, w.opts.BucketStream, id)
	}
	bucket := w.opts.Bucket
	if m := info.Config.Mirror; m != nil {
		if of, ok := strings.CutPrefix(m.Name, subjects.BucketStream("")); ok {
			bucket = of // its messages have the subjects of the original
		}
	}
	filter := subjects.BucketFilter(bucket)
	if !w.opts.all() {
		filter = subjects.BucketSubject(bucket, w.opts.tokens)
	}
	copied, err := w.copied(ctx, info)
	if err != nil {
		return nil, err
	}
	var reached uint64
	if !w.opts.all() {
		m, err := w.api.LastMessage(ctx, w.opts.BucketStream, subjects.BucketFilter(bucket))
		if err != nil && !errors.Is(err, jetapi.ErrNoMessage) {
			return nil, err
		}
		if err == nil {
			reached = number(first(m.Header, subjects.HeaderEventSequence))
		}
	}
	target, err := w.api.LastSequence(ctx, w.opts.BucketStream, []string{filter})
	if err != nil {
		return nil, err
	}
	extra := time.Duration(info.State.NumSubjects) * subjectTime //nolint:gosec // a count of subjects
	f, err := w.api.Consume(ctx, w.opts.BucketStream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubjects: []string{filter}, HeadersOnly: w.opts.HeadersOnly || headers,
		InactiveThreshold: info.Config.ConsumerLimits.InactiveThreshold,
	}, extra)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	last, overwritten := map[string]*entry{}, map[string]struct{}{}
	settled := target == 0 && f.Pending() == 0
	progress := reading{all: w.opts.all() && !info.HasSources(), target: target}
	for quiet := 0; !settled; {
		msg, d, err := f.Next(ctx, quietTime)
		switch {
		case err != nil:
			return nil, err
		case msg == nil:
			if quiet++; quiet >= maxQuiet {
				return nil, errBehind
			}
			if f.Pending() > 0 {
				continue
			}
		default:
			quiet = 0
			progress.note(d.Sequence)
			if e := parseEntry(bucket, msg, d.Stored); e != nil {
				last[e.key] = e
				delete(overwritten, e.key)
			} else if key, _, ok := appOf(bucket, msg.Subject); ok && last[key] == nil {
				overwritten[key] = struct{}{}
			}
			if progress.read < progress.target || d.Pending > 0 {
				continue
			}
		}
		if target, err = w.api.LastSequence(ctx, w.opts.BucketStream, []string{filter}); err != nil {
			return nil, err
		}
		settled = progress.complete(target)
	}
	snap := newSnapshot(last)
	snap.hasty, snap.reached = progress.hasty || !copied, max(snap.position, reached)
	snap.overwritten = slices.Sorted(maps.Keys(overwritten))
	return snap, nil
}

const (
	// copyLooks is how often a reader looks at a copy of the bucket before its first snapshot, and
	// copyLooksAgain before a later one, which is read again until it is exact.
	copyLooks      = 20
	copyLooksAgain = 3
)

// copied reports whether a mirror, or a stream with sources, has caught up with its origin. Until then
// a bucket may lack entries: one that is written again at the origin before it is copied is not copied,
// and the new one may still be on its way.
//
// The server's lag does not count the next message, which therefore gets quietTime to arrive.
func (w *watcher) copied(ctx context.Context, info *jetapi.StreamInfo) (bool, error) {
	looks := copyLooks
	if w.started {
		looks = copyLooksAgain
	}
	for caughtUp := false; ; {
		lag, silence, copies := info.Behind()
		switch {
		case !copies:
			return true, nil
		case lag > 0 || silence < 0:
			caughtUp = false
		case caughtUp || silence >= quietTime:
			return true, nil
		default:
			caughtUp = true
		}
		if looks--; looks == 0 {
			return false, nil
		}
		timer := time.NewTimer(quietTime)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false, ctx.Err()
		}
		var err error
		if info, err = w.api.Stream(ctx, info.Config.Name); err != nil {
			return false, err
		}
	}
}

// maxRounds is how often a reader of a bucket that is written without a pause looks for its end.
const maxRounds = 50

// reading is how far a bucket has been read. An entry that is written again before it is delivered
// is not delivered where it was: the state of that app is missing until the reader gets to the new
// one.
type reading struct {
	all    bool // every sequence of the stream belongs to the filter
	read   uint64
	target uint64 // the bucket's newest message, when the leader was last asked
	gap    bool   // a sequence was not delivered since then
	rounds int
	hasty  bool // given up
}

func (r *reading) note(sequence uint64) {
	if sequence != r.read+1 {
		r.gap = true
	}
	r.read = sequence
}

// complete reports whether every entry of one moment has been read. newest is the bucket's newest
// message now.
func (r *reading) complete(newest uint64) bool {
	switch {
	case newest <= r.read: // also what was written again was read
		return true
	case r.read < r.target: // what is missing may have been removed
		r.target, r.gap = newest, true
		return false
	}
	r.rounds++
	if r.hasty = r.rounds >= maxRounds; r.hasty || r.all && !r.gap && r.rounds > 1 {
		return true
	}
	r.target, r.gap = newest, false
	return false
}

// parseEntry reads a bucket's message, nil for one that is not appbridge's.
func parseEntry(bucket string, msg *nats.Msg, stored int64) *entry {
	key, id, ok := appOf(bucket, msg.Subject)
	if !ok {
		return nil
	}
	e := &entry{id: id, key: key, sequence: number(first(msg.Header, subjects.HeaderEventSequence)), check: checkOf(first(msg.Header, subjects.CEID)), stored: stored, msg: msg}
	kind, ok := kindOf(first(msg.Header, subjects.CEType))
	deleted := first(msg.Header, subjects.HeaderKVOperation) != ""
	if !ok || e.sequence == 0 || deleted != (kind == subjects.Deleted) {
		return nil
	}
	e.kind = kind
	return e
}

// appOf is the app of a bucket's subject, and its key.
func appOf(bucket, subject string) (key string, id subjects.AppID, ok bool) {
	key, err := subjects.ParseBucketSubject(bucket, subject)
	if err == nil {
		id, err = subjects.ParseKey(key)
	}
	return key, id, err == nil
}

// kindOf is the kind of a CloudEvents type.
func kindOf(ceType string) (subjects.EventKind, bool) {
	for _, kind := range [...]subjects.EventKind{subjects.Updated, subjects.Created, subjects.Deleted} {
		if kind.Type() == ceType {
			return kind, true
		}
	}
	return "", false
}

func newSnapshot(last map[string]*entry) *snapshot {
	s := &snapshot{entries: make([]*entry, 0, len(last))}
	for _, e := range last {
		s.entries = append(s.entries, e)
		if e.sequence > s.position {
			s.position, s.check = e.sequence, e.check
		}
	}
	sortEntries(s.entries)
	return s
}

// endAt makes the position that of the newest entry up to a sequence.
func (s *snapshot) endAt(last uint64) {
	s.position, s.check = 0, 0
	for _, e := range s.entries { // in the order of their events
		if e.sequence <= last {
			s.position, s.check = e.sequence, e.check
		}
	}
}

// sortEntries brings entries into the order of their events.
func sortEntries(entries []*entry) {
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.sequence, b.sequence) })
}
