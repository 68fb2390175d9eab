package plan

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

func noneLost(uint64) bool { return false }

// A new session goes on with what the one before had seen, wherever the
// stream is by then, and never with what does not follow.
func TestPendingFollows(t *testing.T) {
	shows := func(kind subjects.EventKind, uid, version string, sequence uint64) *app.Record {
		return &app.Record{Kind: kind, UID: uid, ResourceVersion: version, Sequence: sequence}
	}
	created := shows(subjects.Created, "u1", "1", 7)
	for _, test := range []struct {
		name    string
		record  *app.Record // as the old session knew it
		changes string      // what waits: versions of uid u1, "-" a removal, "+" in front: of another uid
		stored  *app.Record // as the stream has it now
		want    string      // what remains; "" when a comparison decides
	}{
		{"nothing was published since", created, "2 3 4", created, "2 3 4"},
		{"the try under way was stored", created, "2 3 4", shows(subjects.Updated, "u1", "2", 9), "3 4"},
		{"another bridge published further", created, "2 3 4", shows(subjects.Updated, "u1", "3", 11), "4"},
		{"another bridge published all", created, "2 3 4", shows(subjects.Updated, "u1", "4", 12), ""},
		{"another bridge published what is not known", created, "3 4", shows(subjects.Updated, "u1", "2", 9), ""},
		{"a new app", nil, "1 2", nil, "1 2"},
		{"a new app whose create was stored", nil, "1 2", created, "2"},
		{"a delete", created, "2 -", created, "2 -"},
		{"a delete that was stored", created, "2 -", shows(subjects.Deleted, "u1", "2", 9), ""},
		{"a recreate", created, "2 - +5", created, "2 - +5"},
		{"a recreate whose delete was stored", created, "2 - +5", shows(subjects.Deleted, "u1", "2", 9), "+5"},
		{"a recreate that was stored", created, "- +5 +6", shows(subjects.Created, "u2", "5", 9), "+6"},
		{"the delete of another object", created, "2 - +5", shows(subjects.Deleted, "u9", "2", 9), ""},
		{"the stream has forgotten the app", created, "2 3", nil, "2 3"},
		{"the stream has forgotten a deleted app", created, "- +5", nil, "+5"},
		{"the entry is damaged", created, "2 3", &app.Record{Damaged: true}, ""},
		{"an older version came back as the newest event", created, "2 3", shows(subjects.Updated, "u1", "9", 8), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := Pending{Record: test.record}
			var now *app.State
			for step := range strings.FieldsSeq(test.changes) {
				if step == "-" {
					p.Changes = append(p.Changes, app.Removal(*orZero(now), app.Observation{}))
					now = nil
					continue
				}
				uid, version := "u1", step
				if rest, ok := strings.CutPrefix(step, "+"); ok {
					uid, version = "u2", rest
				}
				s := app.State{Service: testService(uid, version, "True")}
				p.Changes = append(p.Changes, app.NewUpsert(s, now == nil))
				now = &s
			}
			changes, ok := p.following(test.stored, now, noneLost)
			var got []string
			for _, c := range changes {
				switch {
				case c.Remove:
					got = append(got, "-")
				case c.State.Service.UID == "u2":
					got = append(got, "+"+c.State.Service.ResourceVersion)
				default:
					got = append(got, c.State.Service.ResourceVersion)
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

func orZero(s *app.State) *app.State {
	if s != nil {
		return s
	}
	return &app.State{Service: testService("u1", "1", "True")}
}

// A label taken off twice: the record says which of the two it was.
func TestPendingKnowsWhichDelete(t *testing.T) {
	one, two := app.State{Service: testService("u1", "1", "True")}, app.State{Service: testService("u1", "5", "True")}
	p := Pending{
		Record:  &app.Record{Kind: subjects.Created, UID: "u1", ResourceVersion: "1", Sequence: 7},
		Changes: []*app.Change{app.Removal(one, app.Observation{DeletedVersion: "3"}), app.NewUpsert(two, true), app.Removal(two, app.Observation{DeletedVersion: "9"})},
	}
	last := &app.Record{Kind: subjects.Deleted, UID: "u1", ResourceVersion: "5", DeletedVersion: "9", Sequence: 12}
	if changes, ok := p.following(last, nil, noneLost); ok {
		t.Errorf("all is published, and %d changes would be again", len(changes))
	}
	first := &app.Record{Kind: subjects.Deleted, UID: "u1", ResourceVersion: "1", DeletedVersion: "3", Sequence: 12}
	if changes, ok := p.following(first, nil, noneLost); !ok || len(changes) != 2 {
		t.Errorf("got %d changes, %t, want the last two", len(changes), ok)
	}
}

// Changes that do not end with the present are no history of it.
func TestPendingEndsWithThePresent(t *testing.T) {
	first, last := app.State{Service: testService("u1", "1", "True")}, app.State{Service: testService("u1", "2", "True")}
	p := Pending{Changes: []*app.Change{app.NewUpsert(first, true), app.NewUpsert(last, false)}}
	now := app.State{Service: testService("u1", "3", "True")}
	if changes, ok := p.following(nil, &now, noneLost); ok {
		t.Errorf("%d changes remain that end with another state", len(changes))
	}
	if changes, ok := p.following(nil, nil, noneLost); ok {
		t.Errorf("%d changes remain of an app that is gone", len(changes))
	}
}

// TestPendingEndsWithTheCount: a newer version of the Revision, or the same one in another list, is
// no change of the app while the count is the same.
func TestPendingEndsWithTheCount(t *testing.T) {
	t.Parallel()
	svc := testService("u1", "2", "True")
	counting := func(version string, count int32) *kservice.Revision {
		return &kservice.Revision{
			ObjectMeta: metav1.ObjectMeta{Name: "r", ResourceVersion: version}, Status: kservice.RevisionStatus{ActualReplicas: &count},
		}
	}
	p := Pending{Changes: []*app.Change{
		app.NewUpsert(app.State{Service: svc, Revision: counting("3", 1)}, true), app.NewUpsert(app.State{Service: svc, Revision: counting("4", 2)}, false),
	}}
	for _, test := range []struct {
		name string
		now  app.State
		want bool
	}{
		{"the same version in another list", app.State{Service: svc, Revision: counting("4", 2)}, true},
		{"the Service in another list", app.State{Service: testService("u1", "2", "True"), Revision: counting("4", 2)}, true},
		{"a newer version with the same count", app.State{Service: svc, Revision: counting("5", 2)}, true},
		{"another count", app.State{Service: svc, Revision: counting("5", 3)}, false},
		{"no Revision", app.State{Service: svc}, false},
		{"another object", app.State{Service: testService("u2", "2", "True"), Revision: counting("4", 2)}, false},
	} {
		if changes, ok := p.following(nil, &test.now, noneLost); ok != test.want || (ok && len(changes) != 2) {
			t.Errorf("%s: got %d changes, %t, want %t", test.name, len(changes), ok, test.want)
		}
	}
}

// What an ended session still held follows the last surviving event, also where that is of another
// object than the one whose end comes first.
func TestPendingAfterLoss(t *testing.T) {
	t.Parallel()
	lost := func(sequence uint64) bool { return sequence >= 5 && sequence <= 9 }
	of := func(uid, version string) app.State { return app.State{Service: testService(uid, version, "True")} }
	remove := func(s app.State) *app.Change { return app.Removal(s, app.Observation{}) }
	survived := func(uid string) *app.Record { return publishedAt(uid, 3) }
	for _, test := range []struct {
		name string
		had  *app.Record // acknowledged, of the object y, and lost
		r    *app.Record
		wait []*app.Change
		want string
	}{
		{"an update of the same object", publishedAt("y", 7), survived("y"), []*app.Change{app.NewUpsert(of("y", "8"), false)}, "y/8"},
		{"the end of the same object", publishedAt("y", 7), survived("y"), []*app.Change{remove(of("y", "8"))}, "gone"},
		{"the end of another object", publishedAt("y", 7), survived("x"), []*app.Change{remove(of("y", "8"))}, "gone?"},
		{
			"the end of another object, and a third one", publishedAt("y", 7), survived("x"),
			[]*app.Change{remove(of("y", "8")), app.NewUpsert(of("z", "9"), true)},
			"gone? z/9",
		},
		{"an update of another object", publishedAt("y", 7), survived("x"), []*app.Change{app.NewUpsert(of("y", "8"), false)}, "gone? y/8"},
		{"nothing survived", publishedAt("y", 7), nil, []*app.Change{remove(of("y", "8")), app.NewUpsert(of("z", "9"), true)}, "z/9"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := Pending{Record: test.had, Changes: test.wait}
			var now *app.State
			if last := test.wait[len(test.wait)-1]; !last.Remove {
				now = &last.State
			}
			changes, ok := p.following(test.r, now, lost)
			if !ok {
				t.Fatal("nothing remains")
			}
			var got []string
			for _, c := range changes {
				switch {
				case c.Remove && c.FinalStateUnknown && c.Synthesized:
					got = append(got, "gone?")
				case c.Remove:
					got = append(got, "gone")
				default:
					got = append(got, string(c.State.Service.UID)+"/"+c.State.Service.ResourceVersion)
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
	gone := func(sequence uint64) *app.Record {
		return &app.Record{Kind: subjects.Deleted, UID: "u1", ResourceVersion: "0", Sequence: sequence}
	}
	of := func(version string) app.State { return app.State{Service: testService("u1", version, "True")} }
	for _, test := range []struct {
		name   string
		stored *app.Record
		want   int // changes of the three that remain
	}{
		{"its delete", gone(7), 3},
		{"nothing is left of it", nil, 3},
		{"a delete that this bridge does not know", gone(11), 0},
		{"the create was stored", &app.Record{Kind: subjects.Created, UID: "u1", ResourceVersion: "1", Sequence: 12}, 2},
		{"another bridge published further", &app.Record{Kind: subjects.Updated, UID: "u1", ResourceVersion: "9", Sequence: 12}, 0},
		{"it existed all the time", &app.Record{Kind: subjects.Updated, UID: "u1", ResourceVersion: "9", Sequence: 4}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			last := of("3")
			p := Pending{Unread: true, Reached: 10, Changes: []*app.Change{app.NewUpsert(of("1"), true), app.NewUpsert(of("2"), false), app.NewUpsert(last, false)}}
			if changes, ok := p.following(test.stored, &last, noneLost); len(changes) != test.want && ok || ok != (test.want > 0) {
				t.Errorf("%d changes remain, %t, want %d", len(changes), ok, test.want)
			}
		})
	}
}
