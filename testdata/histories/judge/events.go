package judge

import (
	"fmt"
	"slices"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/lines"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// event takes an event.
func (j *Judge) event(l lines.Line, arrived time.Time) {
	j.counts.Events++
	j.counts.Skipped += l.Skipped
	id := l.AppID()
	m := j.messages().At(l.Sequence)
	switch {
	case j.snapshot != nil:
		j.problem(Order, "event %d before the mark of a snapshot", l.Sequence)
	case m == nil || m.Event == nil:
		j.problem(Content, "an event at sequence %d, where the stream has none", l.Sequence)
		return
	case j.want.Latest && l.Sequence == j.latest[id], !j.want.Latest && j.delivered[l.Sequence]:
		j.problem(Twice, "%s", name(m))
		return
	case !j.want.Latest && l.Sequence <= j.newest:
		j.problem(Order, "%s after %d", name(m), j.newest)
	case j.want.Latest && l.Sequence < j.latest[id]:
		j.problem(Order, "%s after %d of the same app", name(m), j.latest[id])
	case l.Position == "":
		j.problem(Content, "%s has no position", name(m))
	}
	j.compare(l, m, false)
	j.begin(l.Sequence - 1)
	j.found(l.Sequence - 1)
	if j.want.Latest {
		j.stands(l, m)
	} else {
		j.passed(l.Sequence)
		j.follows(m)
	}
	j.delivered[l.Sequence] = true
	j.newest, j.latest[id], j.shown[id] = max(j.newest, l.Sequence), l.Sequence, m
	j.reached, j.open = max(j.reached, l.Sequence), false
	j.renewed = j.renewed && j.snapshot != nil
	j.apps[id] = l.Sequence
	if l.Kind == subjects.Deleted || !j.want.status(l.Status) {
		delete(j.apps, id)
	}
	if !j.waiting.IsZero() {
		since := j.waiting
		if m.Appended.After(since) {
			since = m.Appended
		}
		took := max(0, arrived.Sub(since))
		j.resumes, j.waiting = append(j.resumes, took), time.Time{}
		if took > slow {
			j.slow = append(j.slow, fmt.Sprintf("%s took %s, after %s", name(m), took.Round(time.Millisecond), j.cause))
		}
	}
}

// found takes the first line of a reader that begins at a time, behind a sequence.
func (j *Judge) found(behind uint64) {
	if j.open {
		j.base = behind
	}
}

// passed checks that what is behind the last accounted sequence, and before another, was delivered.
func (j *Judge) passed(before uint64) {
	if j.want.Latest {
		return
	}
	for _, m := range j.messages().Between(j.reached, before) {
		if why := j.owes(m); why != "" {
			j.problem(Missed, "%s: %s", name(m), why)
		}
	}
	if before > 0 {
		j.reached = max(j.reached, before-1)
	}
}

// wants reports whether the reader has to deliver a message that the stream has.
func (j *Judge) wants(m *model.Message) bool {
	if j.delivered[m.Sequence] {
		return false
	}
	if m.Event == nil {
		return m.Notice()
	}
	return j.want.event(m.Event)
}

// owes is why the reader should have delivered a message, empty if it need not have.
func (j *Judge) owes(m *model.Message) string {
	switch {
	case !j.wants(m), m.LostAt != 0:
		return ""
	case m.RemovedAt == 0 && !j.restored(m):
		return "the stream has it"
	case j.want.blind(), m.Event == nil, j.open:
		return "" // the server does not show to a part of the stream what was removed from it
	case m.RemovedAt == 0:
		return "it was removed for a while, and nothing reported that"
	default:
		return "it was removed, and nothing reported that"
	}
}

// restored reports whether a message was gone while the process ran, and came back with a rollback. The
// process may have passed its place before that.
func (j *Judge) restored(m *model.Message) bool { return m.RestoredAt > j.begun }

// follows checks that a reader that does not see from the sequences what was removed sees it from the
// event: it names the one before it of its app.
func (j *Judge) follows(m *model.Message) {
	before := j.messages().At(m.Event.PreviousSequence)
	if !j.want.blind() || !j.sure || before == nil || before.Event == nil || before.Event.ID != m.Event.ID ||
		before.Sequence <= max(j.anchor, j.base) || !j.wants(before) || before.LostAt != 0 || j.isReported(before.Sequence) {
		return
	}
	j.problem(Missed, "%s: %s is behind it, and nothing reported that", name(before), name(m))
}

func (j *Judge) isReported(sequence uint64) bool {
	return slices.ContainsFunc(j.reported, func(r subjects.LostRange) bool { return r.Contains(sequence) })
}

// loss takes the report of a loss.
func (j *Judge) loss(l lines.Line) {
	j.counts.Losses++
	lost := subjects.LostRange{From: l.From, To: l.To}
	switch l.Reason {
	case lines.Notice:
		j.notice(lost)
	case lines.RolledBack, lines.OtherStream:
		if !j.want.NoSnapshot || !j.renewed && (l.Reason == lines.OtherStream || len(j.model.Losses(j.begun)) == 0) {
			j.problem(False, "a loss (%s) of %s behind %d", l.Reason, lost, j.reached)
		}
		j.open = true // what is left follows
	default:
		j.removed(lost)
	}
	j.owing = true
}

func (j *Judge) notice(lost subjects.LostRange) {
	for _, m := range j.messages() {
		if m.Lost != lost || j.delivered[m.Sequence] && !j.want.Latest || j.notices[m.Sequence] {
			continue
		}
		j.begin(m.Sequence - 1)
		j.found(m.Sequence - 1)
		j.passed(m.Sequence)
		j.delivered[m.Sequence], j.notices[m.Sequence] = true, true
		j.reached, j.open = max(j.reached, m.Sequence), false
		return
	}
	// A bucket under repair may show a state that the next event of the app does not follow.
	if lost.To > j.vague {
		j.problem(False, "a notice of %s, which the stream does not have, or not again", lost)
	}
}

func (j *Judge) removed(lost subjects.LostRange) {
	if lost.From == 0 || lost.To < lost.From || lost.To > j.messages().Last() {
		j.problem(False, "a loss of %s, and the stream has had 1-%d", lost, j.messages().Last())
		return
	}
	gone := false
	for _, m := range j.messages().Between(lost.From-1, lost.To+1) {
		gone = gone || (!m.Present() || j.restored(m)) && (!j.delivered[m.Sequence] || j.want.Latest)
		if m.Present() && !j.restored(m) && j.wants(m) && m.Sequence > j.vague && !j.want.Latest {
			j.problem(Missed, "%s: reported as removed, and the stream has it", name(m))
		}
	}
	// What a bucket under repair did not show looks as if it were gone.
	if !gone && lost.To > j.vague {
		j.problem(False, "a loss of %s, and nothing there is gone that was not delivered", lost)
	}
	j.begin(lost.From - 1)
	j.found(lost.From - 1)
	j.passed(lost.From)
	j.reported = append(j.reported, lost)
	j.reached, j.open = max(j.reached, lost.To), false
}

func name(m *model.Message) string {
	if m.Event == nil && !m.Notice() {
		return fmt.Sprintf("message %d", m.Sequence)
	}
	if m.Event == nil {
		return fmt.Sprintf("notice %d of %s", m.Sequence, m.Lost)
	}
	return fmt.Sprintf("event %d (%s of %s)", m.Sequence, m.Event.Kind, m.Event.ID)
}
