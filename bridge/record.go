package bridge

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// record is what was published of one app: its last event, as the stream or the bucket shows it. It
// is immutable.
type record struct {
	kind            subjects.EventKind
	sequence        uint64 // of the event in the stream
	moved           uint64 // where the event that it shows stands, if not at sequence; see movedTo
	foreign         uint64 // of a later message on the app's subject that is no event of ours, 0 if none
	uid             string
	resourceVersion string // of the state; on a delete that of the state before
	generation      string
	namespace       string
	status          string // one word for the App's state; empty on a delete, and from an older version of appbridge
	revision        string // that gave current_replicas
	revisionVersion string
	deletedVersion  string // resourceVersion of an observed deletion
	truncated       string // fields that did not fit, comma-separated
	contentType     string // of the message the app was read from
	app             *appv1.App
	damaged         bool    // the bucket entry could not be read; app is nil
	lost            bool    // damaged, and of an app that exists, as a running bridge knows
	eventLost       bool    // the stream lost the app's only event: a create or a delete is owed
	held            *record // of a damaged entry whose event the stream lost: what the entry shows
	entry           uint64  // of a damaged entry: its sequence in the bucket's stream, 0 if there is none
}

func (r *record) exists() bool { return r != nil && r.kind != subjects.Deleted && !r.damaged }

func (r *record) isDamaged() bool { return r != nil && r.damaged }

// fence is the sequence the next append of this app has to expect.
func (r *record) fence() uint64 {
	if r == nil {
		return 0
	}
	return max(r.sequence, r.foreign)
}

// previous is the sequence of the app's newest event, 0 if there is none.
func (r *record) previous() uint64 {
	if r == nil {
		return 0
	}
	return r.sequence
}

// behind is the record after a foreign message at sequence on the app's subject.
func (r *record) behind(sequence uint64) *record {
	next := &record{kind: subjects.Deleted} // nothing of ours before it
	if r != nil {
		copied := *r
		next = &copied
	}
	next.foreign = max(next.foreign, sequence)
	return next
}

// movedTo is the record as if its event stood at sequence: of an app whose later event was removed
// before anything was made of it.
func (r *record) movedTo(sequence uint64) *record {
	next := &record{kind: subjects.Deleted}
	if r != nil {
		copied := *r
		next = &copied
	}
	if sequence > next.sequence {
		next.moved, next.sequence = next.stands(), sequence
	}
	return next
}

// stands is the sequence of the event that the record shows, 0 if there is none.
func (r *record) stands() uint64 {
	switch {
	case r == nil:
		return 0
	case r.moved > 0:
		return r.moved
	default:
		return r.sequence
	}
}

// nameSpace is that of the app's Knative Service, empty if it is not known.
func (r *record) nameSpace() string {
	if r == nil {
		return ""
	}
	return r.namespace
}

// recordOfHeader reads the fields that an event and its bucket entry share.
func recordOfHeader(h nats.Header) (*record, error) {
	r := &record{
		uid:             h.Get(subjects.HeaderUID),
		resourceVersion: h.Get(subjects.HeaderResourceVersion),
		generation:      h.Get(subjects.HeaderGeneration),
		namespace:       h.Get(subjects.HeaderNamespace),
		status:          h.Get(subjects.HeaderAppStatus),
		revision:        h.Get(subjects.HeaderRevision),
		revisionVersion: h.Get(subjects.HeaderRevisionResourceVersion),
		deletedVersion:  h.Get(subjects.HeaderDeletedResourceVersion),
		truncated:       h.Get(subjects.HeaderTruncated),
		contentType:     h.Get(subjects.CEDataContentType),
	}
	if r.uid == "" || r.resourceVersion == "" {
		return nil, fmt.Errorf("header %s or %s is missing", subjects.HeaderUID, subjects.HeaderResourceVersion)
	}
	switch h.Get(subjects.CEType) {
	case subjects.Created.Type():
		r.kind = subjects.Created
	case subjects.Updated.Type():
		r.kind = subjects.Updated
	case subjects.Deleted.Type():
		r.kind = subjects.Deleted
	default:
		return nil, fmt.Errorf("header %s is %q, not an app event", subjects.CEType, h.Get(subjects.CEType))
	}
	return r, nil
}

// recordOfEvent reads a message of the stream.
func recordOfEvent(kind subjects.EventKind, sequence uint64, h nats.Header, data []byte) (*record, error) {
	r, err := recordOfHeader(h)
	if err != nil {
		return nil, err
	}
	if r.kind != kind {
		return nil, fmt.Errorf("header %s says %s, the subject %s", subjects.CEType, r.kind, kind)
	}
	r.sequence = sequence
	var w appv1.WatchResponse
	if err := appv1.Decode(data, r.contentType, &w); err != nil {
		return nil, fmt.Errorf("decode event: %w", err)
	}
	switch kind {
	case subjects.Created:
		r.app = w.GetCreateEvent().GetApp()
	case subjects.Updated:
		r.app = w.GetUpdateEvent().GetUpdatedApp()
	case subjects.Deleted:
		r.app = w.GetDeleteEvent().GetApp()
	}
	if r.app == nil {
		return nil, fmt.Errorf("the payload is no %s event", kind)
	}
	return r, nil
}

// recordOfEntry reads a message of the bucket's stream.
func recordOfEntry(h nats.Header, data []byte) (*record, error) {
	r, err := recordOfHeader(h)
	if err != nil {
		return nil, err
	}
	r.sequence, err = strconv.ParseUint(h.Get(subjects.HeaderEventSequence), 10, 64)
	if err != nil || r.sequence == 0 {
		return nil, fmt.Errorf("header %s is %q, not a stream sequence", subjects.HeaderEventSequence, h.Get(subjects.HeaderEventSequence))
	}
	if op := h.Get(subjects.HeaderKVOperation); (r.kind == subjects.Deleted) != (op != "") {
		return nil, fmt.Errorf("header %s is %q on an entry of kind %s", subjects.HeaderKVOperation, op, r.kind)
	}
	if r.kind == subjects.Deleted {
		return r, nil
	}
	r.app = &appv1.App{}
	if err := appv1.Decode(data, r.contentType, r.app); err != nil {
		return nil, fmt.Errorf("decode app: %w", err)
	}
	return r, nil
}

// leftOut reports whether the published app lacks a field.
func (r *record) leftOut(field string) bool {
	return slices.Contains(strings.Split(r.truncated, ","), field)
}
