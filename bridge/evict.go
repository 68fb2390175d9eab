package bridge

import "github.com/appbridge/appbridge/subjects"

// recentlyDeleted is how many deleted apps a queue keeps. An app that is created again soon costs
// no read then.
const recentlyDeleted = 1000

// retire notes an app that does not exist and has nothing waiting: it may be evicted. mu must be held.
func (q *queue) retire(id subjects.AppID, a *appQueue) {
	if a.idle() {
		q.gone = append(q.gone, id)
	}
}

// idle reports whether nothing of an app is on its way, and its last event is a delete.
func (a *appQueue) idle() bool { return len(a.changes) == 0 && !a.underWay && !a.record.exists() }

// evict forgets deleted apps, but for the newest ones, whose last event the bucket reflects: it is
// written up to sequence written. The caller knows that every message up to there is this
// session's own, or is no event.
func (q *queue) evict(written uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.full || len(q.gone) <= recentlyDeleted {
		return
	}
	over := len(q.gone) - recentlyDeleted
	left := make([]subjects.AppID, 0, recentlyDeleted)
	for i, id := range q.gone {
		a := q.apps[id]
		switch {
		case a == nil || !a.idle(): // if it is deleted again it comes again
		case i < over && a.record.fence() <= written:
			delete(q.apps, id)
			q.complete = false
		default:
			left = append(left, id)
		}
	}
	q.gone = left
}

// isUnread reports whether what was published of an app has to be read before its next event.
func (q *queue) isUnread(id subjects.AppID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.apps[id]
	return a != nil && a.unread
}

// learn takes what was read of an app that is under way, and returns its record. A foreign message
// that was found meanwhile counts for the fence. ours is false for an event of another bridge: none of
// this one's own is behind what is accounted for.
func (q *queue) learn(id subjects.AppID, r *record) (known *record, ours bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	ours = r.previous() <= q.reached
	a := q.apps[id]
	if foreign := a.record.fence(); a.unread && foreign > r.fence() {
		r = r.behind(foreign)
	}
	a.record, a.unread = r, false
	return r, ours
}

// waitingFor lists the apps with changes whose record is not among records. With all it lists every
// app that a queue knows and records lack.
func (q *queue) waitingFor(records map[subjects.AppID]*record, all bool) []subjects.AppID {
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
