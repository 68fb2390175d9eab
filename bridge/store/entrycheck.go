package store

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// Entry is what the bucket holds for one app.
type Entry struct {
	Record *app.Record // nil: it cannot be read, for err
	Err    error
	Header nats.Header
	Stored uint64 // its sequence in the bucket's own stream
	Time   time.Time
	// Other is the id of the event that the stream has at the sequence that the entry names; empty
	// if it is the entry's own event, or the stream has none there.
	Other string
}

// EntryOf reads a message of the bucket's stream.
func EntryOf(m *Message) *Entry {
	h := &Entry{Header: m.Header, Stored: m.Sequence, Time: m.Stored}
	h.Record, h.Err = app.ReadEntry(m.Header, m.Data)
	return h
}

// Marker reports whether the entry is a delete marker.
func (h *Entry) Marker() bool { return h.Header.Get(subjects.HeaderKVOperation) != "" }

// Sequence is that of the event that the entry reflects, 0 if that cannot be read.
func (h *Entry) Sequence() uint64 {
	if h == nil || h.Record == nil {
		return 0
	}
	return h.Record.Sequence
}

// Reflecting names the event that the entry reflects, as the end of a clause.
func (h *Entry) Reflecting() string {
	if h.Record == nil {
		return ""
	}
	return fmt.Sprintf(", which reflects %s at %d", h.Record.Kind, h.Record.Sequence)
}

// MismatchKind is how an entry differs from its app's last event; docs/verify.md describes each.
type MismatchKind string

// The kinds of mismatch.
const (
	MismatchMissingEntry   MismatchKind = "missing_entry"
	MismatchMissingMarker  MismatchKind = "missing_marker"
	MismatchEntryForMarker MismatchKind = "entry_for_marker" // a value after a delete
	MismatchMarkerForEntry MismatchKind = "marker_for_entry" // a delete marker although it is not
	MismatchBehind         MismatchKind = "bucket_behind"
	MismatchAhead          MismatchKind = "bucket_ahead" // the stream lacks its event
	MismatchVersion        MismatchKind = "bucket_other_version"
	MismatchApp            MismatchKind = "bucket_other_app"
	MismatchHeaders        MismatchKind = "bucket_headers"
	MismatchEncoding       MismatchKind = "bucket_encoding"
	MismatchDamaged        MismatchKind = "damaged_entry"
)

// Mismatch is one way in which an entry differs from its app's last event.
type Mismatch struct {
	Kind   MismatchKind
	Detail string
}

func mismatched(kind MismatchKind, format string, args ...any) *Mismatch {
	return &Mismatch{kind, fmt.Sprintf(format, args...)}
}

// Mismatch compares an app's entry, which may be nil, with its last event; nil: it is as wanted.
func (b *Bucket) Mismatch(id subjects.AppID, e *LastEvent, h *Entry, now time.Time) *Mismatch {
	r := e.Record
	end := fmt.Sprintf("the stream's last event is %s at %d", r.Kind, r.Sequence)
	deleted := r.Kind == subjects.Deleted
	switch {
	case h == nil && deleted && b.KeepsNoMarker(e, now):
		return nil
	case h == nil && deleted:
		return mismatched(MismatchMissingMarker, "delete marker missing in the bucket: %s", end)
	case h == nil:
		return mismatched(MismatchMissingEntry, "missing in the bucket: %s", end)
	case deleted && !h.Marker():
		return mismatched(MismatchEntryForMarker, "an entry in place of a delete marker in the bucket%s: %s", h.Reflecting(), end)
	case h.Record == nil && !deleted && h.Marker():
		return mismatched(MismatchMarkerForEntry, "a delete marker that is not of appbridge in the bucket: %s", end)
	case h.Record == nil:
		return mismatched(MismatchDamaged, "damaged in the bucket: %v; %s", h.Err, end)
	case h.Record.Sequence < r.Sequence:
		return mismatched(MismatchBehind, "behind in the bucket%s: %s", h.Reflecting(), end)
	case h.Record.Sequence > r.Sequence:
		return mismatched(MismatchAhead, "ahead in the bucket%s: %s", h.Reflecting(), end)
	case !deleted && h.Marker():
		return mismatched(MismatchMarkerForEntry, "a delete marker in place of an entry in the bucket%s: %s", h.Reflecting(), end)
	case h.Record.UID != r.UID || h.Record.ResourceVersion != r.ResourceVersion:
		return mismatched(MismatchVersion, "another version in the bucket: version %s of uid %s, %s with version %s of uid %s",
			h.Record.ResourceVersion, h.Record.UID, end, r.ResourceVersion, r.UID)
	}
	want, err := b.Entry(id, r, e.Header)
	if err != nil {
		return mismatched(MismatchDamaged, "the entry cannot be made: %v; %s", err, end)
	}
	d := contentMismatch(e, h, want)
	if d != nil {
		// One that was written when the limit was higher is as good.
		if whole, err := b.EntryWithin(id, r, e.Header, 0); err == nil && contentMismatch(e, h, whole) == nil {
			return nil
		}
	}
	return d
}

// contentMismatch compares an entry that reflects the event e with the one that is wanted for e.
func contentMismatch(e *LastEvent, h *Entry, want *nats.Msg) *Mismatch {
	r := e.Record
	end := fmt.Sprintf("the stream's last event is %s at %d", r.Kind, r.Sequence)
	form := want.Header.Get(subjects.CEDataContentType)
	if r.Kind != subjects.Deleted {
		wanted := r.App
		if want.Header.Get(subjects.HeaderTruncated) != r.Truncated {
			var err error
			if wanted, err = app.ReadApp(want.Data, form); err != nil {
				return mismatched(MismatchDamaged, "the entry cannot be made: %v; %s", err, end)
			}
		}
		if !app.SameApp(h.Record.App, wanted, app.WeakerEncoding(h.Record.ContentType, r.ContentType)) {
			return mismatched(MismatchApp, "another App in the bucket: %s; they differ in %s", end, app.Differences(h.Record.App, wanted))
		}
		if got := h.Record.ContentType; got != form {
			return mismatched(MismatchEncoding, "another encoding in the bucket: %s, want %s; %s", got, form, end)
		}
	}
	if names := differingHeaders(h.Header, want.Header); len(names) > 0 {
		return mismatched(MismatchHeaders, "other headers in the bucket than those of the event: %s; %s", strings.Join(names, ", "), end)
	}
	return nil
}

// differingHeaders names the headers in which an entry differs from its event, JetStream's aside.
func differingHeaders(got, want nats.Header) []string {
	names := map[string]struct{}{}
	for _, h := range []nats.Header{got, want} {
		for name := range h {
			if Carried(name) || name == subjects.HeaderKVOperation {
				names[name] = struct{}{}
			}
		}
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(names)), func(name string) bool {
		if name == subjects.HeaderKVOperation && got.Get(name) != "" && want.Get(name) != "" {
			return true // a delete and a purge are both delete markers
		}
		return slices.Equal(got[name], want[name])
	})
}
