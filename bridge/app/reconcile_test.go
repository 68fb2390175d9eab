package app

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

func TestReconcile(t *testing.T) {
	one := State{Service: testService("u1", "100", "True"), Revision: testRevision("99", 2)}
	published := publishedAs(t, one)
	stopped := testService("u1", "101", "True", func(svc *kservice.Service) { svc.Labels[kservice.LabelStopped] = "true" })
	elsewhere := State{
		Service:  Keeper{App: kservice.Config{BaseDomain: "example.org"}, Form: subjects.ContentTypeJSON}.Keep(apptest.Service("u1", "100", "True")),
		Revision: one.Revision,
	}
	deleted := &Record{Kind: subjects.Deleted, Sequence: 9, UID: "u1", ResourceVersion: "100", Namespace: "flyte"}
	with := func(change func(*Record)) *Record {
		r := *published
		change(&r)
		return &r
	}
	for _, test := range []struct {
		name      string
		record    *Record
		now       *State
		want      string
		unwatched int
	}{
		{"nothing", nil, nil, "", 0},
		{"new", nil, &one, "upsert first", 0},
		{"the same", published, &one, "", 0},
		{"another version", with(func(r *Record) { r.ResourceVersion = "98" }), &one, "upsert", 0},
		{"an older version, after a reset", with(func(r *Record) { r.ResourceVersion = "200" }), &one, "upsert", 0},
		{"another replica count", published, &State{Service: one.Service, Revision: testRevision("101", 3)}, "upsert", 0},
		{"another Revision version alone", published, &State{Service: one.Service, Revision: testRevision("101", 2)}, "", 0},
		{"stopped", published, &State{Service: stopped, Revision: testRevision("99", 2)}, "upsert", 0},
		{"another base domain", published, &elsewhere, "upsert", 0},
		{"gone", published, nil, "remove unknown", 0},
		{"gone before", deleted, nil, "", 0},
		{"back after a delete", deleted, &one, "upsert first", 0},
		{"another object", with(func(r *Record) { r.UID = "u0" }), &one, "remove unknown, upsert first", 0},
		{"a damaged entry", &Record{Damaged: true}, &one, "upsert first", 0},
		{"a damaged entry of nothing", &Record{Damaged: true}, nil, "", 0},
		{"published without its spec", with(func(r *Record) {
			r.Truncated = "old_app,spec"
			r.App, _ = r.App.Without(subjects.TruncatedSpec)
		}), &one, "", 0},
		{"unwatched", with(func(r *Record) { r.Namespace = "elsewhere" }), nil, "", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			records, current := map[subjects.AppID]*Record{}, map[subjects.AppID]State{}
			if test.record != nil {
				records[testID] = test.record
			}
			if test.now != nil {
				current[testID] = *test.now
			}
			result := Reconcile(Input{Records: records, Current: current, Watched: Watching([]string{"flyte"})})
			if got := describe(result.Changes); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if len(result.Unwatched) != test.unwatched {
				t.Errorf("unwatched %v, want %d", result.Unwatched, test.unwatched)
			}
		})
	}
}

// describe names the kinds of changes.
func describe(changes []Owed) string {
	var kinds []string
	for _, o := range changes {
		kind := "upsert"
		if o.Change.Remove {
			kind = "remove"
		} else if !o.Change.Mergeable {
			kind += " first"
		}
		if o.Change.FinalStateUnknown {
			kind += " unknown"
		}
		if !o.Change.Synthesized {
			kind += " not synthesized"
		}
		kinds = append(kinds, kind)
	}
	return strings.Join(kinds, ", ")
}

// What the session before has not published is published instead of the difference, where it leads
// from the record to the current state.
func TestReconcilePending(t *testing.T) {
	at := func(version string) State { return State{Service: testService("u1", version, "True")} }
	one, two, three := at("1"), at("2"), at("3")
	shown := func(s State, sequence uint64) *Record {
		r := *publishedAs(t, s)
		r.Sequence = sequence
		return &r
	}
	onlyLost := func(s State, foreign uint64) *Record {
		r := shown(s, 5)
		r.EventLost, r.Foreign = true, foreign
		return r
	}
	updates := []*Change{NewUpsert(two, false), NewUpsert(three, false)}
	for _, test := range []struct {
		name    string
		record  *Record
		now     *State
		pending Pending
		lost    uint64 // a sequence that the stream lost
		other   bool   // the pending changes are for another stream
		want    string // the differences
		carried int
		follows string // "sequence/stands/fence" of the record that the changes follow
	}{
		{"both updates", shown(one, 5), &three, Pending{Changes: updates, Record: shown(one, 5)}, 0, false, "", 2, "5/5/5"},
		{"one was stored", shown(two, 6), &three, Pending{Changes: updates, Record: shown(one, 5)}, 0, false, "", 1, "6/6/6"},
		{"all were stored", shown(three, 7), &three, Pending{Changes: updates, Record: shown(one, 5)}, 0, false, "", 0, "7/7/7"},
		{"another bridge published", shown(at("9"), 8), &three, Pending{Changes: updates, Record: shown(one, 5)}, 0, false, "upsert", 0, "8/8/8"},
		{"not as far as the present", shown(one, 5), ptr(at("4")), Pending{Changes: updates, Record: shown(one, 5)}, 0, false, "upsert", 0, "5/5/5"},
		{"a damaged entry", &Record{Damaged: true}, &three, Pending{Changes: updates, Record: shown(one, 5)}, 0, false, "upsert first", 0, "0/0/0"},
		{"a missed delete", shown(one, 5), nil, Pending{Record: shown(one, 5)}, 0, false, "remove unknown", 0, "5/5/5"},
		{"an observed delete", shown(one, 5), nil, Pending{Changes: []*Change{Removal(one, Observation{})}, Record: shown(one, 5)}, 0, false, "", 1, "5/5/5"},
		{"the last event was removed", shown(one, 5), &three, Pending{Record: shown(two, 9)}, 0, false, "upsert", 0, "9/5/9"},
		{"it was removed, with changes", shown(one, 5), &three, Pending{Changes: updates[1:], Record: shown(two, 9)}, 0, false, "", 1, "9/9/9"},
		{"the last event was lost", shown(one, 5), &three, Pending{Record: shown(two, 9)}, 9, false, "upsert", 0, "5/5/5"},
		{"it was of another stream", shown(one, 5), &three, Pending{Record: shown(two, 9)}, 0, true, "upsert", 0, "5/5/5"},
		{"the only event was lost", onlyLost(one, 0), &one, Pending{}, 0, false, "upsert first", 0, "0/0/0"},
		{"the only event was lost, behind a foreign message", onlyLost(one, 8), &one, Pending{}, 0, false, "upsert first", 0, "0/0/8"},
		{"the only event was lost, of an app that is gone", onlyLost(one, 0), nil, Pending{}, 0, false, "remove unknown", 0, "5/5/5"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := Input{
				Records: map[subjects.AppID]*Record{testID: test.record}, Current: map[subjects.AppID]State{},
				Pending: map[subjects.AppID]Pending{testID: test.pending}, SameStream: !test.other,
				Lost:    func(sequence uint64) bool { return sequence == test.lost },
				Watched: func(string) bool { return true },
			}
			if test.now != nil {
				in.Current[testID] = *test.now
			}
			result := Reconcile(in)
			if got := describe(result.Changes); got != test.want {
				t.Errorf("differences %q, want %q", got, test.want)
			}
			if got := len(result.Pending[testID]); got != test.carried {
				t.Errorf("%d pending changes are carried, want %d", got, test.carried)
			}
			r := result.Record(in, testID)
			if got := fmt.Sprintf("%d/%d/%d", r.Previous(), r.Stands(), r.Fence()); got != test.follows {
				t.Errorf("the changes follow %s, want %s", got, test.follows)
			}
			if in.Records[testID] != test.record {
				t.Error("the input was changed")
			}
		})
	}
}

func ptr(s State) *State { return &s }

// While the Revision that a Service names is awaited, the published count stands.
func TestReconcileStandIn(t *testing.T) {
	named := testService("u1", "101", "True", func(svc *kservice.Service) { svc.Status.LatestReadyRevisionName = "rev-2" })
	published := publishedAs(t, State{Service: testService("u1", "100", "True"), Revision: testRevision("99", 2)})
	for _, test := range []struct {
		name   string
		awaits bool
		now    State
		want   int32 // the count
	}{
		{"awaited", true, State{Service: named}, 2},
		{"not awaited", false, State{Service: named}, 0},
		{"another stands in already", true, State{Service: named, Revision: testRevision("99", 3)}, 3},
		{"the same Revision", true, State{Service: testService("u1", "101", "True")}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			result := Reconcile(Input{
				Records: map[subjects.AppID]*Record{testID: published}, Current: map[subjects.AppID]State{testID: test.now},
				Awaits: func(subjects.AppID) bool { return test.awaits },
			})
			if len(result.Changes) != 1 {
				t.Fatalf("%d changes, want one", len(result.Changes))
			}
			if got := Replicas(result.Changes[0].Change.State); got != test.want {
				t.Errorf("%d replicas, want %d", got, test.want)
			}
		})
	}
}

func TestReconcileIsOrdered(t *testing.T) {
	current := map[subjects.AppID]State{}
	for i := range 50 {
		current[subjects.AppID{Project: "p", Domain: "d", Name: fmt.Sprintf("%02d", i)}] = State{Service: testService("u", "1", "True")}
	}
	changes := Reconcile(Input{Current: current, Watched: Watching([]string{"flyte"})}).Changes
	if len(changes) != 50 || !slices.IsSortedFunc(changes, func(a, b Owed) int { return strings.Compare(a.App.Name, b.App.Name) }) {
		t.Errorf("got %d changes in no order", len(changes))
	}
}

func TestCheckHistory(t *testing.T) {
	const digits12, digits13, digits14 = "999999999999", "9999999999999", "99999999999999"
	update := func(version string) *Record { return &Record{Sequence: 9, ResourceVersion: version} }
	deleted := func(versions ...string) (d Deletions) {
		for i, version := range versions {
			d.Note(testID, version, uint64(20+i))
		}
		return d
	}
	for _, test := range []struct {
		name       string
		record     *Record
		deleted    Deletions
		listed     string
		ok         bool
		impossible []uint64
	}{
		{"older", update("99"), Deletions{}, "100", true, nil},
		{"the same", update("100"), Deletions{}, "100", true, nil},
		{"ahead", update("101"), Deletions{}, "100", false, nil},
		{"ahead, of a history that is over", &Record{Sequence: 5, ResourceVersion: "101"}, Deletions{}, "100", true, nil},
		{"a delete ahead", &Record{Sequence: 9, Kind: subjects.Deleted, ResourceVersion: "50", DeletedVersion: "101"}, Deletions{}, "100", false, nil},
		{"a delete that was not seen", &Record{Sequence: 9, Kind: subjects.Deleted, ResourceVersion: "101"}, Deletions{}, "100", true, nil},
		{"longer numbers", update("99"), Deletions{}, "1000", true, nil},
		{"damaged", &Record{Damaged: true}, Deletions{}, "100", true, nil},
		{"as far as a cluster gets", update(digits12), Deletions{}, "100", false, nil},
		{"what no cluster has", update(digits13), Deletions{}, "100", true, []uint64{9}},
		{"more than any number", update(strings.Repeat("9", 4000)), Deletions{}, "100", true, []uint64{9}},
		{"no number", update("1e20"), Deletions{}, "100", true, nil},
		{"a cluster that counts in microseconds", update("1800000000000001"), Deletions{}, "1800000000000000", false, nil},
		{"ten times what such a cluster has", update(digits14 + "999"), Deletions{}, "1800000000000000", false, nil},
		{"more than that", update("1" + digits14 + "999"), Deletions{}, "1800000000000000", true, []uint64{9}},
		{"an older deletion", update("99"), deleted("100"), "100", true, nil},
		{"a deletion ahead", update("99"), deleted("101", "99"), "100", false, nil},
		{"a deletion that cannot be", update("99"), deleted(digits13), "100", true, []uint64{20}},
		{"it hides no other", update("99"), deleted("101", digits13), "100", false, []uint64{21}},
		{"nor does an event", update(digits14), deleted("101", digits13, strings.Repeat("9", 30)), "100", false, []uint64{9, 21, 22}},
	} {
		t.Run(test.name, func(t *testing.T) {
			impossible, err := CheckHistory(map[subjects.AppID]*Record{testID: test.record}, test.deleted, test.listed, 5)
			if (err == nil) != test.ok {
				t.Errorf("got %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "--accept-reset") {
				t.Errorf("%v does not say what to do", err)
			}
			var sequences []uint64
			for _, v := range impossible {
				sequences = append(sequences, v.Sequence)
			}
			if !slices.Equal(sequences, test.impossible) {
				t.Errorf("got %v, want those at %v", impossible, test.impossible)
			}
		})
	}
}

// A conversion that changes (another version of this program) is a difference
// although nothing in the cluster changed.
func TestIsPublishedComparesContent(t *testing.T) {
	s := State{Service: testService("u1", "100", "True")}
	r := publishedAs(t, s)
	if !IsPublished(s, r) {
		t.Error("the very state is not recognized")
	}
	other, err := r.App.App()
	if err != nil {
		t.Fatal(err)
	}
	other.Status.Conditions = append(other.Status.Conditions, &appv1.Condition{Message: "more"})
	r.App = encoded(other)
	if IsPublished(s, r) {
		t.Error("another App counts as the same")
	}
}
