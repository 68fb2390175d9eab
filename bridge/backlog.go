package bridge

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/subjects"
)

// remains returns, for every app of which that can be told, the changes that a
// queue whose session has ended still holds. A nil queue holds none. lost are the ranges that the
// stream lost.
func (q *queue) remains(published func(subjects.AppID) *record, current map[subjects.AppID]state, lost []subjects.LostRange) map[subjects.AppID][]*change {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	remains := map[subjects.AppID][]*change{}
	for id := range q.apps {
		var now *state
		if s, ok := current[id]; ok {
			now = &s
		}
		if changes, ok := q.remaining(id, published(id), now, lost); ok {
			remains[id] = changes
		}
	}
	return remains
}

// advance moves records whose app's newest event was removed from the stream before it was
// projected to where that event stood, as the queue of an ended session knows. So the id of the
// app's next event differs from that of the removed one, while what is owed is what the bucket
// lacks. It returns the records of the removed events, which pending changes follow. What the stream
// lost does not count, nor does an app that records lack: its last event is read before its next.
func (q *queue) advance(records map[subjects.AppID]*record, lost []subjects.LostRange) map[subjects.AppID]*record {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	removed := map[subjects.AppID]*record{}
	for id, a := range q.apps {
		r, read := records[id]
		known := a.record.previous()
		if read && !r.isDamaged() && r.previous() < known && !contains(lost, known) {
			records[id], removed[id] = r.movedTo(known), a.record
		}
	}
	return removed
}

// overflowed tells whether what waited was dropped at the hard limit.
func (q *queue) overflowed() bool {
	if q == nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.full
}

// remaining returns what a queue whose session has ended still holds of an app,
// as it follows r, what the stream has of the app by now: the changes after
// the one that r shows. ok is false when r is none of the app's states that
// this queue knows; then only a comparison tells what is owed.
//
// now is the app's present state, nil if it is gone; the changes have to end
// there. mu must be held.
func (q *queue) remaining(id subjects.AppID, r *record, now *state, lost []subjects.LostRange) (changes []*change, ok bool) {
	a := q.apps[id]
	if q.full || a == nil || len(a.changes) == 0 || r.isDamaged() {
		return nil, false
	}
	changes = a.changes
	switch at := a.landed(r); {
	case at >= 0:
		changes = changes[at+1:]
	case a.unread && (r.exists() || r.previous() > q.reached):
		return nil, false // another bridge published what is not known
	case r == nil:
		// Stream and bucket have forgotten the app: what is left starts a new history.
		for len(changes) > 0 && changes[0].remove {
			changes = changes[1:]
		}
	case !a.unread && r.previous() != a.record.previous() && !contains(lost, a.record.previous()):
		return nil, false // else they follow the last surviving event
	}
	changes = rebased(changes, r)
	return changes, follows(changes, r, now)
}

// rebased are changes as they follow r, where that may be of another object than the one whose end
// they begin with: events of an app in between were lost or removed. The object that r shows is
// deleted first. The end of an object that no event shows is dropped.
func rebased(changes []*change, r *record) []*change {
	var uid types.UID
	if r.exists() {
		uid = types.UID(r.uid)
	}
	var gone []*change
	for len(changes) > 0 && changes[0].remove && changes[0].uid != "" && changes[0].uid != uid {
		changes = changes[1:]
		if uid != "" {
			gone, uid = []*change{missedDelete()}, ""
		}
	}
	if len(changes) > 0 && !changes[0].remove && uid != "" && changes[0].state.service.UID != uid {
		gone = []*change{missedDelete()}
	}
	return append(gone, changes...)
}

// begins reports whether the queue holds a state of an app that it had published.
func (q *queue) begins(id subjects.AppID) bool {
	if q == nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.apps[id]
	return a != nil && slices.ContainsFunc(a.changes, func(c *change) bool { return !c.remove })
}

// landed is the index of the waiting change that r shows, -1 if none does or
// more than one could be it. It may have been appended by a try whose answer was lost, or
// by another bridge.
func (a *appQueue) landed(r *record) int {
	if r == nil || (a.record != nil && r.sequence <= a.record.sequence) {
		return -1
	}
	uid, version := "", "" // of the state before the change
	if a.record.exists() {
		uid, version = a.record.uid, a.record.resourceVersion
	}
	at := -1
	for i, c := range a.changes {
		var shown bool
		if c.remove {
			shown = r.kind == subjects.Deleted && r.uid == uid && r.resourceVersion == version && r.deletedVersion == c.deletedVersion
			uid, version = "", ""
		} else {
			shown = r.exists() && c.state.shownBy(r)
			uid, version = string(c.state.service.UID), c.state.service.ResourceVersion
		}
		if shown && at >= 0 {
			return -1
		}
		if shown {
			at = i
		}
	}
	return at
}

// follows tells whether changes are a history that can come after r and ends
// with now.
func follows(changes []*change, r *record, now *state) bool {
	if len(changes) == 0 {
		return false // the comparison tells
	}
	uid := ""
	if r.exists() {
		uid = r.uid
	}
	for _, c := range changes {
		switch {
		case c.remove && uid == "":
			return false
		case c.remove:
			uid = ""
		case uid != "" && uid != string(c.state.service.UID):
			return false
		default:
			uid = string(c.state.service.UID)
		}
	}
	last := changes[len(changes)-1]
	if last.remove {
		return now == nil
	}
	return now != nil && last.state == *now
}
