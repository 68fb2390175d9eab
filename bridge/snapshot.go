package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// snapshot is what the bucket holds at one moment.
type snapshot struct {
	records  map[subjects.AppID]*record
	position uint64 // the highest stream sequence that an entry or marker reflects
	// positionID is the id of the event at position.
	positionID string
	last       uint64 // the last sequence of the bucket's own stream
	foreign    uint64 // keys that can be no app's
	// smallest is the smallest message of the bucket, nil if there is none.
	smallest *nats.Msg
	// rewrites are entries in another encoding than the configured one.
	rewrites []entry
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
}

// subject is that of an app's entry.
func (b *bucket) subject(id subjects.AppID) (string, error) {
	key, err := id.Key()
	if err != nil {
		return "", err
	}
	return subjects.BucketSubject(b.name, key), nil
}

// load reads the whole bucket.
func (b *bucket) load(ctx context.Context) (*snapshot, error) {
	name := subjects.BucketStream(b.name)
	stream, err := b.js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("look up bucket %s: %w", b.name, err)
	}
	snap := &snapshot{records: map[subjects.AppID]*record{}, last: stream.CachedInfo().State.LastSeq}
	err = readAll(ctx, b.js, name, jetstream.OrderedConsumerConfig{
		DeliverPolicy:  jetstream.DeliverLastPerSubjectPolicy,
		FilterSubjects: []string{subjects.BucketFilter(b.name)},
	}, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) {
		snap.last = max(snap.last, meta.Sequence.Stream)
		b.add(snap, msg, meta.Sequence.Stream)
	})
	if err != nil {
		return nil, fmt.Errorf("read bucket %s: %w", b.name, err)
	}
	return snap, nil
}

func (b *bucket) add(snap *snapshot, msg jetstream.Msg, sequence uint64) {
	snap.keepSmallest(msg)
	key, err := subjects.ParseBucketSubject(b.name, msg.Subject())
	if err != nil {
		snap.foreign++
		b.log.Warn("bucket holds a foreign key", zap.String("subject", msg.Subject()), zap.Error(err))
		return
	}
	id, err := subjects.ParseKey(key)
	if err != nil {
		snap.foreign++
		b.log.Warn("bucket holds a foreign key", zap.String("key", key), zap.Error(err))
		return
	}
	r, err := recordOfEntry(msg.Headers(), msg.Data())
	if err != nil {
		b.log.Warn("bucket entry is damaged", zap.String("key", key), zap.Error(err))
		snap.records[id] = &record{damaged: true, entry: sequence}
		return
	}
	if contains(b.lost, r.sequence) {
		snap.records[id] = &record{damaged: true, entry: sequence}
		return
	}
	if r.sequence > snap.position {
		snap.position, snap.positionID = r.sequence, msg.Headers().Get(subjects.CEID)
	}
	snap.records[id] = r
	if r.kind != subjects.Deleted && r.contentType != b.form {
		data, form, err := appv1.Encode(r.app, b.form)
		if err != nil || form == r.contentType {
			return
		}
		h := maps.Clone(msg.Headers())
		h.Del(subjects.HeaderExpectedLastSequence)
		h.Set(subjects.CEDataContentType, form)
		snap.rewrites = append(snap.rewrites, entry{msg: &nats.Msg{Subject: msg.Subject(), Header: h, Data: data}, app: id, exists: true})
	}
}

// keepSmallest keeps a copy of the smallest message, without the headers that fenced it.
func (s *snapshot) keepSmallest(msg jetstream.Msg) {
	if s.smallest != nil && len(msg.Data()) >= len(s.smallest.Data) {
		return
	}
	h := nats.Header(maps.Clone(msg.Headers()))
	if h == nil {
		h = nats.Header{}
	}
	h.Del(subjects.HeaderExpectedLastSequence)
	s.smallest = &nats.Msg{Subject: msg.Subject(), Header: h, Data: msg.Data()}
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
		return msg, nil
	}
	data, form, err := appv1.Encode(r.app, b.form)
	if err != nil {
		return nil, err
	}
	h.Set(subjects.CEDataContentType, form)
	msg.Data = data
	return msg, nil
}

// The headers that a bucket entry takes over from its event.
const (
	flyteHeaders       = "Flyte-"
	cloudEventsHeaders = "ce-"
)

// consumerIdle is how long the server keeps a consumer whose reader vanished.
const consumerIdle = time.Minute

// readAll hands every message that the stream holds for cfg to visit, in order.
func readAll(ctx context.Context, js jetstream.JetStream, stream string, cfg jetstream.OrderedConsumerConfig,
	visit func(jetstream.Msg, *jetstream.MsgMetadata),
) error {
	return follow(ctx, js, stream, cfg, func() error { return errEnd }, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
		visit(msg, meta)
		if meta.NumPending == 0 {
			return errEnd
		}
		return nil
	})
}

// errEnd ends a follow without an error.
var errEnd = errors.New("end")

// quietTime is how long no message comes before the server is asked whether
// there is any.
const quietTime = 2 * time.Second

// follow hands the messages of a stream to visit, in order and without gaps,
// until that or the context ends it. idle is called when the stream holds no
// message at the start, or none any more although one said that more would
// come (a purge).
func follow(ctx context.Context, js jetstream.JetStream, stream string, cfg jetstream.OrderedConsumerConfig,
	idle func() error, visit func(jetstream.Msg, *jetstream.MsgMetadata) error,
) (err error) {
	cfg.InactiveThreshold = consumerIdle
	cfg.MaxResetAttempts = 1 // whoever follows tries again, and knows when to stop
	consumer, err := js.OrderedConsumer(ctx, stream, cfg)
	if err != nil {
		return fmt.Errorf("consume %s: %w", stream, err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("consume %s: %w", stream, err)
	}
	defer func() {
		messages.Stop()
		if info := consumer.CachedInfo(); info != nil {
			// Best effort: the server removes it by itself after consumerIdle.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			_ = js.DeleteConsumer(ctx, stream, info.Name)
			cancel()
		}
		if err == errEnd { //nolint:errorlint // the sentinel itself, never wrapped
			err = nil
		}
	}()
	info, reached := consumer.CachedInfo(), false
	for {
		if !reached && info != nil && info.NumPending == 0 {
			if err := idle(); err != nil {
				return err
			}
			reached = true
		}
		info = nil
		msg, err := next(ctx, messages)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, context.DeadlineExceeded) && reached:
			continue
		case errors.Is(err, context.DeadlineExceeded):
			if info, err = consumer.Info(ctx); err != nil {
				return fmt.Errorf("consume %s: %w", stream, err)
			}
			continue
		case err != nil:
			return fmt.Errorf("consume %s: %w", stream, err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return fmt.Errorf("consume %s: %w", stream, err)
		}
		if err := visit(msg, meta); err != nil {
			return err
		}
		reached = reached || meta.NumPending == 0
	}
}

// next waits for a message, for quietTime at most.
func next(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, quietTime)
	defer cancel()
	return messages.Next(jetstream.NextContext(ctx))
}

// printable is a name as it may stand on a terminal: one with control
// characters is quoted.
func printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` || !utf8.ValidString(name) {
		return quoted
	}
	return name
}
