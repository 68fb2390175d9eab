package judge

import (
	"maps"
	"slices"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/lines"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// restart takes the beginning of a snapshot that is read again. It needs a cause since the last one.
func (j *Judge) restart(l lines.Line) {
	j.counts.Restarts++
	switch {
	case j.want.NoSnapshot:
		j.problem(False, "a restart (%s), and the reader reads no snapshots", l.Reason)
	case !j.caused(l.Reason):
		j.problem(False, "a restart (%s) behind %d, and nothing happened since the snapshot at %d", l.Reason, j.reached, j.anchor)
	}
	j.skips = j.unresumable()
	j.debt, j.gaps = "", nil
	j.read(l.Reason)
}

// caused reports whether there is a cause for a restart: a loss that was reported, or what is gone, or
// a bucket that was not exact, since the newest snapshot was read.
func (j *Judge) caused(reason string) bool {
	lost := len(j.model.Losses(j.anchored+1)) > 0
	inexact := j.lacks || !j.model.ExactSince(j.anchored)
	switch reason {
	case lines.OtherStream:
		return j.renewed
	case lines.RolledBack:
		return lost
	case lines.Notice:
		return j.owing || inexact
	case lines.Removed:
		return j.owing || j.unread()
	default:
		return j.owing || j.unread() || inexact
	}
}

// unread reports whether messages are gone that the reader did not get.
func (j *Judge) unread() bool {
	return slices.ContainsFunc(j.messages().Between(j.anchor, ^uint64(0)), func(m *model.Message) bool {
		return !m.Present() && (m.Sequence > j.reached || j.wants(m))
	})
}

// unresumable reports whether the stream begins behind the message that the reader needs next, or was
// put back while the process ran.
func (j *Judge) unresumable() bool {
	if j.renewed || len(j.model.Losses(j.begun+1)) > 0 {
		return true
	}
	all := j.messages()
	return j.reached < all.Last() && !slices.ContainsFunc(all.Between(0, j.reached+2), (*model.Message).Present)
}

// skipped takes the end of a snapshot that was read again. It stands for the events up to its mark
// only if the position could not be resumed.
func (j *Judge) skipped(sequence uint64) {
	if j.want.Latest || j.skips || j.unresumable() {
		j.reached = max(j.reached, sequence)
		return
	}
	for _, m := range j.messages().Between(j.reached, sequence+1) {
		if m.Present() && j.wants(m) {
			j.problem(Missed, "a restart (%s) at %d skipped %s, and the stream can be read from %d on", j.reason, sequence, name(m), j.reached+1)
		}
	}
	j.reached = max(j.reached, sequence)
}

// turn finds out whether the consumer has got to the stream that replaced the one it read.
func (j *Judge) turn(l lines.Line) {
	j.follow()
	former := j.model.Former()
	if j.former == len(former) {
		return
	}
	m := former[j.former].Messages.At(l.Sequence)
	same := m != nil && m.Event != nil && m.Event.MessageID == l.ID
	switch {
	case (l.Type == lines.Restart || l.Type == lines.Loss) && (l.Reason == lines.OtherStream || l.Reason == lines.RolledBack):
		j.renew()
		j.renewed = true
	case l.Type == lines.State && !same && l.Kind != subjects.Deleted && j.snapshot != nil && j.reason == "":
		j.renew() // the first snapshot, of the bucket of the next stream
	case l.Type == lines.Event && !same:
		j.problem(Missed, "event %d (%s) of a stream that replaced the one of the position, and nothing reported that", l.Sequence, l.ID)
		j.renew()
	}
}

// follow goes on with a stream that was put back to behind what the consumer has.
func (j *Judge) follow() {
	for former := j.model.Former(); j.former < len(former); j.former++ {
		if f := former[j.former]; f.Other || max(j.reached, j.newest) > f.Base || j.snapshot != nil {
			return
		}
	}
}

// renew goes on with the present stream.
func (j *Judge) renew() {
	for former := j.model.Former(); j.former < len(former); j.former++ {
		base := former[j.former].Base
		maps.DeleteFunc(j.delivered, func(sequence uint64, _ bool) bool { return sequence > base })
		maps.DeleteFunc(j.latest, func(_ subjects.AppID, sequence uint64) bool { return sequence > base })
		j.reached, j.newest, j.vague = min(j.reached, base), min(j.newest, base), min(j.vague, base)
		j.anchor, j.base, j.target, j.start = min(j.anchor, base), min(j.base, base), min(j.target, base), min(j.start, base)
		j.reported, j.gaps, j.debt = nil, nil, ""
		if j.want.NoSnapshot {
			clear(j.apps)
		}
	}
}
