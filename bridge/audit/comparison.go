package audit

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// comparison compares what the sides have of each app. Its method compare is pure.
type comparison struct {
	t   *Target
	s   *sides
	now time.Time
	// refused returns why a state cannot be published after prev, nil if it can.
	refused func(id subjects.AppID, s app.State, prev *app.Record) error
}

func (s *sides) published() map[subjects.AppID]*app.Record {
	published := map[subjects.AppID]*app.Record{}
	for id, h := range s.entries {
		if h.Record != nil {
			published[id] = h.Record // retention may have taken its event
		}
	}
	for id, e := range s.events {
		if e.Record != nil {
			published[id] = e.Record
		}
	}
	return published
}

func union(sides ...iter.Seq[subjects.AppID]) map[subjects.AppID]struct{} {
	ids := map[subjects.AppID]struct{}{}
	for _, side := range sides {
		for id := range side {
			ids[id] = struct{}{}
		}
	}
	return ids
}

// compare returns the differences between cluster, stream and bucket, and changes none of them.
func (c comparison) compare() (differences []Difference, notes []Note) {
	s, published := c.s, c.s.published()
	judged := map[subjects.AppID]bool{}
	for id, r := range s.believed {
		if d, differs := c.judgeBelief(id, r); differs {
			differences = append(differences, c.fill(d))
			judged[id] = true
		}
	}
	owed := app.Reconcile(app.Input{Records: published, Current: s.current, Watched: c.t.Watched})
	reported := maps.Clone(judged)
	for _, o := range owed.Changes {
		if reported[o.App] {
			continue // the create that follows a delete
		}
		reported[o.App] = true
		if now, there := s.current[o.App]; there {
			if err := c.refused(o.App, now, published[o.App]); err != nil {
				notes = append(notes, noteOn(o.App, NoteSkipped, "version %s is skipped: %v", now.Service.ResourceVersion, err))
				continue
			}
		}
		differences = append(differences, c.fill(c.owedDifference(o.App, published[o.App])))
	}
	if c.s.believed == nil { // the entries have what a bridge would believe
		for id, h := range c.s.entries {
			if d, differs := c.judgeRemoved(id, h); differs && !reported[id] {
				differences = append(differences, c.fill(d))
				judged[id] = true
			}
		}
	}
	for _, id := range owed.Unwatched {
		notes = append(notes, noteOn(id, NoteUnwatched, "left alone: its namespace %s is not watched", published[id].Namespace))
	}
	if s.storage.Bucket == nil {
		return differences, notes
	}
	for id := range union(maps.Keys(s.events), maps.Keys(s.entries)) {
		if judged[id] {
			continue
		}
		if d, differs := c.judgeEntry(id); differs {
			differences = append(differences, c.fill(d))
		}
	}
	return differences, notes
}

// judgeBelief compares what a running bridge published last of an app with the stream. It also
// finds an entry of an app that was never published.
func (c comparison) judgeBelief(id subjects.AppID, r *app.Record) (Difference, bool) {
	_, there := c.s.current[id]
	last, h := c.s.events[id].Published(), c.s.entries[id]
	if r == nil && last == nil && !there && h != nil && h.Record.Exists() {
		return about(id, DifferenceGhostEntry, SideBucket, "an entry of an app that was never published, in the bucket%s", h.Reflecting()), true
	}
	if !c.keepsNewest() || r == nil || !c.t.Watched(r.Namespace) {
		return Difference{}, false
	}
	if last != nil && last.Sequence < r.Stands() {
		return about(id, DifferenceRemovedEvent, SideStream, "%s; its last one there is %s at %d", removed(r), last.Kind, last.Sequence), true
	}
	return c.judgeOnly(id, r, last)
}

// keepsNewest reports whether only an operator removes messages of the stream behind its first one.
func (c comparison) keepsNewest() bool {
	stream := c.s.storage.Stream
	return stream != nil && stream.Config.Retention == jetstream.LimitsPolicy
}

func removed(r *app.Record) string {
	return fmt.Sprintf("the app's last event was removed from the stream, %s at %d", r.Kind, r.Stands())
}

// judgeOnly finds an app that exists, and of which the stream has no event although it keeps them.
func (c comparison) judgeOnly(id subjects.AppID, r, last *app.Record) (Difference, bool) {
	if last == nil && r.Exists() && r.Stands() >= c.s.storage.Stream.State.FirstSeq {
		return about(id, DifferenceRemovedEvent, SideStream, "%s, and it has no other", removed(r)), true
	}
	return Difference{}, false
}

// judgeRemoved compares an entry with a stream that does not have its event any more. Where the stream has
// another event of the app, or of another one at that sequence, the entry is what differs.
func (c comparison) judgeRemoved(id subjects.AppID, h *store.Entry) (Difference, bool) {
	if !c.keepsNewest() || h.Record == nil || h.Other != "" || h.Record.Sequence > c.s.end() || !c.t.Watched(h.Record.Namespace) {
		return Difference{}, false
	}
	return c.judgeOnly(id, h.Record, c.s.events[id].Published())
}

func (c comparison) fill(d Difference) Difference {
	if c.s.pending[d.id] {
		d.tolerated = watch.StandInTime + time.Second // for the event to arrive
	}
	cluster := ", the cluster does not have it"
	if now, there := c.s.current[d.id]; there {
		d.ClusterVersion = now.Service.ResourceVersion
		cluster = ", the cluster has version " + d.ClusterVersion
	}
	d.StreamSequence = c.s.events[d.id].Sequence()
	d.BucketSequence = c.s.entries[d.id].Sequence()
	if d.Side == SideBucket {
		d.Detail += cluster
	}
	return d
}

// owedDifference is the difference of an app of which a bridge would have to publish an event.
func (c comparison) owedDifference(id subjects.AppID, was *app.Record) Difference {
	last := "no event was published"
	if was != nil {
		last = fmt.Sprintf("the last event is %s at %d with version %s", was.Kind, was.Sequence, was.ResourceVersion)
	}
	now, there := c.s.current[id]
	if !there {
		return about(id, DifferenceMissingDelete, SideStream, "gone from the cluster without a deleted event: %s", last)
	}
	version, uid := now.Service.ResourceVersion, string(now.Service.UID)
	switch {
	case !was.Exists():
		return about(id, DifferenceMissingEvent, SideStream, "missing in the stream: the cluster has version %s, %s", version, last)
	case was.UID != uid:
		return about(id, DifferenceUID, SideStream, "another object: the cluster has version %s of uid %s, %s of uid %s", version, uid, last, was.UID)
	case was.ResourceVersion != version:
		return about(id, DifferenceVersion, SideStream, "another version: the cluster has version %s, %s", version, last)
	}
	parts := "the App"
	if current, err := now.App(); err == nil {
		parts = app.Differences(was.App, current)
	}
	return about(id, DifferenceApp, SideStream, "another App: the cluster has version %s, %s; they differ in %s", version, last, parts)
}

func (c comparison) judgeEntry(id subjects.AppID) (Difference, bool) {
	e, h := c.s.events[id], c.s.entries[id]
	if e.Published() == nil {
		return c.judgeAlone(id, h)
	}
	m := c.t.Entries.Mismatch(id, e, h, c.now)
	if m == nil {
		return Difference{}, false
	}
	return about(id, m.Kind, SideBucket, "%s", m.Detail), true
}

// judgeAlone checks an entry whose app has no event in the stream.
func (c comparison) judgeAlone(id subjects.AppID, h *store.Entry) (Difference, bool) {
	switch {
	case h == nil:
	case h.Record == nil:
		return about(id, store.MismatchDamaged, SideBucket, "damaged in the bucket: %v; the stream has no event of it", h.Err), true
	case c.s.storage.Stream == nil: // the bucket has all that was published
	case h.Record.Sequence > c.s.end():
		return about(id, store.MismatchAhead, SideBucket, "ahead in the bucket%s: the stream ends at %d, they do not belong together",
			h.Reflecting(), c.s.end()), true
	case h.Other != "":
		return about(id, DifferenceBucketOtherEvent, SideBucket, "another event in the bucket%s: the stream has %s there", h.Reflecting(), h.Other), true
	default:
		subject, err := c.t.Entries.Subject(id)
		if err != nil {
			break
		}
		if want := c.t.Entries.Rewrite(subject, h.Header, h.Record); want != nil {
			return about(id, store.MismatchEncoding, SideBucket, "another encoding in the bucket: %s, want %s",
				h.Record.ContentType, want.Header.Get(subjects.CEDataContentType)), true
		}
	}
	return Difference{}, false
}

func (t *Target) judge(s *sides) ([]Difference, []Note) {
	if len(s.blocked) > 0 {
		return s.blocked, nil
	}
	differences, notes := comparison{t: t, s: s, now: time.Now(), refused: t.refused(s)}.compare()
	if s.storage.Stream == nil {
		differences = append(differences, whole(DifferenceStreamMissing, SideStream, "there is no stream %s", t.Stream))
	}
	if s.storage.Bucket == nil {
		differences = append(differences, whole(DifferenceBucketMissing, SideBucket, "there is no bucket %s", t.Bucket))
	}
	if s.believed == nil {
		differences = append(differences, t.judgeWhole(s)...)
	}
	for subject, sequence := range s.keys {
		d := whole(DifferenceForeignKey, SideBucket, "a key that is no app's in the bucket, at sequence %d of its stream", sequence)
		key, _ := subjects.ParseBucketSubject(t.Bucket, subject)
		d.Key, d.at = cmp.Or(key, subject), subject
		differences = append(differences, d)
	}
	sortDifferences(differences)
	return differences, notes
}

// judgeWhole compares the cluster's name and history. A running bridge checks both by itself.
func (t *Target) judgeWhole(s *sides) (differences []Difference) {
	for side, info := range map[Side]*jetstream.StreamInfo{SideStream: s.storage.Stream, SideBucket: s.storage.Bucket} {
		if info == nil {
			continue
		}
		if name := s.storage.OtherName(info.Config); name != "" {
			differences = append(differences, whole(DifferenceClusterName, side,
				"it names the cluster %q, --cluster-name is %q: a bridge with this name would change ce-source", name, t.ClusterName))
		}
	}
	// An app at a version that cannot be differs by itself.
	if _, err := app.CheckHistory(s.published(), app.Deletions{}, s.version, s.storage.Accepted()); err != nil {
		d := whole(DifferenceHistory, SideCluster, "%v", err)
		d.Same = "the history" // Detail has the highest version of all
		differences = append(differences, d)
	}
	return differences
}

// refused returns a function that reports why the publisher could not publish a state.
func (t *Target) refused(s *sides) func(subjects.AppID, app.State, *app.Record) error {
	var limit int64
	if s.storage.Stream != nil {
		limit = int64(s.storage.Stream.Config.MaxMsgSize)
	}
	e := t.Encoder(limit)
	return func(id subjects.AppID, now app.State, prev *app.Record) error {
		if prev != nil && prev.Exists() && prev.UID != string(now.Service.UID) {
			prev = &app.Record{Kind: subjects.Deleted, Sequence: prev.Sequence} // a delete comes between
		}
		_, err := e.Encode(id, app.NewUpsert(now, !prev.Exists()), prev)
		return err
	}
}
