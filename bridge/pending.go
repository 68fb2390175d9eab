package bridge

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/subjects"
)

// pending is what a session that has ended has not published of one app.
type pending struct {
	changes []*change // oldest first
	record  *record   // what was published before them
	unread  bool      // record is not known: the app's last event was to be read from the stream first
	reached uint64    // the session had accounted for the stream up to this sequence
}

// hasState reports whether one of the changes is not a removal.
func (p pending) hasState() bool {
	return slices.ContainsFunc(p.changes, func(c *change) bool { return !c.remove })
}

// following returns the changes as they follow r, the app's last event in the stream: those after the
// one that r shows. ok is false if r is none of the states of the app that the session knew; then only
// a comparison finds what is owed.
//
// now is the app's present state, nil if it is gone; the changes have to end there. lost reports
// whether the stream has lost a sequence.
func (p pending) following(r *record, now *state, lost func(uint64) bool) (changes []*change, ok bool) {
	if len(p.changes) == 0 || r.isDamaged() {
		return nil, false
	}
	changes = p.changes
	switch at := p.landed(r); {
	case at >= 0:
		changes = changes[at+1:]
	case p.unread && (r.exists() || r.previous() > p.reached):
		return nil, false // another bridge published it
	case r == nil:
		// Stream and bucket have nothing of the app: a new history starts.
		for len(changes) > 0 && changes[0].remove {
			changes = changes[1:]
		}
	case !p.unread && r.previous() != p.record.previous() && !lost(p.record.previous()):
		return nil, false // else they follow the last surviving event
	}
	changes = rebased(changes, r)
	return changes, follows(changes, r, now)
}

// landed is the index of the change that r shows, -1 if that is none or not the only one. It may have
// been appended by a try whose answer was lost, or by another bridge.
func (p pending) landed(r *record) int {
	if r == nil || (p.record != nil && r.sequence <= p.record.sequence) {
		return -1
	}
	uid, version := "", "" // of the state before the change
	if p.record.exists() {
		uid, version = p.record.uid, p.record.resourceVersion
	}
	at := -1
	for i, c := range p.changes {
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

// rebased returns changes as they follow r, which may be of another object than the one whose removal
// they begin with: the events in between were lost or removed. The object that r shows is deleted
// first. The removal of an object that no event shows is dropped.
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

// follows reports whether changes are a history that can come after r and ends with now.
func follows(changes []*change, r *record, now *state) bool {
	if len(changes) == 0 {
		return false // a comparison finds the difference
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
