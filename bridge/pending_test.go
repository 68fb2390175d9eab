package bridge

import (
	"strings"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

func noneLost(uint64) bool { return false }

// A new session goes on with what the one before had seen, wherever the
// stream is by then, and never with what does not follow.
func TestPendingFollows(t *testing.T) {
	shows := func(kind subjects.EventKind, uid, version string, sequence uint64) *record {
		return &record{kind: kind, uid: uid, resourceVersion: version, sequence: sequence}
	}
	created := shows(subjects.Created, "u1", "1", 7)
	for _, test := range []struct {
		name    string
		record  *record // as the old session knew it
		changes string  // what waits: versions of uid u1, "-" a removal, "+" in front: of another uid
		stored  *record // as the stream has it now
		want    string  // what remains; "" when only a comparison tells
	}{
		{"nothing was published since", created, "2 3 4", created, "2 3 4"},
		{"the try under way had landed", created, "2 3 4", shows(subjects.Updated, "u1", "2", 9), "3 4"},
		{"another bridge published further", created, "2 3 4", shows(subjects.Updated, "u1", "3", 11), "4"},
		{"another bridge published all", created, "2 3 4", shows(subjects.Updated, "u1", "4", 12), ""},
		{"another bridge published what is not known", created, "3 4", shows(subjects.Updated, "u1", "2", 9), ""},
		{"a new app", nil, "1 2", nil, "1 2"},
		{"a new app whose create had landed", nil, "1 2", created, "2"},
		{"a delete", created, "2 -", created, "2 -"},
		{"a delete that had landed", created, "2 -", shows(subjects.Deleted, "u1", "2", 9), ""},
		{"a recreate", created, "2 - +5", created, "2 - +5"},
		{"a recreate whose delete had landed", created, "2 - +5", shows(subjects.Deleted, "u1", "2", 9), "+5"},
		{"a recreate that had landed", created, "- +5 +6", shows(subjects.Created, "u2", "5", 9), "+6"},
		{"the delete of another object", created, "2 - +5", shows(subjects.Deleted, "u9", "2", 9), ""},
		{"the stream has forgotten the app", created, "2 3", nil, "2 3"},
		{"the stream has forgotten a deleted app", created, "- +5", nil, "+5"},
		{"the entry is damaged", created, "2 3", &record{damaged: true}, ""},
		{"an older version came back as the newest event", created, "2 3", shows(subjects.Updated, "u1", "9", 8), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := pending{record: test.record}
			var now *state
			for step := range strings.FieldsSeq(test.changes) {
				if step == "-" {
					p.changes = append(p.changes, removalOf(*orZero(now), observation{}))
					now = nil
					continue
				}
				uid, version := "u1", step
				if rest, ok := strings.CutPrefix(step, "+"); ok {
					uid, version = "u2", rest
				}
				s := state{service: testService(uid, version, "True")}
				p.changes = append(p.changes, newUpsert(s, now == nil))
				now = &s
			}
			changes, ok := p.following(test.stored, now, noneLost)
			var got []string
			for _, c := range changes {
				switch {
				case c.remove:
					got = append(got, "-")
				case c.state.service.UID == "u2":
					got = append(got, "+"+c.state.service.ResourceVersion)
				default:
					got = append(got, c.state.service.ResourceVersion)
				}
			}
			if !ok {
				got = nil
			}
			if text := strings.Join(got, " "); text != test.want {
				t.Errorf("got %q, want %q", text, test.want)
			}
		})
	}
}

func orZero(s *state) *state {
	if s != nil {
		return s
	}
	return &state{service: testService("u1", "1", "True")}
}

// A label taken off twice: the record says which of the two it was.
func TestPendingKnowsWhichDelete(t *testing.T) {
	one, two := state{service: testService("u1", "1", "True")}, state{service: testService("u1", "5", "True")}
	p := pending{
		record:  &record{kind: subjects.Created, uid: "u1", resourceVersion: "1", sequence: 7},
		changes: []*change{removalOf(one, observation{deletedVersion: "3"}), newUpsert(two, true), removalOf(two, observation{deletedVersion: "9"})},
	}
	last := &record{kind: subjects.Deleted, uid: "u1", resourceVersion: "5", deletedVersion: "9", sequence: 12}
	if changes, ok := p.following(last, nil, noneLost); ok {
		t.Errorf("all is published, and %d changes would be again", len(changes))
	}
	first := &record{kind: subjects.Deleted, uid: "u1", resourceVersion: "1", deletedVersion: "3", sequence: 12}
	if changes, ok := p.following(first, nil, noneLost); !ok || len(changes) != 2 {
		t.Errorf("got %d changes, %t, want the last two", len(changes), ok)
	}
}

// Changes that do not end with the present are no history of it.
func TestPendingEndsWithThePresent(t *testing.T) {
	first, last := state{service: testService("u1", "1", "True")}, state{service: testService("u1", "2", "True")}
	p := pending{changes: []*change{newUpsert(first, true), newUpsert(last, false)}}
	now := state{service: testService("u1", "3", "True")}
	if changes, ok := p.following(nil, &now, noneLost); ok {
		t.Errorf("%d changes remain that end with another state", len(changes))
	}
	if changes, ok := p.following(nil, nil, noneLost); ok {
		t.Errorf("%d changes remain of an app that is gone", len(changes))
	}
}

// What an ended session still held follows the last surviving event, also where that is of another
// object than the one whose end comes first.
func TestPendingAfterLoss(t *testing.T) {
	t.Parallel()
	lost := func(sequence uint64) bool { return sequence >= 5 && sequence <= 9 }
	of := func(uid, version string) state { return state{service: testService(uid, version, "True")} }
	remove := func(s state) *change { return removalOf(s, observation{}) }
	survived := func(uid string) *record { return publishedAt(uid, 3) }
	for _, test := range []struct {
		name string
		had  *record // acknowledged, of the object y, and lost
		r    *record
		wait []*change
		want string
	}{
		{"an update of the same object", publishedAt("y", 7), survived("y"), []*change{newUpsert(of("y", "8"), false)}, "y/8"},
		{"the end of the same object", publishedAt("y", 7), survived("y"), []*change{remove(of("y", "8"))}, "gone"},
		{"the end of another object", publishedAt("y", 7), survived("x"), []*change{remove(of("y", "8"))}, "gone?"},
		{
			"the end of another object, and a third one", publishedAt("y", 7), survived("x"),
			[]*change{remove(of("y", "8")), newUpsert(of("z", "9"), true)},
			"gone? z/9",
		},
		{"an update of another object", publishedAt("y", 7), survived("x"), []*change{newUpsert(of("y", "8"), false)}, "gone? y/8"},
		{"nothing survived", publishedAt("y", 7), nil, []*change{remove(of("y", "8")), newUpsert(of("z", "9"), true)}, "z/9"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := pending{record: test.had, changes: test.wait}
			var now *state
			if last := test.wait[len(test.wait)-1]; !last.remove {
				now = &last.state
			}
			changes, ok := p.following(test.r, now, lost)
			if !ok {
				t.Fatal("nothing remains")
			}
			var got []string
			for _, c := range changes {
				switch {
				case c.remove && c.finalStateUnknown && c.synthesized:
					got = append(got, "gone?")
				case c.remove:
					got = append(got, "gone")
				default:
					got = append(got, string(c.state.service.UID)+"/"+c.state.service.ResourceVersion)
				}
			}
			if text := strings.Join(got, " "); text != test.want {
				t.Errorf("got %s, want %s", text, test.want)
			}
		})
	}
}

// The changes of an app that the ended session had evicted follow its delete, and no event that
// this bridge does not know.
func TestRemainingOfEvicted(t *testing.T) {
	gone := func(sequence uint64) *record {
		return &record{kind: subjects.Deleted, uid: "u1", resourceVersion: "0", sequence: sequence}
	}
	of := func(version string) state { return state{service: testService("u1", version, "True")} }
	for _, test := range []struct {
		name   string
		stored *record
		want   int // changes of the three that remain
	}{
		{"its delete", gone(7), 3},
		{"nothing is left of it", nil, 3},
		{"a delete that this bridge does not know", gone(11), 0},
		{"the create had landed", &record{kind: subjects.Created, uid: "u1", resourceVersion: "1", sequence: 12}, 2},
		{"another bridge published further", &record{kind: subjects.Updated, uid: "u1", resourceVersion: "9", sequence: 12}, 0},
		{"it existed all the time", &record{kind: subjects.Updated, uid: "u1", resourceVersion: "9", sequence: 4}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			last := of("3")
			p := pending{unread: true, reached: 10, changes: []*change{newUpsert(of("1"), true), newUpsert(of("2"), false), newUpsert(last, false)}}
			if changes, ok := p.following(test.stored, &last, noneLost); len(changes) != test.want && ok || ok != (test.want > 0) {
				t.Errorf("%d changes remain, %t, want %d", len(changes), ok, test.want)
			}
		})
	}
}
