package bridge

import (
	"context"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/publisher"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

func (s *session) published() store.PublishedReader {
	return store.PublishedReader{Reader: store.NewReader(s.bucket.JS, s.cfg.Stream, s.subjects), Bucket: s.bucket}
}

// readPublished reads from the stream's leader what was published of each app that the session
// would publish a change of, and corrects the records by that: a key that was taken from the
// bucket, or an entry that was written by hand, leads to no event. The projector writes these keys
// again. It returns the states that are published, as the records show.
func (s *session) readPublished(ctx context.Context, records map[subjects.AppID]*app.Record) (map[subjects.AppID]app.State, error) {
	current, before := s.source.States(), s.memory.pending.Load()
	if s.empty {
		// Nothing was published of any app, or nothing is known of it.
		for id := range current {
			if _, known := records[id]; !known {
				records[id] = nil
			}
		}
		for _, id := range before.WaitingFor(records, true) {
			records[id] = nil
		}
		return nil, nil
	}
	published := maps.Clone(current)
	ids := map[subjects.AppID]struct{}{}
	differences := app.Reconcile(app.Input{Records: records, Current: current, Watched: app.Watching(s.kube.Namespaces)})
	for _, o := range differences.Changes {
		ids[o.App] = struct{}{}
		delete(published, o.App)
	}
	for _, id := range slices.Concat(before.WaitingFor(records, false), differences.Unwatched) {
		ids[id] = struct{}{}
	}
	for _, id := range s.memory.doubts.ids() {
		if _, known := records[id]; !known {
			ids[id] = struct{}{}
		}
	}
	read, err := s.published().ReadAll(ctx, ids, records)
	if err != nil {
		return nil, err
	}
	var missing, wrong, never []subjects.AppID
	for id, c := range read {
		last := c.Record
		had, known := records[id]
		switch {
		case !known:
			records[id] = last
			if last.Exists() && last.Sequence <= s.publishFrom {
				missing = append(missing, id)
			}
		case had == nil || had.Damaged || had.EventLost || last.Previous() > s.publishFrom:
			// Another bridge has published.
		case c.Wrongly && last.Previous() == 0:
			records[id] = last
			never = append(never, id)
		case last.Previous() < had.Sequence && !c.Wrongly:
			// Its event was removed since.
		case last.Sequence != had.Sequence || last.Kind == subjects.Deleted || !sameRecord(had, last):
			records[id] = last
			wrong = append(wrong, id)
		}
	}
	if n := len(missing) + len(wrong) + len(never); n > 0 {
		s.log.Warn("the bucket differs from the last events; it is compared with the stream",
			zap.Int("missing", len(missing)), zap.Int("different", len(wrong)), zap.Int("neverPublished", len(never)))
	}
	s.projector.Distrust(true, missing...)
	s.projector.Distrust(false, wrong...)
	s.projector.Disown(never...)
	return published, nil
}

// sameRecord reports whether an entry shows what its event does. An entry may lack what did not
// fit.
func sameRecord(entry, event *app.Record) bool {
	return entry.UID == event.UID && entry.ResourceVersion == event.ResourceVersion && entry.Namespace == event.Namespace && entry.Truncated == event.Truncated &&
		app.SameApp(entry.App, event.App, app.WeakerEncoding(entry.ContentType, event.ContentType))
}

// connect puts what is owed at the start of a session into q and lets every later change of the
// source follow. app.Reconcile finds it; before is the queue of the session before, nil if there
// was none. owe is called for each change and returns what to call once it is published. reset ends
// the session if an object's version steps back. published are states that are known to be what
// their records show.
func connect(s *watch.Source, q, before *publisher.Queue, records map[subjects.AppID]*app.Record, published map[subjects.AppID]app.State, lost []subjects.LostRange, watched func(string) bool,
	owe func() func(), reset context.CancelCauseFunc,
) (differences, carried int, unwatched []subjects.AppID) {
	s.Connect(func(v watch.View) watch.Sink {
		in := app.Input{
			Records: records, Current: v.States(), Confirmed: published, Awaits: v.Awaits,
			Pending: before.Pending(records), SameStream: before.SameStream(q),
			Lost:    func(sequence uint64) bool { return store.InRanges(lost, sequence) },
			Watched: watched,
		}
		result := app.Reconcile(in)
		for id := range records {
			q.Load(id, result.Record(in, id).Sharing(in.Current[id]))
		}
		for id, rev := range result.StandIn {
			v.StandIn(id, rev)
		}
		for _, o := range result.Changes {
			o.Change.Resynced = owe()
			o.Change.Size = 0 // the source keeps its object in any case
			q.Add(o.App, o.Change)
		}
		for id, changes := range result.Pending {
			for _, c := range changes {
				c.Resynced = owe()
			}
			q.Carry(id, changes)
			carried += len(changes)
		}
		differences, unwatched = len(result.Changes), result.Unwatched
		return q.Add
	}, reset)
	return differences, carried, unwatched
}
