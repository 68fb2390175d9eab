package publisher

import (
	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// recentlyDeleted is how many deleted apps a queue keeps: an app that is created again soon costs
// no read.
const recentlyDeleted = 1000

// retire notes that an app may be evicted if it is idle. mu must be held.
func (q *Queue) retire(id subjects.AppID, a *appQueue) {
	if a.idle() {
		q.gone = append(q.gone, id)
	}
}

// idle reports whether an app does not exist and has no pending change.
func (a *appQueue) idle() bool { return len(a.changes) == 0 && !a.underWay && !a.record.Exists() }

// Evict forgets deleted apps whose last event the bucket reflects, but for the last recentlyDeleted
// ones. The bucket is written up to sequence written. The caller knows that every message up to
// there is of this session, or is no event.
func (q *Queue) Evict(written uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isFull() || len(q.gone) <= recentlyDeleted {
		return
	}
	over := len(q.gone) - recentlyDeleted
	left := make([]subjects.AppID, 0, recentlyDeleted)
	for i, id := range q.gone {
		a := q.apps[id]
		switch {
		case a == nil || !a.idle(): // retire adds it again when it is deleted again
		case i < over && a.record.Fence() <= written:
			delete(q.apps, id)
			q.complete = false
		default:
			left = append(left, id)
		}
	}
	q.gone = left
}

// noteRead sets the last event of an unread app that is under way, and returns its record. A
// foreign message that was found meanwhile counts for the fence. ours is false for an event of
// another bridge: it is behind what is accounted for. The pending changes do not follow it, so that
// the app stays unread: the next session compares.
func (q *Queue) noteRead(id subjects.AppID, r *app.Record) (known *app.Record, ours bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.Previous() > q.reached {
		return r, false
	}
	a := q.apps[id]
	if foreign := a.record.Fence(); a.unread && foreign > r.Fence() {
		r = r.Behind(foreign)
	}
	a.record, a.unread = r, false
	return r, true
}

// WaitingFor lists the apps with pending changes that have no record in records. With all it lists
// every app of the queue that has none. A nil queue has no apps.
func (q *Queue) WaitingFor(records map[subjects.AppID]*app.Record, all bool) []subjects.AppID {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var ids []subjects.AppID
	for id, a := range q.apps {
		if _, known := records[id]; !known && (all || len(a.changes) > 0) {
			ids = append(ids, id)
		}
	}
	return ids
}
