package plan

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

// KeepsNoMarker reports whether the delete marker of an app may have been removed for its age. It
// was stored after the event that it reflects.
func KeepsNoMarker(b *app.Entries, last *Event, now time.Time) bool {
	return last.Record.Kind == subjects.Deleted && b.Outlived(last.Stored, now)
}

// end names the app's last event.
func (e *Event) end() string {
	return fmt.Sprintf("the stream's last event is %s at %d", e.Record.Kind, e.Record.Sequence)
}

func wrong(kind Kind, format string, args ...any) *Finding {
	return &Finding{Kind: kind, Side: SideBucket, Detail: fmt.Sprintf(format, args...)}
}

// Check compares an app's entry, which may be nil, with its last event; nil: it is as wanted.
func Check(b *app.Entries, id subjects.AppID, e *Event, h *Entry, now time.Time) *Finding {
	r, end := e.Record, e.end()
	deleted := r.Kind == subjects.Deleted
	switch {
	case h == nil && deleted && KeepsNoMarker(b, e, now):
		return nil
	case h == nil && deleted:
		return wrong(MissingMarker, "delete marker missing in the bucket: %s", end)
	case h == nil:
		return wrong(MissingEntry, "missing in the bucket: %s", end)
	case deleted && !h.Marker():
		return wrong(EntryForMarker, "an entry in place of a delete marker in the bucket%s: %s", h.reflecting(), end)
	case h.Record == nil && !deleted && h.Marker():
		return wrong(MarkerForEntry, "a delete marker that is not of appbridge in the bucket: %s", end)
	case h.Record == nil:
		return wrong(DamagedEntry, "damaged in the bucket: %v; %s", h.Err, end)
	case h.Record.Sequence < r.Sequence:
		return wrong(BucketBehind, "behind in the bucket%s: %s", h.reflecting(), end)
	case h.Record.Sequence > r.Sequence:
		return wrong(BucketAhead, "ahead in the bucket%s: %s", h.reflecting(), end)
	case !deleted && h.Marker():
		return wrong(MarkerForEntry, "a delete marker in place of an entry in the bucket%s: %s", h.reflecting(), end)
	case h.Record.UID != r.UID || h.Record.ResourceVersion != r.ResourceVersion:
		return wrong(BucketVersion, "another version in the bucket: version %s of uid %s, %s with version %s of uid %s",
			h.Record.ResourceVersion, h.Record.UID, end, r.ResourceVersion, r.UID)
	}
	want, err := b.Entry(id, r, e.Header)
	if err != nil {
		return wrong(DamagedEntry, "the entry cannot be made: %v; %s", err, end)
	}
	d := checkContent(e, h, want)
	if d != nil {
		// One that was written when the limit was higher is as good.
		if whole, err := b.EntryWithin(id, r, e.Header, 0); err == nil && checkContent(e, h, whole) == nil {
			return nil
		}
	}
	return d
}

// checkContent compares an entry that reflects the event e with the one that is wanted for e.
func checkContent(e *Event, h *Entry, want *nats.Msg) *Finding {
	r, end := e.Record, e.end()
	form := want.Header.Get(subjects.CEDataContentType)
	if r.Kind != subjects.Deleted {
		wanted := r.App
		if want.Header.Get(subjects.HeaderTruncated) != r.Truncated {
			var err error
			if wanted, err = app.ReadApp(want.Data, form); err != nil {
				return wrong(DamagedEntry, "the entry cannot be made: %v; %s", err, end)
			}
		}
		if !app.SameApp(h.Record.App, wanted, app.WeakerEncoding(h.Record.ContentType, r.ContentType)) {
			return wrong(BucketApp, "another App in the bucket: %s; they differ in %s", end, app.Differences(h.Record.App, wanted))
		}
		if got := h.Record.ContentType; got != form {
			return wrong(BucketEncoding, "another encoding in the bucket: %s, want %s; %s", got, form, end)
		}
	}
	if names := differingHeaders(h.Header, want.Header); len(names) > 0 {
		return wrong(BucketHeaders, "other headers in the bucket than those of the event: %s; %s", strings.Join(names, ", "), end)
	}
	return nil
}

// differingHeaders names the headers in which an entry differs from its event, JetStream's aside.
func differingHeaders(got, want nats.Header) []string {
	names := map[string]struct{}{}
	for _, h := range []nats.Header{got, want} {
		for name := range h {
			if app.Carried(name) || name == subjects.HeaderKVOperation {
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
