package audit

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// published is what was published last of each app, as the stream shows it, or the bucket: retention may
// have taken an event.
func (s *sides) published() map[subjects.AppID]*app.Record {
	published := map[subjects.AppID]*app.Record{}
	for id, h := range s.entries {
		if h.Record != nil {
			published[id] = h.Record
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

// world is what the facts of all apps share.
func (t *Target) world(s *sides) *plan.World {
	w := &plan.World{
		Watched: t.Watched, Bucket: s.storage.Bucket != nil, Entries: &t.Entries.Entries, Refused: t.refused(s), Now: time.Now(),
	}
	if info := s.storage.Stream; info != nil {
		w.Stream = &plan.Stream{First: info.State.FirstSeq, Last: info.State.LastSeq, KeepsNewest: info.Config.Retention == jetstream.LimitsPolicy}
	}
	return w
}

// facts returns the facts of every app that one of the sides has.
func (s *sides) facts() iter.Seq[plan.Facts] {
	published := s.published()
	return func(yield func(plan.Facts) bool) {
		for id := range union(maps.Keys(s.current), maps.Keys(s.events), maps.Keys(s.entries), maps.Keys(s.bridge)) {
			f := plan.Facts{App: id, Record: published[id], Known: true, Event: s.events[id], Entry: s.entries[id]}
			if now, there := s.current[id]; there {
				f.Cluster = &now
			}
			if s.bridge != nil {
				b := s.bridge[id]
				f.Bridge = &b
			}
			if !yield(f) {
				return
			}
		}
	}
}

// explain returns the differences between cluster, stream and bucket, and changes none of them.
func (s *sides) explain(w *plan.World) (differences []Difference, notes []Note) {
	for f := range s.facts() {
		x := plan.Explain(w, f)
		if x.Refused != nil {
			notes = append(notes, noteOn(f.App, NoteSkipped, "version %s is skipped: %v", f.Cluster.Service.ResourceVersion, x.Refused))
		}
		if x.Unwatched {
			notes = append(notes, noteOn(f.App, NoteUnwatched, "left alone: its namespace %s is not watched", f.Record.Namespace))
		}
		for _, found := range x.Findings {
			differences = append(differences, s.fill(about(f.App, found.Kind, found.Side, "%s", found.Detail)))
		}
	}
	return differences, notes
}

func (s *sides) fill(d Difference) Difference {
	if s.pending[d.id] {
		d.tolerated = watch.StandInTime + time.Second // for the event to arrive
	}
	cluster := ", the cluster does not have it"
	if now, there := s.current[d.id]; there {
		d.ClusterVersion = now.Service.ResourceVersion
		cluster = ", the cluster has version " + d.ClusterVersion
	}
	d.StreamSequence = s.events[d.id].Sequence()
	d.BucketSequence = s.entries[d.id].Sequence()
	if d.Side == plan.SideBucket {
		d.Detail += cluster
	}
	return d
}

func (t *Target) judge(s *sides) ([]Difference, []Note) {
	if len(s.blocked) > 0 {
		return s.blocked, nil
	}
	differences, notes := s.explain(t.world(s))
	slices.SortFunc(notes, compareNotes)
	if s.storage.Stream == nil {
		differences = append(differences, whole(DifferenceStreamMissing, plan.SideStream, "there is no stream %s", t.Stream))
	}
	if s.storage.Bucket == nil {
		differences = append(differences, whole(DifferenceBucketMissing, plan.SideBucket, "there is no bucket %s", t.Bucket))
	}
	if s.bridge == nil {
		differences = append(differences, t.judgeWhole(s)...)
	}
	for subject, sequence := range s.keys {
		d := whole(DifferenceForeignKey, plan.SideBucket, "a key that is no app's in the bucket, at sequence %d of its stream", sequence)
		key, _ := subjects.ParseBucketSubject(t.Bucket, subject)
		d.Key, d.at = cmp.Or(key, subject), subject
		differences = append(differences, d)
	}
	sortDifferences(differences)
	return differences, notes
}

// judgeWhole compares the cluster's name and history. A running bridge checks both by itself.
func (t *Target) judgeWhole(s *sides) (differences []Difference) {
	for side, info := range map[plan.Side]*jetstream.StreamInfo{plan.SideStream: s.storage.Stream, plan.SideBucket: s.storage.Bucket} {
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
		d := whole(DifferenceHistory, plan.SideCluster, "%v", err)
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
		if plan.Follows(prev, app.NewUpsert(now, false), false) == plan.FitGap {
			prev = &app.Record{Kind: subjects.Deleted, Sequence: prev.Sequence} // a delete comes between
		}
		_, err := e.Encode(id, app.NewUpsert(now, !prev.Exists()), prev)
		return err
	}
}
