package bridge

import (
	"context"
	"iter"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/plan"
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
	w := &plan.World{Watched: plan.Watching(s.kube.Namespaces)}
	for f := range factsOf(records, current, nil) {
		if step := plan.Next(w, f); len(step.Publish) > 0 || step.Unwatched {
			ids[f.App] = struct{}{}
			if !step.Unwatched {
				delete(published, f.App)
			}
		}
	}
	for _, id := range before.WaitingFor(records, false) {
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
		verdict := plan.Correct(plan.Reading{Had: had, Known: known, Last: last, Wrongly: c.Wrongly, From: s.publishFrom})
		if verdict != plan.KeepRecord {
			records[id] = last
		}
		switch verdict {
		case plan.MissingKey:
			missing = append(missing, id)
		case plan.WrongKey:
			wrong = append(wrong, id)
		case plan.NeverAnEvent:
			never = append(never, id)
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

// factsOf returns what is known of the apps that were published, that the cluster has, or that have pending
// changes, ordered by app.
func factsOf(records map[subjects.AppID]*app.Record, current map[subjects.AppID]app.State, pending map[subjects.AppID]plan.Pending) iter.Seq[plan.Facts] {
	ids := slices.AppendSeq(slices.AppendSeq(slices.Collect(maps.Keys(records)), maps.Keys(current)), maps.Keys(pending))
	slices.SortFunc(ids, plan.Compare)
	return func(yield func(plan.Facts) bool) {
		for _, id := range slices.Compact(ids) {
			f := plan.Facts{App: id, Pending: pending[id]}
			f.Record, f.Known = records[id]
			if now, there := current[id]; there {
				f.Cluster = &now
			}
			if !yield(f) {
				return
			}
		}
	}
}

// connect puts what is owed at the start of a session into q and lets every later change of the
// source follow. plan.Next finds it; before is the queue of the session before, nil if there
// was none. owe is called for each change and returns what to call once it is published. reset ends
// the session if an object's version steps back. published are states that are known to be what
// their records show.
func connect(s *watch.Source, q, before *publisher.Queue, records map[subjects.AppID]*app.Record, published map[subjects.AppID]app.State, lost []subjects.LostRange, watched func(string) bool,
	owe func() func(), reset context.CancelCauseFunc,
) (differences, carried int, unwatched []subjects.AppID) {
	s.Connect(func(v watch.View) watch.Sink {
		current := v.States()
		w := &plan.World{
			Watched: watched, SameStream: before.SameStream(q),
			Lost: func(sequence uint64) bool { return store.InRanges(lost, sequence) },
		}
		for f := range factsOf(records, current, before.Pending(records)) {
			f.Confirmed, f.Awaits = published[f.App], v.Awaits(f.App)
			step := plan.Next(w, f)
			if f.Known {
				q.Load(f.App, step.After.Sharing(current[f.App]))
			}
			if step.StandIn != nil {
				v.StandIn(f.App, step.StandIn)
			}
			if step.Unwatched {
				unwatched = append(unwatched, f.App)
			}
			for _, c := range step.Publish {
				c.Resynced = owe()
			}
			if step.Pending {
				q.Carry(f.App, step.Publish)
				carried += len(step.Publish)
				continue
			}
			for _, c := range step.Publish {
				c.Size = 0 // the source keeps its object in any case
				q.Add(f.App, c)
			}
			differences += len(step.Publish)
		}
		return q.Add
	}, reset)
	return differences, carried, unwatched
}
