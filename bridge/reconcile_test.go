package bridge

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

func TestReconcile(t *testing.T) {
	cfg := kservice.Config{BaseDomain: "apps.example.com"}
	one := state{service: testService("u1", "100", "True"), revision: testRevision("99", 2)}
	published := publishedAs(t, one)
	stopped := testService("u1", "101", "True")
	stopped.Labels[kservice.LabelStopped] = "true"
	deleted := &record{kind: subjects.Deleted, sequence: 9, uid: "u1", resourceVersion: "100", namespace: "flyte"}
	with := func(change func(*record)) *record {
		r := *published
		change(&r)
		return &r
	}
	for _, test := range []struct {
		name      string
		record    *record
		now       *state
		cfg       kservice.Config
		want      string
		unwatched int
	}{
		{"nothing", nil, nil, cfg, "", 0},
		{"new", nil, &one, cfg, "upsert first", 0},
		{"the same", published, &one, cfg, "", 0},
		{"another version", with(func(r *record) { r.resourceVersion = "98" }), &one, cfg, "upsert", 0},
		{"an older version, after a reset", with(func(r *record) { r.resourceVersion = "200" }), &one, cfg, "upsert", 0},
		{"another replica count", published, &state{one.service, testRevision("101", 3)}, cfg, "upsert", 0},
		{"another Revision version alone", published, &state{one.service, testRevision("101", 2)}, cfg, "", 0},
		{"stopped", published, &state{stopped, testRevision("99", 2)}, cfg, "upsert", 0},
		{"another base domain", published, &one, kservice.Config{BaseDomain: "example.org"}, "upsert", 0},
		{"gone", published, nil, cfg, "remove unknown", 0},
		{"gone before", deleted, nil, cfg, "", 0},
		{"back after a delete", deleted, &one, cfg, "upsert first", 0},
		{"another object", with(func(r *record) { r.uid = "u0" }), &one, cfg, "remove unknown, upsert first", 0},
		{"a damaged entry", &record{damaged: true}, &one, cfg, "upsert first", 0},
		{"a damaged entry of nothing", &record{damaged: true}, nil, cfg, "", 0},
		{"published without its spec", with(func(r *record) {
			r.app, r.truncated = proto.CloneOf(r.app), "old_app,spec"
			r.app.Spec = nil
		}), &one, cfg, "", 0},
		{"unwatched", with(func(r *record) { r.namespace = "elsewhere" }), nil, cfg, "", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			records, current := map[subjects.AppID]*record{}, map[subjects.AppID]state{}
			if test.record != nil {
				records[testID] = test.record
			}
			if test.now != nil {
				current[testID] = *test.now
			}
			result := reconcile(reconcileInput{records: records, current: current, app: test.cfg, watched: watching([]string{"flyte"})})
			if got := describe(result.changes); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if len(result.unwatched) != test.unwatched {
				t.Errorf("unwatched %v, want %d", result.unwatched, test.unwatched)
			}
		})
	}
}

// describe names the kinds of changes.
func describe(changes []owed) string {
	var kinds []string
	for _, o := range changes {
		kind := "upsert"
		if o.change.remove {
			kind = "remove"
		} else if !o.change.mergeable {
			kind += " first"
		}
		if o.change.finalStateUnknown {
			kind += " unknown"
		}
		if !o.change.synthesized {
			kind += " not synthesized"
		}
		kinds = append(kinds, kind)
	}
	return strings.Join(kinds, ", ")
}

// What the session before has not published is published instead of the difference, where it leads
// from the record to the current state.
func TestReconcilePending(t *testing.T) {
	at := func(version string) state { return state{service: testService("u1", version, "True")} }
	one, two, three := at("1"), at("2"), at("3")
	shown := func(s state, sequence uint64) *record {
		r := *publishedAs(t, s)
		r.sequence = sequence
		return &r
	}
	onlyLost := func(s state, foreign uint64) *record {
		r := shown(s, 5)
		r.eventLost, r.foreign = true, foreign
		return r
	}
	updates := []*change{newUpsert(two, false), newUpsert(three, false)}
	for _, test := range []struct {
		name    string
		record  *record
		now     *state
		pending pending
		lost    uint64 // a sequence that the stream lost
		other   bool   // the pending changes are for another stream
		want    string // the differences
		carried int
		follows string // "sequence/stands/fence" of the record that the changes follow
	}{
		{"both updates", shown(one, 5), &three, pending{changes: updates, record: shown(one, 5)}, 0, false, "", 2, "5/5/5"},
		{"one has landed", shown(two, 6), &three, pending{changes: updates, record: shown(one, 5)}, 0, false, "", 1, "6/6/6"},
		{"all have landed", shown(three, 7), &three, pending{changes: updates, record: shown(one, 5)}, 0, false, "", 0, "7/7/7"},
		{"another bridge published", shown(at("9"), 8), &three, pending{changes: updates, record: shown(one, 5)}, 0, false, "upsert", 0, "8/8/8"},
		{"not as far as the present", shown(one, 5), ptr(at("4")), pending{changes: updates, record: shown(one, 5)}, 0, false, "upsert", 0, "5/5/5"},
		{"a damaged entry", &record{damaged: true}, &three, pending{changes: updates, record: shown(one, 5)}, 0, false, "upsert first", 0, "0/0/0"},
		{"a missed delete", shown(one, 5), nil, pending{record: shown(one, 5)}, 0, false, "remove unknown", 0, "5/5/5"},
		{"an observed delete", shown(one, 5), nil, pending{changes: []*change{removalOf(one, observation{})}, record: shown(one, 5)}, 0, false, "", 1, "5/5/5"},
		{"the last event was removed", shown(one, 5), &three, pending{record: shown(two, 9)}, 0, false, "upsert", 0, "9/5/9"},
		{"it was removed, with changes", shown(one, 5), &three, pending{changes: updates[1:], record: shown(two, 9)}, 0, false, "", 1, "9/9/9"},
		{"the last event was lost", shown(one, 5), &three, pending{record: shown(two, 9)}, 9, false, "upsert", 0, "5/5/5"},
		{"it was of another stream", shown(one, 5), &three, pending{record: shown(two, 9)}, 0, true, "upsert", 0, "5/5/5"},
		{"the only event was lost", onlyLost(one, 0), &one, pending{}, 0, false, "upsert first", 0, "0/0/0"},
		{"the only event was lost, behind a foreign message", onlyLost(one, 8), &one, pending{}, 0, false, "upsert first", 0, "0/0/8"},
		{"the only event was lost, of an app that is gone", onlyLost(one, 0), nil, pending{}, 0, false, "remove unknown", 0, "5/5/5"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := reconcileInput{
				records: map[subjects.AppID]*record{testID: test.record}, current: map[subjects.AppID]state{},
				pending: map[subjects.AppID]pending{testID: test.pending}, sameStream: !test.other,
				lost: func(sequence uint64) bool { return sequence == test.lost },
				app:  testEncoder().app, watched: func(string) bool { return true },
			}
			if test.now != nil {
				in.current[testID] = *test.now
			}
			result := reconcile(in)
			if got := describe(result.changes); got != test.want {
				t.Errorf("differences %q, want %q", got, test.want)
			}
			if got := len(result.pending[testID]); got != test.carried {
				t.Errorf("%d pending changes are carried, want %d", got, test.carried)
			}
			r := result.record(in, testID)
			if got := fmt.Sprintf("%d/%d/%d", r.previous(), r.stands(), r.fence()); got != test.follows {
				t.Errorf("the changes follow %s, want %s", got, test.follows)
			}
			if in.records[testID] != test.record {
				t.Error("the input was changed")
			}
		})
	}
}

func ptr(s state) *state { return &s }

// While the Revision that a Service names is awaited, the published count stands.
func TestReconcileStandIn(t *testing.T) {
	named := testService("u1", "101", "True")
	named.Status.LatestReadyRevisionName = "rev-2"
	published := publishedAs(t, state{service: testService("u1", "100", "True"), revision: testRevision("99", 2)})
	for _, test := range []struct {
		name   string
		awaits bool
		now    state
		want   int32 // the count
	}{
		{"awaited", true, state{service: named}, 2},
		{"not awaited", false, state{service: named}, 0},
		{"another stands in already", true, state{service: named, revision: testRevision("99", 3)}, 3},
		{"the same Revision", true, state{service: testService("u1", "101", "True")}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			result := reconcile(reconcileInput{
				records: map[subjects.AppID]*record{testID: published}, current: map[subjects.AppID]state{testID: test.now},
				awaits: func(subjects.AppID) bool { return test.awaits }, app: testEncoder().app,
			})
			if len(result.changes) != 1 {
				t.Fatalf("%d changes, want one", len(result.changes))
			}
			if got := replicas(result.changes[0].change.state); got != test.want {
				t.Errorf("%d replicas, want %d", got, test.want)
			}
		})
	}
}

func TestReconcileIsOrdered(t *testing.T) {
	current := map[subjects.AppID]state{}
	for i := range 50 {
		current[subjects.AppID{Project: "p", Domain: "d", Name: fmt.Sprintf("%02d", i)}] = state{service: testService("u", "1", "True")}
	}
	changes := reconcile(reconcileInput{current: current, watched: watching([]string{"flyte"})}).changes
	if len(changes) != 50 || !slices.IsSortedFunc(changes, func(a, b owed) int { return strings.Compare(a.app.Name, b.app.Name) }) {
		t.Errorf("got %d changes in no order", len(changes))
	}
}

func TestCheckHistory(t *testing.T) {
	for _, test := range []struct {
		name   string
		record *record
		listed string
		ok     bool
	}{
		{"older", &record{sequence: 9, resourceVersion: "99"}, "100", true},
		{"the same", &record{sequence: 9, resourceVersion: "100"}, "100", true},
		{"ahead", &record{sequence: 9, resourceVersion: "101"}, "100", false},
		{"ahead, of a history that is over", &record{sequence: 5, resourceVersion: "101"}, "100", true},
		{"a delete ahead", &record{sequence: 9, kind: subjects.Deleted, resourceVersion: "50", deletedVersion: "101"}, "100", false},
		{"a delete that was not seen", &record{sequence: 9, kind: subjects.Deleted, resourceVersion: "101"}, "100", true},
		{"longer numbers", &record{sequence: 9, resourceVersion: "99"}, "1000", true},
		{"damaged", &record{damaged: true}, "100", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := checkHistory(map[subjects.AppID]*record{testID: test.record}, test.listed, 5)
			if (err == nil) != test.ok {
				t.Errorf("got %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "--accept-reset") {
				t.Errorf("%v does not say what to do", err)
			}
		})
	}
}

// A conversion that changes (another version of this program) is a difference
// although nothing in the cluster changed.
func TestIsPublishedComparesContent(t *testing.T) {
	s := state{service: testService("u1", "100", "True")}
	r := publishedAs(t, s)
	cfg := kservice.Config{BaseDomain: "apps.example.com"}
	if !isPublished(s, r, cfg) {
		t.Error("the very state is not recognized")
	}
	r.app = proto.CloneOf(r.app)
	r.app.Status.Conditions = append(r.app.Status.Conditions, &appv1.Condition{Message: "more"})
	if isPublished(s, r, cfg) {
		t.Error("another App counts as the same")
	}
}
