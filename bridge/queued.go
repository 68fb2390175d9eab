package bridge

import "github.com/appbridge/appbridge/subjects"

// queuedApp is what the queue holds of one app.
type queuedApp struct {
	record  *record // of the app's last event; nil: there is none, or it is not kept
	pending bool    // changes of the app are not published yet
}

// queued returns what the queue holds of apps.
func (q *queue) queued(ids []subjects.AppID) map[subjects.AppID]queuedApp {
	q.mu.Lock()
	defer q.mu.Unlock()
	apps := make(map[subjects.AppID]queuedApp, len(ids))
	for _, id := range ids {
		app := queuedApp{pending: q.full}
		if a := q.apps[id]; a != nil {
			app.record, app.pending = a.record, q.full || a.underWay || len(a.changes) > 0
		}
		apps[id] = app
	}
	return apps
}

// published returns the apps of which the queue has a record.
func (q *queue) published() []subjects.AppID {
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
