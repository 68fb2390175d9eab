package bridge

import (
	"context"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/publisher"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// connect puts what is owed at the start of a session into q and lets every later change of the source
// follow. app.Reconcile finds it; before is the queue of the session before, nil if there was
// none. owe is called for each change and returns what to call once it is published. reset ends the
// session if an object's version steps back. published are states that are known to be what their
// records show.
func connect(s *watch.Source, q, before *publisher.Queue, records map[subjects.AppID]*app.Record, published map[subjects.AppID]app.State, lost []subjects.LostRange, convert kservice.Config, watched func(string) bool,
	owe func() func(), reset context.CancelCauseFunc,
) (differences, carried int, unwatched []subjects.AppID) {
	s.Connect(func(v watch.View) watch.Sink {
		in := app.Input{
			Records: records, Current: v.States(), Confirmed: published, Awaits: v.Awaits,
			Pending: before.Pending(records), SameStream: before.SameStream(q),
			Lost: func(sequence uint64) bool { return store.InRanges(lost, sequence) },
			App:  convert, Watched: watched,
		}
		result := app.Reconcile(in)
		for id := range records {
			q.Load(id, result.Record(in, id))
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
