package bridge

import (
	"context"


	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// connect puts what is owed at the start of a session into q and lets every later change of the source
// follow. That is what reconcile finds; before is the queue of the session before, nil if there was
// none. owe is called for each change and returns what to call once it is published. reset ends the
// session if an object's version steps back. published are states that are known to be what their
// records show.
func connect(s *source, q, before *queue, records map[subjects.AppID]*record, published map[subjects.AppID]state, lost []subjects.LostRange, convert kservice.Config, watched func(string) bool,
	owe func() func(), reset context.CancelCauseFunc,
) (differences, carried int, unwatched []subjects.AppID) {
	s.connect(func(v view) sink {
		in := reconcileInput{
			records: records, current: v.states(), confirmed: published, awaits: v.awaits,
			pending: before.pending(records), sameStream: before.isOf(q.streamID),
			lost: func(sequence uint64) bool { return contains(lost, sequence) },
			app:  convert, watched: watched,
		}
		result := reconcile(in)
		for id := range records {
			q.load(id, result.record(in, id))
		}
		for id, rev := range result.standIn {
			v.standIn(id, rev)
		}
		for _, o := range result.changes {
			o.change.resynced = owe()
			o.change.size = 0 // the source keeps its object in any case
			q.add(o.app, o.change)
		}
		for id, changes := range result.pending {
			for _, c := range changes {
				c.resynced = owe()
			}
			q.carry(id, changes)
			carried += len(changes)
		}
		differences, unwatched = len(result.changes), result.unwatched
		return q.add
	}, reset)
	return differences, carried, unwatched
}
