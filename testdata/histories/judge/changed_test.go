package judge

import (
	"testing"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/lines"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// What a process cannot know of the states of a Restart, it may mark as changed or not.
func TestChangedOfUnknown(t *testing.T) {
	t.Parallel()
	a, b := subjects.AppID{Project: "p", Domain: "d", Name: "a"}, subjects.AppID{Project: "p", Domain: "d", Name: "b"}
	event := func(sequence uint64, id subjects.AppID) *model.Message {
		return &model.Message{Sequence: sequence, Event: &model.Event{ID: id, Kind: subjects.Created}}
	}
	for _, tc := range []struct {
		name          string
		lost, noticed bool // event 2 is, and the stream has the notice
		changed       bool
		newest        uint64 // the highest sequence of a state; the process began behind 4
		problems      int
	}{
		{"no notice is left", true, false, false, 5, 0},
		{"no notice is left, marked all the same", true, false, true, 5, 0},
		{"a notice", true, true, false, 5, 1},
		{"a notice, marked", true, true, true, 5, 0},
		{"nothing lost, marked", false, false, true, 5, 1},
		{"nothing lost, the bucket is behind", false, false, true, 1, 0},
	} {
		m := &model.Model{}
		first := event(1, a)
		all := []*model.Message{first, event(2, a), event(3, b), event(4, b), event(5, b)}
		if tc.noticed {
			all = append(all, &model.Message{Sequence: 6, Lost: subjects.LostRange{From: 2, To: 2}})
		}
		for _, message := range all {
			m.Append(message)
		}
		if tc.lost {
			all[1].LostAt = m.Now()
		}
		j := New(m, Want{})
		j.delivered[2], j.base, j.sure, j.reason = true, 4, true, lines.Removed
		j.shown = map[subjects.AppID]*model.Message{}
		j.changed(lines.Line{Changed: tc.changed}, first)
		j.seen = map[subjects.AppID]*model.Message{a: first, b: m.At(tc.newest)}
		j.behindPosition()
		if got := len(j.Problems()); got != tc.problems {
			t.Errorf("%s: got %v, want %d problems", tc.name, j.Problems(), tc.problems)
		}
	}
}
