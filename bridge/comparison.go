package bridge

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// held is what the bucket holds for one app.
type held struct {
	record *record // nil: it cannot be read, for err
	err    error
	header nats.Header
	stored uint64 // its sequence in the bucket's own stream
	time   time.Time
	// other is the id of the event that the stream has where this one says
	// that its event is; empty: the very one, or none any more.
	other string
}

func (h *held) marker() bool { return h.header.Get(subjects.HeaderKVOperation) != "" }

// sequence is that of the event which the entry reflects, 0 if that cannot be read.
func (h *held) sequence() uint64 {
	if h == nil || h.record == nil {
		return 0
	}
	return h.record.sequence
}

// comparison says what is compared and how. Its method compare is pure.
type comparison struct {
	app     kservice.Config
	watched func(namespace string) bool
	bucket  *bucket // makes the entries that are wanted
	now     time.Time
	// refused says why a state cannot be published after prev, nil if it can.
	refused   func(id subjects.AppID, s state, prev *record) error
	streamEnd uint64 // last sequence of the stream
	// streamFirst is its first one. keepsNewest is true if nothing but somebody's hand removes a
	// message behind it.
	streamFirst uint64
	keepsNewest bool
	// believed is what a running bridge published last of each app; nil if no bridge compares.
	believed map[subjects.AppID]*record
	noStream bool // there is none, so the bucket is all that was published
	noBucket bool
	awaits   map[subjects.AppID]*awaited // apps whose Revision is not known
}

// lastPublished is what was published last of each app.
func lastPublished(events map[subjects.AppID]*lastEvent, entries map[subjects.AppID]*held) map[subjects.AppID]*record {
	published := map[subjects.AppID]*record{}
	for id, h := range entries {
		if h.record != nil {
			published[id] = h.record // retention may have taken its event
		}
	}
	for id, e := range events {
		if e.record != nil {
			published[id] = e.record
		}
	}
	return published
}

// compare finds the differences between what is in the cluster, at the end of
// the stream and in the bucket. None of them is changed.
func (c comparison) compare(current map[subjects.AppID]state, events map[subjects.AppID]*lastEvent, entries map[subjects.AppID]*held) ([]Difference, []Note) {
	published := lastPublished(events, entries)
	var differences []Difference
	var notes []Note
	judged := map[subjects.AppID]bool{}
	for id, r := range c.believed {
		d, differs := c.judgeBelief(id, r, current, events[id], entries[id])
		if !differs {
			continue
		}
		differences = append(differences, c.fill(d, current, events, entries))
		judged[id] = true
	}
	changes, unwatched := reconcile(published, current, c.app, c.watched)
	reported := maps.Clone(judged)
	for _, o := range changes {
		if reported[o.app] {
			continue // the create that follows a delete
		}
		reported[o.app] = true
		now, there := current[o.app]
		if there {
			if err := c.refused(o.app, now, published[o.app]); err != nil {
				notes = append(notes, noteOn(o.app, NoteLeftOut, "version %s is left out: %v", now.service.ResourceVersion, err))
				continue
			}
		}
		differences = append(differences, c.fill(c.owedDifference(o.app, now, there, published[o.app]), current, events, entries))
	}
	for _, id := range unwatched {
		notes = append(notes, noteOn(id, NoteUnwatched, "left alone: its namespace %s is not watched", published[id].namespace))
	}
	if !c.noBucket {
		ids := maps.Clone(entries)
		if ids == nil {
			ids = map[subjects.AppID]*held{}
		}
		for id := range events {
			ids[id] = entries[id]
		}
		for id := range ids {
			if judged[id] {
				continue
			}
			if d, differs := c.judgeEntry(id, events[id], entries[id]); differs {
				differences = append(differences, c.fill(d, current, events, entries))
			}
		}
	}
	sortDifferences(differences)
	return differences, notes
}

// judgeBelief compares what a running bridge published last of an app with the stream, and an entry
// of an app that it never published with nothing.
func (c comparison) judgeBelief(id subjects.AppID, r *record, current map[subjects.AppID]state, e *lastEvent, h *held) (Difference, bool) {
	_, there := current[id]
	noEvent := e == nil || e.record == nil
	switch {
	case r == nil && noEvent && !there && h != nil && h.record.exists():
		return about(id, DifferenceGhostEntry, SideBucket, "an entry of an app that was never published, in the bucket%s", reflecting(h)), true
	case !c.keepsNewest || !c.watched(r.nameSpace()):
	case noEvent && r.exists() && r.stands() >= c.streamFirst:
		return about(id, DifferenceRemovedEvent, SideStream, "the app's last event was removed from the stream, %s at %d, and it has no other", r.kind, r.stands()), true
	case !noEvent && r != nil && e.record.sequence < r.stands():
		return about(id, DifferenceRemovedEvent, SideStream, "the app's last event was removed from the stream, %s at %d; its last one there is %s at %d",
			r.kind, r.stands(), e.record.kind, e.record.sequence), true
	}
	return Difference{}, false
}

// fill adds what the sides show of an app.
func (c comparison) fill(d Difference, current map[subjects.AppID]state, events map[subjects.AppID]*lastEvent, entries map[subjects.AppID]*held) Difference {
	if c.awaits[d.id] != nil {
		d.bear = standInTime + time.Second // for the event to arrive
	}
	now, there := current[d.id]
	if there {
		d.ClusterVersion = now.service.ResourceVersion
	}
	if e := events[d.id]; e != nil {
		d.StreamSequence = e.record.previous()
	}
	d.BucketSequence = entries[d.id].sequence()
	if d.Side == SideBucket {
		if there {
			d.Detail += fmt.Sprintf(", the cluster has version %s", d.ClusterVersion)
		} else {
			d.Detail += ", the cluster does not have it"
		}
	}
	return d
}

// owedDifference says what a bridge would have to publish of an app, and why.
func (c comparison) owedDifference(id subjects.AppID, now state, there bool, was *record) Difference {
	switch {
	case there && was == nil:
		return about(id, DifferenceMissingEvent, SideStream, "missing in the stream: the cluster has version %s, no event was published", now.service.ResourceVersion)
	case there && !was.exists():
		return about(id, DifferenceMissingEvent, SideStream, "missing in the stream: the cluster has version %s, %s", now.service.ResourceVersion, lastWords(was))
	case !there:
		return about(id, DifferenceMissingDelete, SideStream, "gone from the cluster without a deleted event: %s", lastWords(was))
	case was.uid != string(now.service.UID):
		return about(id, DifferenceUID, SideStream, "another object: the cluster has version %s of uid %s, %s of uid %s",
			now.service.ResourceVersion, now.service.UID, lastWords(was), was.uid)
	case was.resourceVersion != now.service.ResourceVersion:
		return about(id, DifferenceVersion, SideStream, "another version: the cluster has version %s, %s", now.service.ResourceVersion, lastWords(was))
	default:
		parts := "the App"
		if app, err := now.app(c.app); err == nil {
			parts = differingParts(was.app, app)
		}
		return about(id, DifferenceApp, SideStream, "another App: the cluster has version %s, %s; they differ in %s", now.service.ResourceVersion, lastWords(was), parts)
	}
}

// lastWords is what was published last of an app.
func lastWords(r *record) string {
	return fmt.Sprintf("the last event is %s at %d with version %s", r.kind, r.sequence, r.resourceVersion)
}

// judgeEntry compares an app's bucket entry with its last event.
func (c comparison) judgeEntry(id subjects.AppID, e *lastEvent, h *held) (Difference, bool) {
	differs := func(kind DifferenceKind, format string, args ...any) (Difference, bool) {
		return about(id, kind, SideBucket, format, args...), true
	}
	if e == nil || e.record == nil {
		return c.judgeAlone(id, h)
	}
	r := e.record
	end := fmt.Sprintf("the stream's last event is %s at %d", r.kind, r.sequence)
	deleted := r.kind == subjects.Deleted
	switch {
	case h == nil && deleted && c.bucket.keepsNoMarker(e, c.now):
		return Difference{}, false
	case h == nil && deleted:
		return differs(DifferenceMissingMarker, "delete marker missing in the bucket: %s", end)
	case h == nil:
		return differs(DifferenceMissingEntry, "missing in the bucket: %s", end)
	case deleted && !h.marker():
		return differs(DifferenceEntryForMarker, "an entry in place of a delete marker in the bucket%s: %s", reflecting(h), end)
	case h.record == nil && !deleted && h.marker():
		return differs(DifferenceMarkerForEntry, "a delete marker that is not of appbridge in the bucket: %s", end)
	case h.record == nil:
		return differs(DifferenceDamagedEntry, "damaged in the bucket: %v; %s", h.err, end)
	case h.record.sequence < r.sequence:
		return differs(DifferenceBucketBehind, "behind in the bucket%s: %s", reflecting(h), end)
	case h.record.sequence > r.sequence:
		return differs(DifferenceBucketAhead, "ahead in the bucket%s: %s", reflecting(h), end)
	case !deleted && h.marker():
		return differs(DifferenceMarkerForEntry, "a delete marker in place of an entry in the bucket%s: %s", reflecting(h), end)
	case h.record.uid != r.uid || h.record.resourceVersion != r.resourceVersion:
		return differs(DifferenceBucketVersion, "another version in the bucket: version %s of uid %s, %s with version %s of uid %s",
			h.record.resourceVersion, h.record.uid, end, r.resourceVersion, r.uid)
	}
	want, err := c.bucket.entry(id, r, e.header)
	if err != nil {
		return differs(DifferenceDamagedEntry, "the entry cannot be made: %v; %s", err, end)
	}
	d, other := judgeContent(id, e, h, want)
	if !other {
		return Difference{}, false
	}
	// One that was written when the limit was higher is as good.
	if whole, err := c.bucket.whole(id, r, e.header); err == nil {
		if _, other := judgeContent(id, e, h, whole); !other {
			return Difference{}, false
		}
	}
	return d, true
}

// judgeContent compares an app's bucket entry with the one that is wanted for
// the event e.
func judgeContent(id subjects.AppID, e *lastEvent, h *held, want *nats.Msg) (Difference, bool) {
	differs := func(kind DifferenceKind, format string, args ...any) (Difference, bool) {
		return about(id, kind, SideBucket, format, args...), true
	}
	r := e.record
	end := fmt.Sprintf("the stream's last event is %s at %d", r.kind, r.sequence)
	form := want.Header.Get(subjects.CEDataContentType)
	if r.kind != subjects.Deleted {
		app := r.app
		if want.Header.Get(subjects.HeaderTruncated) != r.truncated {
			app = &appv1.App{}
			if err := appv1.Decode(want.Data, form, app); err != nil {
				return differs(DifferenceDamagedEntry, "the entry cannot be made: %v; %s", err, end)
			}
		}
		if !sameApp(h.record.app, app, weakerForm(h.record.contentType, r.contentType)) {
			return differs(DifferenceBucketApp, "another App in the bucket: %s; they differ in %s", end, differingParts(h.record.app, app))
		}
		if got := h.record.contentType; got != form {
			return differs(DifferenceBucketEncoding, "another encoding in the bucket: %s, want %s; %s", got, form, end)
		}
	}
	if names := differingHeaders(h.header, want.Header); len(names) > 0 {
		return differs(DifferenceBucketHeaders, "other headers in the bucket than those of the event: %s; %s", strings.Join(names, ", "), end)
	}
	return Difference{}, false
}

// judgeAlone looks at an entry whose app has no event in the stream.
func (c comparison) judgeAlone(id subjects.AppID, h *held) (Difference, bool) {
	switch {
	case h == nil:
	case h.record == nil:
		return about(id, DifferenceDamagedEntry, SideBucket, "damaged in the bucket: %v; the stream has no event of it", h.err), true
	case c.noStream:
	case h.record.sequence > c.streamEnd:
		return about(id, DifferenceBucketAhead, SideBucket, "ahead in the bucket%s: the stream ends at %d, they do not belong together",
			reflecting(h), c.streamEnd), true
	case h.other != "":
		return about(id, DifferenceBucketOtherEvent, SideBucket, "another event in the bucket%s: the stream has %s there", reflecting(h), h.other), true
	default:
		subject, err := c.bucket.subject(id)
		if err != nil {
			break
		}
		if want := c.bucket.rewrite(subject, h.header, h.record); want != nil {
			return about(id, DifferenceBucketEncoding, SideBucket, "another encoding in the bucket: %s, want %s",
				h.record.contentType, want.Header.Get(subjects.CEDataContentType)), true
		}
	}
	return Difference{}, false
}

func reflecting(h *held) string {
	if h.record == nil {
		return ""
	}
	return fmt.Sprintf(", which reflects %s at %d", h.record.kind, h.record.sequence)
}

// weakerForm is the form that two Apps can be compared in: JSON keeps no
// unknown fields.
func weakerForm(a, b string) string {
	if a == subjects.ContentTypeJSON || b == subjects.ContentTypeJSON {
		return subjects.ContentTypeJSON
	}
	return subjects.ContentTypeProtobuf
}

// differingHeaders names the headers of an entry that are not those of its
// event. What JetStream itself reads is not compared.
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
			return true // a marker is a marker, whichever way it came
		}
		return slices.Equal(got[name], want[name])
	})
}

// differingParts says in which parts two Apps of the same version differ.
func differingParts(a, b *appv1.App) string {
	var parts []string
	note := func(part string, same bool) {
		if !same {
			parts = append(parts, part)
		}
	}
	x, y := a.GetStatus(), b.GetStatus()
	if m, n := x.GetCurrentReplicas(), y.GetCurrentReplicas(); m != n {
		parts = append(parts, fmt.Sprintf("replicas (%d, %d)", m, n))
	}
	if m, n := x.GetIngress().GetPublicUrl(), y.GetIngress().GetPublicUrl(); m != n {
		parts = append(parts, fmt.Sprintf("URL (%q, %q)", m, n))
	}
	note("metadata", proto.Equal(a.GetMetadata(), b.GetMetadata()))
	note("spec", proto.Equal(a.GetSpec(), b.GetSpec()))
	if x, y = proto.CloneOf(x), proto.CloneOf(y); x != nil && y != nil {
		x.CurrentReplicas, y.CurrentReplicas, x.Ingress, y.Ingress = 0, 0, nil, nil
		note("status", proto.Equal(x, y))
	} else {
		note("status", x == nil && y == nil)
	}
	if len(parts) == 0 {
		return "fields that are not known here"
	}
	return strings.Join(parts, ", ")
}
