package judge

import (
	"fmt"
	"slices"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/lines"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// read begins a snapshot.
func (j *Judge) read(reason string) {
	j.snapshot, j.seen = map[subjects.AppID]uint64{}, map[subjects.AppID]*model.Message{}
	j.reason, j.began, j.early = reason, j.model.Now(), nil
	if reason == "" {
		j.began, j.renewed, j.skips = j.begun, false, false
	}
}

// state takes one app of a snapshot.
func (j *Judge) state(l lines.Line) {
	j.counts.States++
	id := l.AppID()
	_, twice := j.seen[id]
	switch {
	case j.snapshot == nil:
		j.problem(Snapshot, "a state of %s outside of a snapshot", id)
		return
	case !j.want.app(id):
		j.problem(Content, "a state of %s was not asked for", id)
	case twice:
		j.problem(Snapshot, "%s is twice in one snapshot", id)
	}
	j.seen[id] = nil
	if l.Kind == subjects.Deleted {
		j.gone(l)
		return
	}
	m := j.messages().At(l.Sequence)
	if m == nil || m.Event == nil {
		j.problem(Content, "the state of %s is of sequence %d, which is no event", id, l.Sequence)
		return
	}
	j.seen[id] = m
	j.compare(l, m, true)
	j.changed(l, m)
	if j.want.status(l.Status) {
		j.snapshot[id] = l.Sequence
	} else if !l.Changed || !slices.Contains(j.want.Statuses, l.PreviousStatus) {
		j.problem(Content, "the state of %s, which is %q and was %q, was not asked for", id, l.Status, l.PreviousStatus)
	}
}

// gone takes an app of a snapshot that exists no more.
func (j *Judge) gone(l lines.Line) {
	id := l.AppID()
	was, known := j.shown[id]
	switch {
	case j.reason == "":
		j.problem(Snapshot, "%s is gone, in the first snapshot", id)
	case !l.Changed:
		j.problem(Content, "%s is gone, and is not marked as changed", id)
	case j.want.copies() && (known && !exists(was) || !known && j.all):
		j.problem(Content, "%s is gone, and was not there before", id)
	}
	if l.Sequence == 0 {
		return
	}
	if m := j.messages().At(l.Sequence); m == nil || m.Event == nil || m.Event.Kind != subjects.Deleted {
		j.problem(Content, "%s is gone as of sequence %d, which is no delete", id, l.Sequence)
	} else {
		j.compare(l, m, true)
	}
}

// changed compares the mark of a state that differs from what was printed before.
func (j *Judge) changed(l lines.Line, m *model.Message) {
	was, known := j.shown[m.Event.ID]
	want := false
	switch {
	case j.reason == "": // nothing was printed before
	case !j.want.copies():
		return // what was printed is not all that the reader knows
	case known:
		want = was != m
	case j.all:
		want = true
	case m.LostAt != 0 || !j.sure:
		return
	case m.Sequence > j.base:
		want = true
	default:
		// An earlier process may have printed an event that is lost. This one cannot know of which app.
		lost := slices.DeleteFunc(slices.Clone(j.messages().Between(m.Sequence, j.base+1)), func(lost *model.Message) bool { return lost.LostAt == 0 })
		want = slices.ContainsFunc(lost, func(lost *model.Message) bool {
			return lost.Event != nil && lost.Event.ID == m.Event.ID && j.delivered[lost.Sequence]
		})
		if !want && len(lost) > 0 || want && !l.Changed && j.unnamed(lost) {
			return
		}
		if l.Changed && !want {
			j.early = append(j.early, m)
			return
		}
	}
	if l.Changed != want {
		j.problem(Content, "the state of %s, as of %d: changed is %t, want %t", m.Event.ID, m.Sequence, l.Changed, want)
	}
}

// unnamed reports whether the stream has no notice of lost messages any more. One that was made again
// does not name them elsewhere.
func (j *Judge) unnamed(lost model.Messages) bool {
	return !slices.ContainsFunc(j.messages(), func(m *model.Message) bool {
		return m.Notice() && m.Present() && slices.ContainsFunc(lost, func(l *model.Message) bool { return m.Lost.Contains(l.Sequence) })
	})
}

// behindPosition checks states that were marked as changed without a difference. That is right if the bucket
// had not got to the position of the process: any of them may have been printed as of a later event.
func (j *Judge) behindPosition() {
	for _, m := range j.seen {
		if m == nil || m.Sequence < j.base {
			continue
		}
		for _, early := range j.early {
			j.problem(Content, "the state of %s, as of %d: changed is true, want false", early.Event.ID, early.Sequence)
		}
		return
	}
}

// exists reports whether an app exists after its last message.
func exists(m *model.Message) bool { return m != nil && m.Event.Kind != subjects.Deleted }

// mark takes the end of a snapshot, or of what a reader was behind.
func (j *Judge) mark(l lines.Line) {
	j.counts.Marks++
	if j.snapshot == nil {
		j.caughtUp(l)
		return
	}
	j.lacks = false
	j.exact(l)
	j.leftOut()
	j.behindPosition()
	if j.reason == "" {
		j.reached = max(j.reached, l.Sequence)
	} else {
		j.skipped(l.Sequence)
	}
	if !j.model.ExactSince(j.began) {
		j.vague = max(j.vague, l.Sequence)
	}
	j.apps, j.latest, j.shown, j.all = j.snapshot, map[subjects.AppID]uint64{}, map[subjects.AppID]*model.Message{}, true
	for id, m := range j.seen {
		if m != nil {
			j.latest[id], j.shown[id] = m.Sequence, m
		}
	}
	j.anchor, j.anchored, j.owing, j.partial = l.Sequence, j.began, l.Owed, false
	j.base, j.marked, j.snapshot, j.renewed = l.Sequence, true, nil, false
}

// caughtUp takes a mark without a snapshot. It stands behind what the stream held when the process
// began.
func (j *Judge) caughtUp(l lines.Line) {
	switch {
	case j.marked:
		j.problem(Snapshot, "a mark at %d, and no snapshot", l.Sequence)
	case l.Sequence > j.messages().Last():
		j.problem(Missed, "the mark %d is behind the end of the stream", l.Sequence)
	case j.fresh && !j.want.Since:
		j.begin(l.Sequence)
	case l.Sequence < j.reached && !j.want.Latest && !j.want.Copied && !j.open:
		j.problem(Order, "the mark %d after %d", l.Sequence, j.reached)
	case !j.want.Latest && !j.want.Copied:
		for _, m := range j.messages().Between(j.reached, j.target+1) {
			if m.Present() && j.wants(m) {
				j.problem(Missed, "%s: the stream had it when the process began, and the mark came before it", name(m))
			}
		}
	}
	if j.open {
		j.base = l.Sequence
	}
	j.passed(l.Sequence + 1)
	j.marked, j.open = true, false
}

// begin takes the first line of a process that begins without a snapshot, behind a sequence.
func (j *Judge) begin(behind uint64) {
	if !j.fresh || j.marked || !j.want.NoSnapshot || j.want.Since {
		return
	}
	if behind < j.target && !j.want.Copied && len(j.model.Losses(j.begun)) == 0 {
		j.problem(Order, "the reader begins behind %d, and the stream had %d", behind, j.target)
	}
	j.reached, j.start, j.base = behind, behind, behind
}

// leftOut looks for apps that the process has printed, and that are neither there nor gone.
func (j *Judge) leftOut() {
	if j.reason == "" || !j.want.copies() {
		return
	}
	for id, was := range j.shown {
		if _, has := j.seen[id]; !has && exists(was) {
			j.problem(Snapshot, "%s is gone, and no state reports that", id)
		}
	}
}

// exact compares the snapshot that was read with the states at the mark. A mark that is owed may be of
// a bucket that cannot show them yet. Then a restart has to follow.
func (j *Judge) exact(l lines.Line) {
	if !j.model.ExactSince(j.began) {
		return // each state was compared with its event
	}
	now := j.model.Now()
	difference := ""
	for _, at := range append(j.model.Losses(j.began+1), now+1) {
		if difference = j.differs(j.snapshot, j.model.States(l.Sequence, at-1)); difference == "" {
			return
		}
	}
	difference = fmt.Sprintf("at the mark %d: %s", l.Sequence, difference)
	if l.Owed && (j.want.Copied || j.allGone(l.Sequence)) {
		j.debt = difference
	} else {
		j.problem(Snapshot, "%s", difference)
	}
}

// allGone reports whether the stream has nothing left up to a sequence. A bucket that has not got there
// cannot show what was there.
func (j *Judge) allGone(sequence uint64) bool {
	return !slices.ContainsFunc(j.messages().Between(0, sequence+1), (*model.Message).Present)
}

// differs describes a difference between a copy and the states that it should have.
func (j *Judge) differs(got map[subjects.AppID]uint64, states map[subjects.AppID]*model.Message) string {
	want := map[subjects.AppID]uint64{}
	for id, m := range states {
		if j.want.app(id) && j.want.status(m.Event.Status) {
			want[id] = m.Sequence
		}
	}
	if j.want.filtered() {
		for id, sequence := range want {
			if _, has := got[id]; !has && j.expired(id, sequence) {
				delete(want, id)
				j.lacks = true
			}
		}
	}
	return difference(got, want)
}

// expired reports whether the bucket has removed the delete marker of an app that existed at a
// sequence. One who reads that app alone cannot know up to where the bucket was.
func (j *Judge) expired(id subjects.AppID, sequence uint64) bool {
	return slices.ContainsFunc(j.messages().Between(sequence, ^uint64(0)), func(m *model.Message) bool {
		return m.Event != nil && m.Event.ID == id && m.Expired
	})
}

func difference(got, want map[subjects.AppID]uint64) string {
	for id, sequence := range want {
		switch has, ok := got[id]; {
		case !ok:
			return fmt.Sprintf("%s is missing, want it as of %d", id, sequence)
		case has != sequence:
			return fmt.Sprintf("%s is as of %d, want %d", id, has, sequence)
		}
	}
	for id, sequence := range got {
		if _, ok := want[id]; !ok {
			return fmt.Sprintf("%s is there, as of %d, want it gone", id, sequence)
		}
	}
	return ""
}
