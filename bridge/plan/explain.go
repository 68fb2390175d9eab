package plan

import (
	"fmt"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// Kind is how cluster, stream and bucket differ; docs/verify.md describes each.
type Kind string

// The kinds of what differs of one app.
const (
	// Between the cluster and what was published.
	MissingEvent  Kind = "missing_event"   // the stream does not have the app
	MissingDelete Kind = "missing_deleted" // gone without a deleted event
	OtherUID      Kind = "other_uid"       // another object is the app now
	OtherVersion  Kind = "other_version"
	OtherApp      Kind = "other_app"     // the same version converts to another App
	RemovedEvent  Kind = "removed_event" // the last event of an app

	// Between an entry and its app's last event.
	MissingEntry   Kind = "missing_entry"
	MissingMarker  Kind = "missing_marker"
	EntryForMarker Kind = "entry_for_marker" // a value after a delete
	MarkerForEntry Kind = "marker_for_entry" // a delete marker although it is not
	BucketBehind   Kind = "bucket_behind"
	BucketAhead    Kind = "bucket_ahead" // the stream lacks its event
	BucketVersion  Kind = "bucket_other_version"
	BucketApp      Kind = "bucket_other_app"
	BucketHeaders  Kind = "bucket_headers"
	BucketEncoding Kind = "bucket_encoding"
	DamagedEntry   Kind = "damaged_entry"

	// Of an entry whose app has no event in the stream.
	BucketEvent Kind = "bucket_other_event" // the stream has another one at that sequence
	GhostEntry  Kind = "ghost_entry"        // of an app that was never published, as a running bridge knows
)

// Side is one of the sides that are compared.
type Side string

// The sides, as the wrong one.
const (
	SideCluster Side = "cluster"
	SideStream  Side = "stream"
	SideBucket  Side = "bucket"
	// SideSource is what the informers of a running bridge have of the cluster.
	SideSource Side = "source"
)

// Finding is one way in which the sides of an app differ.
type Finding struct {
	Kind   Kind
	Side   Side // the wrong one as far as that is known
	Detail string
}

// Explanation is what differs of an app, in words.
type Explanation struct {
	Findings []Finding
	// Refused is why the app's state cannot be published; nil: nothing is, or it can.
	Refused error
	// Unwatched: the app is published, and its namespace is not watched.
	Unwatched bool
}

// Explain says what differs between cluster, stream and bucket. Where a bridge asks, it is without what that
// one made itself and would make again.
func Explain(w *World, f Facts) Explanation {
	var x Explanation
	add := func(d *Finding) {
		if f.Bridge == nil || !f.settled(w, d) {
			x.Findings = append(x.Findings, *d)
		}
	}
	if d := f.checkBridge(w); d != nil {
		add(d)
		return x
	}
	owed := Next(w, f)
	x.Unwatched = owed.Unwatched
	if len(owed.Publish) > 0 {
		if f.Cluster != nil {
			x.Refused = w.Refused(f.App, *f.Cluster, f.Record)
		}
		if x.Refused == nil {
			add(f.explainOwed())
		}
	} else if d := f.checkRemoved(w); d != nil {
		add(d)
		return x
	}
	if w.Bucket {
		if d := f.checkEntry(w); d != nil {
			add(d)
		}
	}
	return x
}

// checkBridge compares what a running bridge published last of an app with the stream. It also finds an
// entry of an app that was never published.
func (f Facts) checkBridge(w *World) *Finding {
	if f.Bridge == nil {
		return nil
	}
	r, last, h := f.Bridge.Record, f.Event.Published(), f.Entry
	if r == nil && last == nil && f.Cluster == nil && h != nil && h.Record.Exists() {
		return wrong(GhostEntry, "an entry of an app that was never published, in the bucket%s", h.reflecting())
	}
	if !w.keepsNewest() || r == nil || !w.Watched(r.Namespace) {
		return nil
	}
	if last != nil && last.Sequence < r.Stands() {
		return removed(r, fmt.Sprintf("; its last one there is %s at %d", last.Kind, last.Sequence))
	}
	return w.checkOnly(r, last)
}

func (w *World) keepsNewest() bool { return w.Stream != nil && w.Stream.KeepsNewest }

func removed(r *app.Record, rest string) *Finding {
	return &Finding{RemovedEvent, SideStream, fmt.Sprintf("the app's last event was removed from the stream, %s at %d%s", r.Kind, r.Stands(), rest)}
}

// checkOnly finds an app that exists, and of which the stream has no event although it keeps them.
func (w *World) checkOnly(r, last *app.Record) *Finding {
	if last == nil && r.Exists() && r.Stands() >= w.Stream.First {
		return removed(r, ", and it has no other")
	}
	return nil
}

// checkRemoved compares an entry with a stream that does not have its event any more: the entry has what a
// bridge would know. Where the stream has another event of the app, or of another one at that sequence,
// the entry is what differs.
func (f Facts) checkRemoved(w *World) *Finding {
	h := f.Entry
	if f.Bridge != nil || h == nil || !w.keepsNewest() || h.Record == nil || h.Other != "" || h.Record.Sequence > w.Stream.Last || !w.Watched(h.Record.Namespace) {
		return nil
	}
	return w.checkOnly(h.Record, f.Event.Published())
}

// explainOwed is the finding of an app of which a bridge would have to publish an event.
func (f Facts) explainOwed() *Finding {
	was, last := f.Record, "no event was published"
	if was != nil {
		last = fmt.Sprintf("the last event is %s at %d with version %s", was.Kind, was.Sequence, was.ResourceVersion)
	}
	owed := func(kind Kind, format string, args ...any) *Finding {
		return &Finding{kind, SideStream, fmt.Sprintf(format, args...)}
	}
	if f.Cluster == nil {
		return owed(MissingDelete, "gone from the cluster without a deleted event: %s", last)
	}
	version, uid := f.Cluster.Service.ResourceVersion, string(f.Cluster.Service.UID)
	switch {
	case !was.Exists():
		return owed(MissingEvent, "missing in the stream: the cluster has version %s, %s", version, last)
	case was.UID != uid:
		return owed(OtherUID, "another object: the cluster has version %s of uid %s, %s of uid %s", version, uid, last, was.UID)
	case was.ResourceVersion != version:
		return owed(OtherVersion, "another version: the cluster has version %s, %s", version, last)
	}
	parts := "the App"
	if current, err := f.Cluster.App(); err == nil {
		parts = app.Differences(was.App, current)
	}
	return owed(OtherApp, "another App: the cluster has version %s, %s; they differ in %s", version, last, parts)
}

// checkEntry compares the entry with the app's last event.
func (f Facts) checkEntry(w *World) *Finding {
	if f.Event.Published() != nil {
		return Check(w.Entries, f.App, f.Event, f.Entry, w.Now)
	}
	h := f.Entry
	switch {
	case h == nil:
	case h.Record == nil:
		return wrong(DamagedEntry, "damaged in the bucket: %v; the stream has no event of it", h.Err)
	case w.Stream == nil: // the bucket has all that was published
	case h.Record.Sequence > w.Stream.Last:
		return wrong(BucketAhead, "ahead in the bucket%s: the stream ends at %d, they do not belong together", h.reflecting(), w.Stream.Last)
	case h.Other != "":
		return wrong(BucketEvent, "another event in the bucket%s: the stream has %s there", h.reflecting(), h.Other)
	default:
		subject, err := w.Entries.Subject(f.App)
		if err != nil {
			break
		}
		if want := w.Entries.Rewrite(subject, h.Header, h.Record); want != nil {
			return wrong(BucketEncoding, "another encoding in the bucket: %s, want %s", h.Record.ContentType, want.Header.Get(subjects.CEDataContentType))
		}
	}
	return nil
}

// settled reports whether a bridge made a difference itself and would make it again.
func (f Facts) settled(w *World, d *Finding) bool {
	e, h := f.Event, f.Entry
	own := h != nil && f.Bridge.Entry > 0 && h.Stored == f.Bridge.Entry // written by the bridge, or read when it began
	switch d.Kind {
	case BucketEncoding:
		return own // one that does not fit in the configured encoding keeps its own
	case BucketHeaders:
		return own && h.Header.Get(subjects.HeaderTruncated) != e.Header.Get(subjects.HeaderTruncated)
	case MissingEntry, MissingMarker:
		// An entry that cannot be made.
		_, err := w.Entries.Entry(f.App, e.Record, e.Header)
		return err != nil
	case DamagedEntry:
		return h == nil || h.Record != nil // likewise
	case OtherApp:
		// Without a status the entry has no replica count, and its event is gone.
		return e == nil && h != nil && h.Record != nil && h.Record.Lacks(subjects.TruncatedStatus)
	}
	return false
}
