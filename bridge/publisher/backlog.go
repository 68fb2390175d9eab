package publisher

import (
	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// Pending returns what the queue of a session that has ended holds of the apps that have changes, or a
// newer record than records. A nil queue holds nothing.
func (q *Queue) Pending(records map[subjects.AppID]*app.Record) map[subjects.AppID]app.Pending {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	held := map[subjects.AppID]app.Pending{}
	for id, a := range q.apps {
		if len(a.changes) > 0 || a.record.Previous() > records[id].Previous() {
			held[id] = app.Pending{Changes: a.changes, Record: a.record, Unread: a.unread, Reached: q.reached}
		}
	}
	return held
}

// SameStream reports whether the changes of both queues are for one stream. A nil queue has none.
func (q *Queue) SameStream(other *Queue) bool { return q != nil && q.streamID == other.streamID }

// Overflowed reports whether the queue has dropped its changes at the hard limit. A nil queue has not.
func (q *Queue) Overflowed() bool { return q != nil && q.isFull() }
