package audit

import (
	"fmt"
	"maps"
	"time"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// comparison has what is compared besides the content of the sides. Its method compare is pure.
type comparison struct {
	app     kservice.Config
	watched func(namespace string) bool
	bucket  *store.Bucket // makes the entries that are wanted
	now     time.Time
	// refused returns why a state cannot be published after prev, nil if it can.
	refused   func(id subjects.AppID, s app.State, prev *app.Record) error
	streamEnd uint64 // last sequence of the stream
	// streamFirst is its first one; keepsNewest: only an operator removes messages behind it.
	streamFirst uint64
	keepsNewest bool
	// believed is what a running bridge published last of each app; nil if no bridge compares.
	believed map[subjects.AppID]*app.Record
	noStream bool // there is no stream: the bucket has all that was published
	noBucket bool
	pending  map[subjects.AppID]bool // apps whose Revision is not known
}

// lastPublished is what was published last of each app.
func lastPublished(events map[subjects.AppID]*store.LastEvent, entries map[subjects.AppID]*store.Entry) map[subjects.AppID]*app.Record {
	published := map[subjects.AppID]*app.Record{}
	for id, h := range entries {
		if h.Record != nil {
			published[id] = h.Record // retention may have taken its event
		}
	}
	for id, e := range events {
		if e.Record != nil {
			published[id] = e.Record
		}
	}
	return published
}

// compare returns the differences between cluster, stream and bucket, and changes none of them.
func (c comparison) compare(current map[subjects.AppID]app.State, events map[subjects.AppID]*store.LastEvent, entries map[subjects.AppID]*store.Entry) ([]Difference, []Note) {
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
	owed := app.Reconcile(app.Input{Records: published, Current: current, App: c.app, Watched: c.watched})
	changes, unwatched := owed.Changes, owed.Unwatched
	reported := maps.Clone(judged)
	for _, o := range changes {
		if reported[o.App] {
			continue // the create that follows a delete
		}
		reported[o.App] = true
		now, there := current[o.App]
		if there {
			if err := c.refused(o.App, now, published[o.App]); err != nil {
				notes = append(notes, noteOn(o.App, NoteSkipped, "version %s is skipped: %v", now.Service.ResourceVersion, err))
				continue
			}
		}
		differences = append(differences, c.fill(c.owedDifference(o.App, now, there, published[o.App]), current, events, entries))
	}
	for _, id := range unwatched {
		notes = append(notes, noteOn(id, NoteUnwatched, "left alone: its namespace %s is not watched", published[id].Namespace))
	}
	if !c.noBucket {
		ids := map[subjects.AppID]*store.Entry{}
		maps.Copy(ids, entries)
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

// judgeBelief compares what a running bridge published last of an app with the stream. It also
// finds an entry of an app that was never published.
func (c comparison) judgeBelief(id subjects.AppID, r *app.Record, current map[subjects.AppID]app.State, e *store.LastEvent, h *store.Entry) (Difference, bool) {
	_, there := current[id]
	noEvent := e == nil || e.Record == nil
	switch {
	case r == nil && noEvent && !there && h != nil && h.Record.Exists():
		return about(id, DifferenceGhostEntry, SideBucket, "an entry of an app that was never published, in the bucket%s", h.Reflecting()), true
	case !c.keepsNewest || !c.watched(r.KnownNamespace()):
	case noEvent && r.Exists() && r.Stands() >= c.streamFirst:
		return about(id, DifferenceRemovedEvent, SideStream, "the app's last event was removed from the stream, %s at %d, and it has no other", r.Kind, r.Stands()), true
	case !noEvent && r != nil && e.Record.Sequence < r.Stands():
		return about(id, DifferenceRemovedEvent, SideStream, "the app's last event was removed from the stream, %s at %d; its last one there is %s at %d",
			r.Kind, r.Stands(), e.Record.Kind, e.Record.Sequence), true
	}
	return Difference{}, false
}

// fill adds what the sides have of an app.
func (c comparison) fill(d Difference, current map[subjects.AppID]app.State, events map[subjects.AppID]*store.LastEvent, entries map[subjects.AppID]*store.Entry) Difference {
	if c.pending[d.id] {
		d.tolerated = watch.StandInTime + time.Second // for the event to arrive
	}
	now, there := current[d.id]
	if there {
		d.ClusterVersion = now.Service.ResourceVersion
	}
	if e := events[d.id]; e != nil {
		d.StreamSequence = e.Record.Previous()
	}
	d.BucketSequence = entries[d.id].Sequence()
	if d.Side == SideBucket {
		if there {
			d.Detail += fmt.Sprintf(", the cluster has version %s", d.ClusterVersion)
		} else {
			d.Detail += ", the cluster does not have it"
		}
	}
	return d
}

// owedDifference is the difference of an app of which a bridge would have to publish an event.
func (c comparison) owedDifference(id subjects.AppID, now app.State, there bool, was *app.Record) Difference {
	switch {
	case there && was == nil:
		return about(id, DifferenceMissingEvent, SideStream, "missing in the stream: the cluster has version %s, no event was published", now.Service.ResourceVersion)
	case there && !was.Exists():
		return about(id, DifferenceMissingEvent, SideStream, "missing in the stream: the cluster has version %s, %s", now.Service.ResourceVersion, lastWords(was))
	case !there:
		return about(id, DifferenceMissingDelete, SideStream, "gone from the cluster without a deleted event: %s", lastWords(was))
	case was.UID != string(now.Service.UID):
		return about(id, DifferenceUID, SideStream, "another object: the cluster has version %s of uid %s, %s of uid %s",
			now.Service.ResourceVersion, now.Service.UID, lastWords(was), was.UID)
	case was.ResourceVersion != now.Service.ResourceVersion:
		return about(id, DifferenceVersion, SideStream, "another version: the cluster has version %s, %s", now.Service.ResourceVersion, lastWords(was))
	default:
		parts := "the App"
		if current, err := now.App(c.app); err == nil {
			parts = app.Differences(was.App, current)
		}
		return about(id, DifferenceApp, SideStream, "another App: the cluster has version %s, %s; they differ in %s", now.Service.ResourceVersion, lastWords(was), parts)
	}
}

// lastWords describes what was published last of an app.
func lastWords(r *app.Record) string {
	return fmt.Sprintf("the last event is %s at %d with version %s", r.Kind, r.Sequence, r.ResourceVersion)
}

// judgeEntry compares an app's bucket entry with its last event.
func (c comparison) judgeEntry(id subjects.AppID, e *store.LastEvent, h *store.Entry) (Difference, bool) {
	if e == nil || e.Record == nil {
		return c.judgeAlone(id, h)
	}
	m := c.bucket.Mismatch(id, e, h, c.now)
	if m == nil {
		return Difference{}, false
	}
	return about(id, DifferenceKind(m.Kind), SideBucket, "%s", m.Detail), true
}

// judgeAlone checks an entry whose app has no event in the stream.
func (c comparison) judgeAlone(id subjects.AppID, h *store.Entry) (Difference, bool) {
	switch {
	case h == nil:
	case h.Record == nil:
		return about(id, DifferenceDamagedEntry, SideBucket, "damaged in the bucket: %v; the stream has no event of it", h.Err), true
	case c.noStream:
	case h.Record.Sequence > c.streamEnd:
		return about(id, DifferenceBucketAhead, SideBucket, "ahead in the bucket%s: the stream ends at %d, they do not belong together",
			h.Reflecting(), c.streamEnd), true
	case h.Other != "":
		return about(id, DifferenceBucketOtherEvent, SideBucket, "another event in the bucket%s: the stream has %s there", h.Reflecting(), h.Other), true
	default:
		subject, err := c.bucket.Subject(id)
		if err != nil {
			break
		}
		if want := c.bucket.Rewrite(subject, h.Header, h.Record); want != nil {
			return about(id, DifferenceBucketEncoding, SideBucket, "another encoding in the bucket: %s, want %s",
				h.Record.ContentType, want.Header.Get(subjects.CEDataContentType)), true
		}
	}
	return Difference{}, false
}
