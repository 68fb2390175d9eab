package app

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

// Entries makes the entries of a bucket.
type Entries struct {
	Name        string // of the bucket
	ContentType string // of the entries to write
	// MaxSize is the largest message that the server takes, with headers; nil or 0: any size.
	MaxSize func() int
	// MarkerMaxAge is how old a delete marker may become, 0 for any age.
	MarkerMaxAge time.Duration
}

// Limit is the largest entry that can be written now, 0 without a limit.
func (e *Entries) Limit() int {
	if e.MaxSize == nil {
		return 0
	}
	return e.MaxSize()
}

// writeRoom is what the expected sequence adds to an entry.
const writeRoom = len(subjects.HeaderExpectedLastSequence) + len(": 18446744073709551615\r\n")

// SizeOfEntry is the size of an entry once it is written.
func SizeOfEntry(msg *nats.Msg) int { return msg.Size() + writeRoom }

// fits reports whether an entry is not larger than limit, if there is one.
func fits(msg *nats.Msg, limit int) bool { return limit <= 0 || SizeOfEntry(msg) <= limit }

// Subject is that of an app's entry.
func (e *Entries) Subject(id subjects.AppID) (string, error) {
	key, err := id.Key()
	if err != nil {
		return "", err
	}
	return subjects.BucketSubject(e.Name, key), nil
}

// AppOf is the app of an entry's subject.
func (e *Entries) AppOf(subject string) (subjects.AppID, error) {
	key, err := subjects.ParseBucketSubject(e.Name, subject)
	if err != nil {
		return subjects.AppID{}, err
	}
	return subjects.ParseKey(key)
}

// Rewrite is an entry in the configured encoding, nil if it has that or cannot have it.
func (e *Entries) Rewrite(subject string, header nats.Header, r *Record) *nats.Msg {
	if r.Kind == subjects.Deleted || r.ContentType == e.ContentType {
		return nil
	}
	encoded, err := r.App.As(e.ContentType)
	if err != nil || encoded.ContentType() == r.ContentType {
		return nil
	}
	h := maps.Clone(header)
	h.Del(subjects.HeaderExpectedLastSequence)
	h.Set(subjects.CEDataContentType, encoded.ContentType())
	if msg := (&nats.Msg{Subject: subject, Header: h, Data: encoded.Bytes()}); fits(msg, e.Limit()) {
		return msg
	}
	return nil
}

// Entry is the bucket's message for an event.
func (e *Entries) Entry(id subjects.AppID, r *Record, eventHeader nats.Header) (*nats.Msg, error) {
	return e.EntryWithin(id, r, eventHeader, e.Limit())
}

// EntryWithin is the bucket's message for an event, at most as large as limit if that is not 0. One
// that would be larger keeps the encoding of the event if that helps; else it omits the spec, then
// the status, and names them beside the fields that the event omits.
func (e *Entries) EntryWithin(id subjects.AppID, r *Record, eventHeader nats.Header, limit int) (*nats.Msg, error) {
	subject, err := e.Subject(id)
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
			return nil, fmt.Errorf("%w: the delete marker has %d of %d bytes", ErrTooLarge, SizeOfEntry(msg), limit)
		}
		return msg, nil
	}
	forms := []string{e.ContentType}
	if r.ContentType != e.ContentType {
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
	return nil, fmt.Errorf("%w: the bucket entry has %d of %d bytes, without spec and status", ErrTooLarge, SizeOfEntry(msg), limit)
}

// Carried reports whether a bucket entry has this header of its event.
func Carried(header string) bool {
	return strings.HasPrefix(header, "Flyte-") || strings.HasPrefix(header, "ce-")
}

// clockSkew is how far the clocks of servers and bridges may be apart: events have a server's time,
// the removal of a marker a bridge's.
const clockSkew = time.Minute

// Outlived reports whether the marker of an event stored then may have been removed for its age.
func (e *Entries) Outlived(stored, now time.Time) bool {
	age := e.MarkerMaxAge
	return age > 0 && now.Sub(stored) > age-min(clockSkew, age/2)
}
