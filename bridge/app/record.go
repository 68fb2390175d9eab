package app

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

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
	revisionVersion string
	DeletedVersion  string // resourceVersion of an observed deletion
	Truncated       string // fields that did not fit, comma-separated
	ContentType     string // of the message the app was read from
	App             *appv1.App
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

// KnownNamespace is that of the app's Knative Service, empty if it is not known.
func (r *Record) KnownNamespace() string {
	if r == nil {
		return ""
	}
	return r.Namespace
}

// recordOfHeader reads the fields that an event and its bucket entry share.
func recordOfHeader(h nats.Header) (*Record, error) {
	r := &Record{
		UID:             h.Get(subjects.HeaderUID),
		ResourceVersion: h.Get(subjects.HeaderResourceVersion),
		generation:      h.Get(subjects.HeaderGeneration),
		Namespace:       h.Get(subjects.HeaderNamespace),
		Status:          h.Get(subjects.HeaderAppStatus),
		Revision:        h.Get(subjects.HeaderRevision),
		revisionVersion: h.Get(subjects.HeaderRevisionResourceVersion),
		DeletedVersion:  h.Get(subjects.HeaderDeletedResourceVersion),
		Truncated:       h.Get(subjects.HeaderTruncated),
		ContentType:     h.Get(subjects.CEDataContentType),
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

// ReadEvent reads a message of the stream.
func ReadEvent(kind subjects.EventKind, sequence uint64, h nats.Header, data []byte) (*Record, error) {
	r, err := recordOfHeader(h)
	if err != nil {
		return nil, err
	}
	if r.Kind != kind {
		return nil, fmt.Errorf("header %s says %s, the subject %s", subjects.CEType, r.Kind, kind)
	}
	r.Sequence = sequence
	var w appv1.WatchResponse
	if err := appv1.Decode(data, r.ContentType, &w); err != nil {
		return nil, fmt.Errorf("decode event: %w", err)
	}
	switch kind {
	case subjects.Created:
		r.App = w.GetCreateEvent().GetApp()
	case subjects.Updated:
		r.App = w.GetUpdateEvent().GetUpdatedApp()
	case subjects.Deleted:
		r.App = w.GetDeleteEvent().GetApp()
	}
	if r.App == nil {
		return nil, fmt.Errorf("the payload is no %s event", kind)
	}
	return r, nil
}

// ReadEntry reads a message of the bucket's stream.
func ReadEntry(h nats.Header, data []byte) (*Record, error) {
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
	r.App = &appv1.App{}
	if err := appv1.Decode(data, r.ContentType, r.App); err != nil {
		return nil, fmt.Errorf("decode app: %w", err)
	}
	return r, nil
}

// Lacks reports whether the published app lacks a field.
func (r *Record) Lacks(field string) bool {
	return slices.Contains(strings.Split(r.Truncated, ","), field)
}
