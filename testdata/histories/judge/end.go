package judge

import (
	"maps"
	"slices"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// Behind is what the reader has not delivered yet, empty if it is at the end of the stream.
func (j *Judge) Behind() string {
	j.model.Lock()
	defer j.model.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.behind()
}

func (j *Judge) behind() string {
	j.follow()
	switch {
	case j.snapshot != nil:
		return "a snapshot has no mark yet"
	case !j.marked:
		return "the process has printed no mark yet"
	case j.former < len(j.model.Former()):
		return "the stream was replaced, and nothing reported that"
	case j.want.Latest:
		return ""
	}
	for _, m := range j.messages().Between(j.reached, ^uint64(0)) {
		if m.Present() && j.wants(m) {
			return name(m) + " is not delivered"
		}
	}
	return ""
}

// Differs is how the reader's copy differs from what the bucket holds, empty if it does not. held is
// the event of each entry and marker.
func (j *Judge) Differs(held map[subjects.AppID]*model.Message) string {
	j.model.Lock()
	defer j.model.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if why := j.behind(); why != "" {
		return why
	}
	want, got := map[subjects.AppID]uint64{}, maps.Clone(j.apps)
	for id, m := range held {
		if exists(m) && j.want.app(id) && j.want.status(m.Event.Status) {
			want[id] = m.Sequence
		}
	}
	for _, id := range slices.Concat(slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(got))) {
		if j.excused(id, held[id], got[id]) {
			delete(want, id)
			delete(got, id)
		}
	}
	if len(j.want.Kinds) > 0 { // they show which apps there are
		for id := range want {
			want[id] = 0
		}
		for id := range got {
			got[id] = 0
		}
	}
	return difference(got, want)
}

// excused reports whether the reader cannot know of the newest event of an app.
func (j *Judge) excused(id subjects.AppID, m *model.Message, got uint64) bool {
	if m == nil { // the marker has expired
		for _, other := range j.messages() {
			if other.Event != nil && other.Event.ID == id && other.LostAt == 0 && !other.Skipped {
				m = other
			}
		}
	}
	if j.partial {
		had := j.messages().At(got)
		switch {
		case got == 0 && j.shownNothing(id):
			return true
		case !j.want.NoSnapshot:
		case had != nil && had.LostAt != 0, got == 0 && j.hadLost(id), m != nil && m.RemovedAt != 0 && !j.delivered[m.Sequence]:
			return true // no snapshot follows
		case slices.ContainsFunc(j.messages(), func(m *model.Message) bool {
			return m.Event != nil && m.Event.ID == id && m.RemovedAt != 0 && j.isReported(m.Sequence)
		}):
			return true
		}
	}
	if m == nil || m.RemovedAt == 0 || j.delivered[m.Sequence] || !j.want.filtered() {
		return false
	}
	// The server does not show to a part of the stream what was removed from it. The reader compares
	// with the bucket when it begins, and where the beginning of the stream has moved.
	return m.Sequence <= j.base || m.Middle && j.begun < m.RemovedAt
}

// hadLost reports whether the newest event of an app that was delivered is lost.
func (j *Judge) hadLost(id subjects.AppID) bool {
	for _, m := range slices.Backward(j.messages()) {
		if m.Event != nil && m.Event.ID == id && j.delivered[m.Sequence] {
			return m.LostAt != 0
		}
	}
	return false
}

// shownNothing reports whether a copy that began without a snapshot has no event of an app to show.
func (j *Judge) shownNothing(id subjects.AppID) bool {
	return !slices.ContainsFunc(j.messages().Between(j.start, ^uint64(0)), func(m *model.Message) bool {
		return m.Event != nil && m.Event.ID == id && j.want.event(m.Event) && (m.Present() || j.delivered[m.Sequence])
	})
}

// End notes that the reader did not get to the end, or not to the right one.
func (j *Judge) End(behind, differs, unreported string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case behind != "":
		j.problem(Stuck, "%s", behind)
	case differs != "":
		j.problem(Stale, "%s", differs)
	case unreported != "":
		j.problem(Missed, "%s", unreported)
	case j.debt != "":
		j.problem(Snapshot, "%s; it was owed, and no restart followed", j.debt)
	}
}

// Problems are all that were found.
func (j *Judge) Problems() []Problem {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.problems)
}

// Counts are what was received.
func (j *Judge) Counts() Counts {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.counts
}

// Resumes are the times from when a reader was started, or could reach its server again, to the
// arrival of its first event; from when that was stored, if it was later.
func (j *Judge) Resumes() []time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.resumes)
}

// Slow are the resumes that took more than a second, for people.
func (j *Judge) Slow() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.slow)
}
