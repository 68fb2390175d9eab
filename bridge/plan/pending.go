package plan

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// Pending is what a session that has ended has not published of one app.
type Pending struct {
	Changes []*app.Change // oldest first
	Record  *app.Record   // what was published before them
	Unread  bool          // record is not known: the app's last event was to be read from the stream first
	Reached uint64        // the session had accounted for the stream up to this sequence
}

func (p Pending) hasState() bool {
	return slices.ContainsFunc(p.Changes, func(c *app.Change) bool { return !c.Remove })
}

// following returns the changes as they follow r, the app's last event in the stream: those after
// the one that r records. ok is false if r is none of the states of the app that the session knew;
// then only a comparison finds what is owed.
//
// now is the app's present state, nil if it is gone; the changes have to end there. lost reports
// whether the stream has lost a sequence.
func (p Pending) following(r *app.Record, now *app.State, lost func(uint64) bool) (changes []*app.Change, ok bool) {
	if len(p.Changes) == 0 || r.IsDamaged() {
		return nil, false
	}
	changes = p.Changes
	switch at := p.recordedAt(r); {
	case at >= 0:
		changes = changes[at+1:]
	case p.Unread && (r.Exists() || r.Previous() > p.Reached):
		return nil, false // another bridge published it
	case r == nil:
		// Stream and bucket have nothing of the app: a new history starts.
		for len(changes) > 0 && changes[0].Remove {
			changes = changes[1:]
		}
	case !p.Unread && r.Previous() != p.Record.Previous() && !lost(p.Record.Previous()):
		return nil, false // else they follow the last surviving event
	}
	changes = rebased(changes, r)
	return changes, follows(changes, r, now)
}

// recordedAt is the index of the change that r records, -1 if that is none or not the only one. It
// may have been appended by a try whose answer was lost, or by another bridge.
func (p Pending) recordedAt(r *app.Record) int {
	if r == nil || (p.Record != nil && r.Sequence <= p.Record.Sequence) {
		return -1
	}
	uid, version := "", "" // of the state before the change
	if p.Record.Exists() {
		uid, version = p.Record.UID, p.Record.ResourceVersion
	}
	at := -1
	for i, c := range p.Changes {
		var shown bool
		if c.Remove {
			shown = r.Kind == subjects.Deleted && r.UID == uid && r.ResourceVersion == version && r.DeletedVersion == c.DeletedVersion
			uid, version = "", ""
		} else {
			shown = r.Exists() && c.State.RecordedBy(r)
			uid, version = string(c.State.Service.UID), c.State.Service.ResourceVersion
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

// rebased returns changes as they follow r, which may be of another object than the one whose
// removal they begin with: the events in between were lost or removed. The object that r records is
// deleted first. The removal of an object without an event is dropped.
func rebased(changes []*app.Change, r *app.Record) []*app.Change {
	var uid types.UID
	if r.Exists() {
		uid = types.UID(r.UID)
	}
	var gone []*app.Change
	for len(changes) > 0 && changes[0].Remove && changes[0].RemovedUID != "" && changes[0].RemovedUID != uid {
		changes = changes[1:]
		if uid != "" {
			gone, uid = []*app.Change{app.MissedDelete()}, ""
		}
	}
	if len(changes) > 0 && !changes[0].Remove && uid != "" && changes[0].State.Service.UID != uid {
		gone = []*app.Change{app.MissedDelete()}
	}
	return append(gone, changes...)
}

// follows reports whether changes are a history that can come after r and ends with now.
func follows(changes []*app.Change, r *app.Record, now *app.State) bool {
	if len(changes) == 0 {
		return false // a comparison finds the difference
	}
	uid := ""
	if r.Exists() {
		uid = r.UID
	}
	for _, c := range changes {
		switch {
		case c.Remove && uid == "":
			return false
		case c.Remove:
			uid = ""
		case uid != "" && uid != string(c.State.Service.UID):
			return false
		default:
			uid = string(c.State.Service.UID)
		}
	}
	last := changes[len(changes)-1]
	if last.Remove {
		return now == nil
	}
	return now != nil && last.State.Same(*now)
}
