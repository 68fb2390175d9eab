package app

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unique"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// Record is what was published of one app: its last event, as stream or bucket have it. Immutable.
type Record struct {
	Kind            subjects.EventKind
	Sequence        uint64 // of the event in the stream
	moved           uint64 // the sequence of its event, if that is another than Sequence; see MovedTo
	Foreign         uint64 // of a later message on the app's subject that is no event of ours, 0 if none
	UID             string
	ResourceVersion string // of the state; on a delete that of the state before
	generation      string
	Namespace       string
	Status          string // one word for the App's state; empty on a delete, and from an older version of appbridge
	Revision        string // that gave current_replicas
	RevisionVersion string
	reason          string // what pods say, in one word
	ReasonRevision  string // the Revision whose pods say so
	DeletedVersion  string // resourceVersion of an observed deletion
	Truncated       string // fields that did not fit, comma-separated
	ContentType     string // of the message the app was read from
	App             Encoded
	Damaged         bool    // the bucket entry could not be read; app is nil
	Lost            bool    // damaged, and of an app that exists, as a running bridge knows
	EventLost       bool    // the stream lost the app's only event: a create or a delete is owed
	Held            *Record // of a damaged entry whose event the stream lost: the content of the entry
	Entry           uint64  // of a damaged entry: its sequence in the bucket's stream, 0 if there is none
}

// Exists reports whether the app's last event is not a delete, and can be read.
func (r *Record) Exists() bool { return r != nil && r.Kind != subjects.Deleted && !r.Damaged }

// IsDamaged reports whether the app's entry cannot be read.
func (r *Record) IsDamaged() bool { return r != nil && r.Damaged }

// Fence is the sequence the next append of this app has to expect.
func (r *Record) Fence() uint64 {
	if r == nil {
		return 0
	}
	return max(r.Sequence, r.Foreign)
}

// Previous is the sequence of the app's newest event, 0 if there is none.
func (r *Record) Previous() uint64 {
	if r == nil {
		return 0
	}
	return r.Sequence
}

// Behind is the record after a foreign message at sequence on the app's subject.
func (r *Record) Behind(sequence uint64) *Record {
	next := *cmp.Or(r, &Record{Kind: subjects.Deleted}) // nothing of ours before it
	next.Foreign = max(next.Foreign, sequence)
	return &next
}

// MovedTo is the record as if its event stood at sequence, where an unused later event was removed.
func (r *Record) MovedTo(sequence uint64) *Record {
	next := *cmp.Or(r, &Record{Kind: subjects.Deleted})
	if sequence > next.Sequence {
		next.moved, next.Sequence = next.Stands(), sequence
	}
	return &next
}

// Stands is the sequence of the record's event, 0 if there is none.
func (r *Record) Stands() uint64 {
	switch {
	case r == nil:
		return 0
	case r.moved > 0:
		return r.moved
	default:
		return r.Sequence
	}
}

// Sharing is the record with the bytes of a state's App, and its names, if they are the same: they
// are kept once.
func (r *Record) Sharing(s State) *Record {
	if !r.Exists() || s.Service == nil {
		return r
	}
	app, err := s.App()
	if err != nil || r.App.shares(app) || !app.sameBytes(r.App) {
		return r
	}
	next := *r
	next.share(app, s)
	return &next
}

// share makes app, which is that of a state, the record's.
func (r *Record) share(app Encoded, s State) {
	r.App = app
	if s.RecordedBy(r) {
		r.UID, r.ResourceVersion = string(s.Service.UID), s.Service.ResourceVersion
		if s.Revision != nil {
			r.Revision, r.RevisionVersion = s.Revision.Name, s.Revision.ResourceVersion
		}
		r.ReasonRevision = s.Pods.Revision
	}
}

// recordOfHeader reads the fields that an event and its bucket entry share.
func recordOfHeader(h nats.Header) (*Record, error) {
	// Copies: a value is a part of all headers of its message.
	one := func(header string) string { return strings.Clone(h.Get(header)) }
	many := func(header string) string { return unique.Make(h.Get(header)).Value() } // many apps have the same
	r := &Record{
		UID:             one(subjects.HeaderUID),
		ResourceVersion: one(subjects.HeaderResourceVersion),
		generation:      many(subjects.HeaderGeneration),
		Namespace:       many(subjects.HeaderNamespace),
		Status:          many(subjects.HeaderAppStatus),
		Revision:        one(subjects.HeaderRevision),
		RevisionVersion: one(subjects.HeaderRevisionResourceVersion),
		reason:          many(subjects.HeaderReason),
		ReasonRevision:  one(subjects.HeaderReasonRevision),
		DeletedVersion:  one(subjects.HeaderDeletedResourceVersion),
		Truncated:       many(subjects.HeaderTruncated),
		ContentType:     many(subjects.CEDataContentType),
	}
	if r.UID == "" || r.ResourceVersion == "" {
		return nil, fmt.Errorf("header %s or %s is missing", subjects.HeaderUID, subjects.HeaderResourceVersion)
	}
	for _, r.Kind = range []subjects.EventKind{subjects.Created, subjects.Updated, subjects.Deleted} {
		if h.Get(subjects.CEType) == r.Kind.Type() {
			return r, nil
		}
	}
	return nil, fmt.Errorf("header %s is %q, not an app event", subjects.CEType, h.Get(subjects.CEType))
}

// ReadEventHeader reads the headers of a message of the stream. The record has no App.
func ReadEventHeader(kind subjects.EventKind, sequence uint64, h nats.Header) (*Record, error) {
	r, err := recordOfHeader(h)
	if err != nil {
		return nil, err
	}
	if r.Kind != kind {
		return nil, fmt.Errorf("header %s says %s, the subject %s", subjects.CEType, r.Kind, kind)
	}
	r.Sequence = sequence
	return r, nil
}

// CheckSubject returns an error for headers that name another app than the subject of their message:
// the message was sent to another subject than the stream has it on. Older events name none.
func CheckSubject(id subjects.AppID, h nats.Header) error {
	named := h.Get(subjects.CESubject)
	if key, err := id.Key(); err != nil || named != "" && named != key {
		return fmt.Errorf("header %s is %q, on a subject of app %s", subjects.CESubject, named, id)
	}
	return nil
}

// ReadEvent reads a message of the stream.
func ReadEvent(kind subjects.EventKind, sequence uint64, h nats.Header, data []byte) (*Record, error) {
	r, err := ReadEventHeader(kind, sequence, h)
	if err != nil {
		return nil, err
	}
	var w appv1.WatchResponse
	if err := appv1.Decode(data, r.ContentType, &w); err != nil {
		return nil, fmt.Errorf("decode event: %w", err)
	}
	app := map[subjects.EventKind]*appv1.App{
		subjects.Created: w.GetCreateEvent().GetApp(), subjects.Updated: w.GetUpdateEvent().GetUpdatedApp(), subjects.Deleted: w.GetDeleteEvent().GetApp(),
	}[kind]
	if app == nil {
		return nil, fmt.Errorf("the payload is no %s event", kind)
	}
	if r.App, err = EncodeApp(app, r.ContentType); err != nil {
		return nil, fmt.Errorf("decode event: %w", err)
	}
	return r, nil
}

// ReadEntry reads a message of the bucket's stream.
func ReadEntry(h nats.Header, data []byte) (*Record, error) {
	return ReadEntryOf(h, data, State{})
}

// ReadEntryOf is ReadEntry of an app that probably is in a known state: the bytes of that state's App
// are neither decoded nor kept twice.
func ReadEntryOf(h nats.Header, data []byte, known State) (*Record, error) {
	r, err := recordOfHeader(h)
	if err != nil {
		return nil, err
	}
	r.Sequence, err = strconv.ParseUint(h.Get(subjects.HeaderEventSequence), 10, 64)
	if err != nil || r.Sequence == 0 {
		return nil, fmt.Errorf("header %s is %q, not a stream sequence", subjects.HeaderEventSequence, h.Get(subjects.HeaderEventSequence))
	}
	if op := h.Get(subjects.HeaderKVOperation); (r.Kind == subjects.Deleted) != (op != "") {
		return nil, fmt.Errorf("header %s is %q on an entry of kind %s", subjects.HeaderKVOperation, op, r.Kind)
	}
	if r.Kind == subjects.Deleted {
		return r, nil
	}
	if known.Service != nil {
		if app, err := known.App(); err == nil && app.form == r.ContentType && app.is(data) {
			r.share(app, known)
			return r, nil
		}
	}
	r.App, err = ReadApp(data, r.ContentType)
	return r, err
}

// Lacks reports whether the published app lacks a field.
func (r *Record) Lacks(field string) bool {
	return slices.Contains(strings.Split(r.Truncated, ","), field)
}
