package store

import (
	"context"
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

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// Bucket reads and writes a KV bucket through its stream: the client's KV calls have no headers.
type Bucket struct {
	JS          jetstream.JetStream
	Name        string
	ContentType string // content type of the entries to write
	// Lost are the ranges that the stream has lost. An entry that reflects one of their sequences
	// counts as damaged: the app's last surviving event is what was published of it.
	Lost []subjects.LostRange
	Log  *zap.Logger
	// MaxSize is the largest message that the server takes, with headers; nil or 0: any size.
	MaxSize func() int
	// MarkerMaxAge is how old a delete marker may become, 0 for any age.
	MarkerMaxAge time.Duration
	// Accepted is the newest sequence of a history of the cluster that is over.
	Accepted uint64
	// Known is the state that an app's entry probably shows, which makes reading it cheap; nil: none is.
	Known func(subjects.AppID) app.State
}

// Limit is the largest entry that can be written now, 0 without a limit.
func (b *Bucket) Limit() int {
	if b.MaxSize == nil {
		return 0
	}
	return b.MaxSize()
}

// writeRoom is what the expected sequence adds to an entry.
const writeRoom = len(subjects.HeaderExpectedLastSequence) + len(": 18446744073709551615\r\n")

// SizeOfEntry is the size of an entry once it is written.
func SizeOfEntry(msg *nats.Msg) int { return msg.Size() + writeRoom }

// fits reports whether an entry is not larger than limit, if there is one.
func fits(msg *nats.Msg, limit int) bool { return limit <= 0 || SizeOfEntry(msg) <= limit }

// Subject is that of an app's entry.
func (b *Bucket) Subject(id subjects.AppID) (string, error) {
	key, err := id.Key()
	if err != nil {
		return "", err
	}
	return subjects.BucketSubject(b.Name, key), nil
}

// AppOf is the app of an entry's subject.
func (b *Bucket) AppOf(subject string) (subjects.AppID, error) {
	key, err := subjects.ParseBucketSubject(b.Name, subject)
	if err != nil {
		return subjects.AppID{}, err
	}
	return subjects.ParseKey(key)
}

// Rewrite is an entry in the configured encoding, nil if it has that or cannot have it.
func (b *Bucket) Rewrite(subject string, header nats.Header, r *app.Record) *nats.Msg {
	if r.Kind == subjects.Deleted || r.ContentType == b.ContentType {
		return nil
	}
	encoded, err := r.App.As(b.ContentType)
	if err != nil || encoded.ContentType() == r.ContentType {
		return nil
	}
	h := maps.Clone(header)
	h.Del(subjects.HeaderExpectedLastSequence)
	h.Set(subjects.CEDataContentType, encoded.ContentType())
	if msg := (&nats.Msg{Subject: subject, Header: h, Data: encoded.Bytes()}); fits(msg, b.Limit()) {
		return msg
	}
	return nil
}

// Last reads an app's newest message from the leader of the bucket's stream.
func (b *Bucket) Last(ctx context.Context, id subjects.AppID) (*Message, error) {
	subject, err := b.Subject(id)
	if err != nil {
		return nil, err
	}
	return LastMessage(ctx, b.JS, subjects.BucketStream(b.Name), subject)
}

// Purge removes a key, up to sequence upTo of the bucket's stream; 0: also what was written since.
func (b *Bucket) Purge(ctx context.Context, subject string, upTo uint64) error {
	stream, _, err := LookUp(ctx, b.JS, subjects.BucketStream(b.Name))
	if err != nil {
		return err
	}
	opts := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject(subject)}
	if upTo > 0 {
		opts = append(opts, jetstream.WithPurgeSequence(upTo+1))
	}
	if err := stream.Purge(ctx, opts...); err != nil {
		return fmt.Errorf("purge %s from bucket %s: %w", Printable(subject), b.Name, err)
	}
	return nil
}

// PurgeApp removes an app's entry without an event: the one at sequence of the bucket's stream,
// nothing if that is 0.
func (b *Bucket) PurgeApp(ctx context.Context, id subjects.AppID, sequence uint64) error {
	if sequence == 0 {
		return nil
	}
	subject, err := b.Subject(id)
	if err != nil {
		return err
	}
	return b.Purge(ctx, subject, sequence)
}

// Entry is the bucket's message for an event.
func (b *Bucket) Entry(id subjects.AppID, r *app.Record, eventHeader nats.Header) (*nats.Msg, error) {
	return b.EntryWithin(id, r, eventHeader, b.Limit())
}

// EntryWithin is the bucket's message for an event, at most as large as limit if that is not 0. One
// that would be larger keeps the encoding of the event if that helps; else it omits the spec, then
// the status, and names them beside the fields that the event omits.
func (b *Bucket) EntryWithin(id subjects.AppID, r *app.Record, eventHeader nats.Header, limit int) (*nats.Msg, error) {
	subject, err := b.Subject(id)
	if err != nil {
		return nil, err
	}
	h := nats.Header{}
	for name, values := range eventHeader {
		if Carried(name) {
			h[name] = values
		}
	}
	h.Set(subjects.HeaderEventSequence, strconv.FormatUint(r.Sequence, 10))
	msg := &nats.Msg{Subject: subject, Header: h}
	if r.Kind == subjects.Deleted {
		h.Set(subjects.HeaderKVOperation, subjects.KVDelete)
		if !fits(msg, limit) {
			return nil, fmt.Errorf("%w: the delete marker has %d of %d bytes", app.ErrTooLarge, SizeOfEntry(msg), limit)
		}
		return msg, nil
	}
	forms := []string{b.ContentType}
	if r.ContentType != b.ContentType {
		forms = append(forms, r.ContentType)
	}
	shown := r.App
	cut := slices.DeleteFunc(strings.Split(h.Get(subjects.HeaderTruncated), ","), func(f string) bool { return f == "" })
	for _, field := range []string{"", subjects.TruncatedSpec, subjects.TruncatedStatus} {
		if shown, err = shown.Without(field); err != nil {
			return nil, err
		}
		if field != "" && !slices.Contains(cut, field) {
			cut = append(cut, field)
			h.Set(subjects.HeaderTruncated, strings.Join(cut, ","))
		}
		for _, form := range forms {
			encoded, err := shown.As(form)
			if err != nil {
				return nil, err
			}
			msg.Data = encoded.Bytes()
			h.Set(subjects.CEDataContentType, encoded.ContentType())
			if fits(msg, limit) {
				return msg, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: the bucket entry has %d of %d bytes, without spec and status", app.ErrTooLarge, SizeOfEntry(msg), limit)
}

// Carried reports whether a bucket entry has this header of its event.
func Carried(header string) bool {
	return strings.HasPrefix(header, "Flyte-") || strings.HasPrefix(header, "ce-")
}

// Printable is a name as it may stand on a terminal: one with control characters is quoted.
func Printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` || !utf8.ValidString(name) {
		return quoted
	}
	return name
}

// clockSkew is how far the clocks of servers and bridges may be apart: events have a server's time,
// the removal of a marker a bridge's.
const clockSkew = time.Minute

// KeepsNoMarker reports whether the delete marker of an app may have been removed for its age. It
// was stored after the event that it reflects.
func (b *Bucket) KeepsNoMarker(last *LastEvent, now time.Time) bool {
	return last.Record.Kind == subjects.Deleted && b.Outlived(last.Stored, now)
}

// Outlived reports whether the marker of an event stored then may have been removed for its age.
func (b *Bucket) Outlived(stored, now time.Time) bool {
	age := b.MarkerMaxAge
	return age > 0 && now.Sub(stored) > age-min(clockSkew, age/2)
}
