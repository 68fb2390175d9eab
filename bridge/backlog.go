package bridge

import "github.com/appbridge/appbridge/subjects"

// pending returns what the queue of a session that has ended holds of the apps that have changes, or a
// newer record than records. A nil queue holds nothing.
func (q *queue) pending(records map[subjects.AppID]*record) map[subjects.AppID]pending {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	held := map[subjects.AppID]pending{}
	for id, a := range q.apps {
		if len(a.changes) > 0 || a.record.previous() > records[id].previous() {
			held[id] = pending{changes: a.changes, record: a.record, unread: a.unread, reached: q.reached}
		}
	}
	return held
}

// isOf reports whether the queue's changes are for the stream with this identity. A nil queue has none.
func (q *queue) isOf(streamID string) bool { return q != nil && q.streamID == streamID }

// overflowed reports whether the queue has dropped its changes at the hard limit. A nil queue has not.
func (q *queue) overflowed() bool { return q != nil && q.isFull() }
