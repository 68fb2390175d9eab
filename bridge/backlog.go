package bridge

import (
	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// pending returns what the queue of a session that has ended holds of the apps that have changes, or a
// newer record than records. A nil queue holds nothing.
func (q *queue) pending(records map[subjects.AppID]*app.Record) map[subjects.AppID]app.Pending {
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

// isOf reports whether the queue's changes are for the stream with this identity. A nil queue has none.
func (q *queue) isOf(streamID string) bool { return q != nil && q.streamID == streamID }

// overflowed reports whether the queue has dropped its changes at the hard limit. A nil queue has not.
func (q *queue) overflowed() bool { return q != nil && q.isFull() }
