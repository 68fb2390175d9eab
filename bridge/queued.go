package bridge

import "github.com/appbridge/appbridge/subjects"

// known returns the apps of which the queue has a record.
func (q *queue) known() []subjects.AppID {
	q.mu.Lock()
	defer q.mu.Unlock()
	ids := make([]subjects.AppID, 0, len(q.apps))
	for id, a := range q.apps {
		if a.record != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// lookUp returns what was published last of an app, nil if that is not known, and whether a change of
// it may be pending.
func (q *queue) lookUp(id subjects.AppID) (r *record, pending bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.apps[id]
	if a == nil {
		return nil, q.full
	}
	return a.record, q.full || a.underWay || len(a.changes) > 0
}
