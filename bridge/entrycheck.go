package bridge

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// held is what the bucket holds for one app.
type held struct {
	record *app.Record // nil: it cannot be read, for err
	err    error
	header nats.Header
	stored uint64 // its sequence in the bucket's own stream
	time   time.Time
	// other is the id of the event that the stream has at the sequence that the entry names; empty if
	// it is the entry's own event, or the stream has none there.
	other string
}

// heldBy reads a message of the bucket's stream.
func heldBy(m *storedMessage) *held {
	h := &held{header: m.header, stored: m.sequence, time: m.stored}
	h.record, h.err = app.ReadEntry(m.header, m.data)
	return h
}

func (h *held) marker() bool { return h.header.Get(subjects.HeaderKVOperation) != "" }

// sequence is that of the event that the entry reflects, 0 if that cannot be read.
func (h *held) sequence() uint64 {
	if h == nil || h.record == nil {
		return 0
	}
	return h.record.Sequence
}

// reflecting names the event that the entry reflects, as the end of a clause.
func (h *held) reflecting() string {
	if h.record == nil {
		return ""
	}
	return fmt.Sprintf(", which reflects %s at %d", h.record.Kind, h.record.Sequence)
}

// mismatchKind is how an entry of the bucket differs from its app's last event. docs/verify.md
// describes each.
type mismatchKind string

const (
	mismatchMissingEntry   mismatchKind = "missing_entry"
	mismatchMissingMarker  mismatchKind = "missing_marker"
	mismatchEntryForMarker mismatchKind = "entry_for_marker" // a value although the last event is a delete
	mismatchMarkerForEntry mismatchKind = "marker_for_entry" // a delete marker although it is not
	mismatchBehind         mismatchKind = "bucket_behind"
	mismatchAhead          mismatchKind = "bucket_ahead" // it reflects an event that the stream does not have
	mismatchVersion        mismatchKind = "bucket_other_version"
	mismatchApp            mismatchKind = "bucket_other_app"
	mismatchHeaders        mismatchKind = "bucket_headers"
	mismatchEncoding       mismatchKind = "bucket_encoding"
	mismatchDamaged        mismatchKind = "damaged_entry"
)

// mismatch is one way in which an entry differs from its app's last event.
type mismatch struct {
	kind   mismatchKind
	detail string
}

func mismatched(kind mismatchKind, format string, args ...any) *mismatch {
	return &mismatch{kind, fmt.Sprintf(format, args...)}
}

// mismatch compares an app's entry, nil if there is none, with its last event. It returns nil if
// the entry is as the projector writes it.
func (b *bucket) mismatch(id subjects.AppID, e *lastEvent, h *held, now time.Time) *mismatch {
	r := e.record
	end := fmt.Sprintf("the stream's last event is %s at %d", r.Kind, r.Sequence)
	deleted := r.Kind == subjects.Deleted
	switch {
	case h == nil && deleted && b.keepsNoMarker(e, now):
		return nil
	case h == nil && deleted:
		return mismatched(mismatchMissingMarker, "delete marker missing in the bucket: %s", end)
	case h == nil:
		return mismatched(mismatchMissingEntry, "missing in the bucket: %s", end)
	case deleted && !h.marker():
		return mismatched(mismatchEntryForMarker, "an entry in place of a delete marker in the bucket%s: %s", h.reflecting(), end)
	case h.record == nil && !deleted && h.marker():
		return mismatched(mismatchMarkerForEntry, "a delete marker that is not of appbridge in the bucket: %s", end)
	case h.record == nil:
		return mismatched(mismatchDamaged, "damaged in the bucket: %v; %s", h.err, end)
	case h.record.Sequence < r.Sequence:
		return mismatched(mismatchBehind, "behind in the bucket%s: %s", h.reflecting(), end)
	case h.record.Sequence > r.Sequence:
		return mismatched(mismatchAhead, "ahead in the bucket%s: %s", h.reflecting(), end)
	case !deleted && h.marker():
		return mismatched(mismatchMarkerForEntry, "a delete marker in place of an entry in the bucket%s: %s", h.reflecting(), end)
	case h.record.UID != r.UID || h.record.ResourceVersion != r.ResourceVersion:
		return mismatched(mismatchVersion, "another version in the bucket: version %s of uid %s, %s with version %s of uid %s",
			h.record.ResourceVersion, h.record.UID, end, r.ResourceVersion, r.UID)
	}
	want, err := b.entry(id, r, e.header)
	if err != nil {
		return mismatched(mismatchDamaged, "the entry cannot be made: %v; %s", err, end)
	}
	d := contentMismatch(e, h, want)
	if d == nil {
		return nil
	}
	// One that was written when the limit was higher is as good.
	if whole, err := b.whole(id, r, e.header); err == nil && contentMismatch(e, h, whole) == nil {
		return nil
	}
	return d
}

// contentMismatch compares an entry that reflects the event e with the one that is wanted for e.
func contentMismatch(e *lastEvent, h *held, want *nats.Msg) *mismatch {
	r := e.record
	end := fmt.Sprintf("the stream's last event is %s at %d", r.Kind, r.Sequence)
	form := want.Header.Get(subjects.CEDataContentType)
	if r.Kind != subjects.Deleted {
		wanted := r.App
		if want.Header.Get(subjects.HeaderTruncated) != r.Truncated {
			wanted = &appv1.App{}
			if err := appv1.Decode(want.Data, form, wanted); err != nil {
				return mismatched(mismatchDamaged, "the entry cannot be made: %v; %s", err, end)
			}
		}
		if !app.SameApp(h.record.App, wanted, app.WeakerEncoding(h.record.ContentType, r.ContentType)) {
			return mismatched(mismatchApp, "another App in the bucket: %s; they differ in %s", end, app.Differences(h.record.App, wanted))
		}
		if got := h.record.ContentType; got != form {
			return mismatched(mismatchEncoding, "another encoding in the bucket: %s, want %s; %s", got, form, end)
		}
	}
	if names := differingHeaders(h.header, want.Header); len(names) > 0 {
		return mismatched(mismatchHeaders, "other headers in the bucket than those of the event: %s; %s", strings.Join(names, ", "), end)
	}
	return nil
}

// differingHeaders names the headers of an entry that are not those of its event. Headers for
// JetStream are not compared.
func differingHeaders(got, want nats.Header) []string {
	names := map[string]struct{}{}
	for _, h := range []nats.Header{got, want} {
		for name := range h {
			if strings.HasPrefix(name, flyteHeaders) || strings.HasPrefix(name, cloudEventsHeaders) || name == subjects.HeaderKVOperation {
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
