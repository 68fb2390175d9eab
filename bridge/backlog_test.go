package bridge

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// A new session goes on with what the one before had seen, wherever the
// stream is by then, and never with what does not follow.
func TestRemaining(t *testing.T) {
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
			q := newQueue(100, 1<<20, testMetrics())
			q.load(testID, test.record)
			var now *state
			for step := range strings.FieldsSeq(test.changes) {
				if step == "-" {
					q.add(testID, removalOf(*orZero(now), observation{}))
					now = nil
					continue
				}
				uid, version := "u1", step
				if rest, ok := strings.CutPrefix(step, "+"); ok {
					uid, version = "u2", rest
				}
				s := state{service: testService(uid, version, "True")}
				q.add(testID, newUpsert(s, now == nil))
				now = &s
			}
			q.close()
			changes, ok := q.remaining(testID, test.stored, now, nil)
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
func TestRemainingKnowsWhichDelete(t *testing.T) {
	q := newQueue(100, 1<<20, testMetrics())
	q.load(testID, &record{kind: subjects.Created, uid: "u1", resourceVersion: "1", sequence: 7})
	one, two := state{service: testService("u1", "1", "True")}, state{service: testService("u1", "5", "True")}
	q.add(testID, removalOf(one, observation{deletedVersion: "3"}))
	q.add(testID, newUpsert(two, true))
	q.add(testID, removalOf(two, observation{deletedVersion: "9"}))
	q.close()
	last := &record{kind: subjects.Deleted, uid: "u1", resourceVersion: "5", deletedVersion: "9", sequence: 12}
	if changes, ok := q.remaining(testID, last, nil, nil); ok {
		t.Errorf("all is published, and %d changes would be again", len(changes))
	}
	first := &record{kind: subjects.Deleted, uid: "u1", resourceVersion: "1", deletedVersion: "3", sequence: 12}
	if changes, ok := q.remaining(testID, first, nil, nil); !ok || len(changes) != 2 {
		t.Errorf("got %d changes, %t, want the last two", len(changes), ok)
	}
}

// What is carried over is owed, change by change, and does not merge on the way: in
// the new queue the bytes of other apps may be there first.
func TestCarriedChangesAreOwed(t *testing.T) {
	m := testMetrics()
	s := newSource(zap.NewNop(), m.reject)
	before := newQueue(100, 1<<20, m)
	s.connect(func(view) sink { return before.add }, nil)
	h := s.serviceHandler()
	for version := 1; version <= 4; version++ {
		h.OnAdd(testService("u1", fmt.Sprint(version), "True"), false)
	}
	for i := range 20 {
		svc := testService(fmt.Sprint("x", i), fmt.Sprint(100+i), "True")
		svc.Name = fmt.Sprint("app", i)
		svc.Annotations[kservice.AnnotationAppID] = fmt.Sprint("p/d/a", i)
		h.OnAdd(svc, false)
	}
	before.close()
	q := newQueue(100, before.bytes/3, m) // as many bytes as make updates merge
	defer q.close()
	owed := 0
	_, carried, _ := connect(s, q, before, nil, nil, nil, kservice.Config{}, func(string) bool { return true },
		func() func() { owed++; return func() { owed-- } }, func(error) {})
	if carried != 24 || owed != 24 || q.length != 24 {
		t.Errorf("carried %d, owed %d, queued %d, want 24 of each", carried, owed, q.length)
	}
	for q.length > 0 {
		id, c, _, _ := q.next()
		q.done(id, nil)
		c.resynced()
	}
	if owed != 0 {
		t.Errorf("everything is published, and %d changes are still owed", owed)
	}
}

// Changes that do not end with the present are no history of it.
func TestRemainingEndsWithThePresent(t *testing.T) {
	q := newQueue(100, 1<<20, testMetrics())
	script(q, testID, "cu")
	q.close()
	now := state{service: testService("u1", "3", "True")}
	if changes, ok := q.remaining(testID, nil, &now, nil); ok {
		t.Errorf("%d changes remain that end with another state", len(changes))
	}
	if changes, ok := q.remaining(testID, nil, nil, nil); ok {
		t.Errorf("%d changes remain of an app that is gone", len(changes))
	}
}

// A change goes on being owed as what it was: merged counts and marks stay.
func TestRemainsKeepsWhatWasMerged(t *testing.T) {
	q := newQueue(2, 1<<20, testMetrics())
	script(q, testID, "cuuu")
	q.close()
	last := q.apps[testID].changes[1]
	remains := q.remains(func(subjects.AppID) *record { return nil }, map[subjects.AppID]state{testID: last.state}, nil)
	if got := fmt.Sprint(len(remains[testID]), remains[testID][1].merged); got != "2 2" {
		t.Errorf("got %s changes and merged updates, want 2 2", got)
	}
}

// What an ended session still held follows the last surviving event, also where that is of another
// object than the one whose end comes first.
func TestRemainsAfterLoss(t *testing.T) {
	t.Parallel()
	lost := []subjects.LostRange{{From: 5, To: 9}}
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
			q := newQueue(100, 1<<20, testMetrics())
			q.load(testID, test.had)
			for _, c := range test.wait {
				q.add(testID, c)
			}
			var now *state
			if last := test.wait[len(test.wait)-1]; !last.remove {
				now = &last.state
			}
			changes, ok := q.remaining(testID, test.r, now, lost)
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

// publishedAt is the record of an event at sequence.
func publishedAt(uid string, sequence uint64) *record {
	return &record{kind: subjects.Created, sequence: sequence, uid: uid, resourceVersion: "7", app: &appv1.App{}}
}
