package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

func TestNext(t *testing.T) {
	one := app.State{Service: testService("u1", "100", "True"), Revision: testRevision("99", 2)}
	published := publishedAs(t, one)
	stopped := testService("u1", "101", "True", func(svc *kservice.Service) { svc.Labels[kservice.LabelStopped] = "true" })
	elsewhere := app.State{
		Service:  app.Keeper{App: kservice.Config{BaseDomain: "example.org"}, Form: subjects.ContentTypeJSON}.Keep(apptest.Service("u1", "100", "True")),
		Revision: one.Revision,
	}
	deleted := &app.Record{Kind: subjects.Deleted, Sequence: 9, UID: "u1", ResourceVersion: "100", Namespace: "flyte"}
	with := func(change func(*app.Record)) *app.Record {
		r := *published
		change(&r)
		return &r
	}
	for _, test := range []struct {
		name      string
		record    *app.Record
		now       *app.State
		want      string
		unwatched bool
	}{
		{"nothing", nil, nil, "", false},
		{"new", nil, &one, "upsert first", false},
		{"the same", published, &one, "", false},
		{"another version", with(func(r *app.Record) { r.ResourceVersion = "98" }), &one, "upsert", false},
		{"an older version, after a reset", with(func(r *app.Record) { r.ResourceVersion = "200" }), &one, "upsert", false},
		{"another replica count", published, &app.State{Service: one.Service, Revision: testRevision("101", 3)}, "upsert", false},
		{"another Revision version alone", published, &app.State{Service: one.Service, Revision: testRevision("101", 2)}, "", false},
		{"stopped", published, &app.State{Service: stopped, Revision: testRevision("99", 2)}, "upsert", false},
		{"another base domain", published, &elsewhere, "upsert", false},
		{"gone", published, nil, "remove unknown", false},
		{"gone before", deleted, nil, "", false},
		{"back after a delete", deleted, &one, "upsert first", false},
		{"another object", with(func(r *app.Record) { r.UID = "u0" }), &one, "remove unknown, upsert first", false},
		{"a damaged entry", &app.Record{Damaged: true}, &one, "upsert first", false},
		{"a damaged entry of nothing", &app.Record{Damaged: true}, nil, "", false},
		{"published without its spec", with(func(r *app.Record) {
			r.Truncated = "old_app,spec"
			r.App, _ = r.App.Without(subjects.TruncatedSpec)
		}), &one, "", false},
		{"unwatched", with(func(r *app.Record) { r.Namespace = "elsewhere" }), nil, "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			step := Next(&World{Watched: Watching([]string{"flyte"})}, Facts{Record: test.record, Known: test.record != nil, Cluster: test.now})
			if got := describe(step.Publish); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if step.Unwatched != test.unwatched {
				t.Errorf("unwatched: %t, want %t", step.Unwatched, test.unwatched)
			}
		})
	}
}

// describe names the kinds of changes.
func describe(changes []*app.Change) string {
	var kinds []string
	for _, c := range changes {
		kind := "upsert"
		if c.Remove {
			kind = "remove"
		} else if !c.Mergeable {
			kind += " first"
		}
		if c.FinalStateUnknown {
			kind += " unknown"
		}
		if !c.Synthesized {
			kind += " not synthesized"
		}
		kinds = append(kinds, kind)
	}
	return strings.Join(kinds, ", ")
}

// What the session before has not published is published instead of the difference, where it leads
// from the record to the current state.
func TestNextPending(t *testing.T) {
	at := func(version string) app.State { return app.State{Service: testService("u1", version, "True")} }
	one, two, three := at("1"), at("2"), at("3")
	shown := func(s app.State, sequence uint64) *app.Record {
		r := *publishedAs(t, s)
		r.Sequence = sequence
		return &r
	}
	onlyLost := func(s app.State, foreign uint64) *app.Record {
		r := shown(s, 5)
		r.EventLost, r.Foreign = true, foreign
		return r
	}
	updates := []*app.Change{app.NewUpsert(two, false), app.NewUpsert(three, false)}
	for _, test := range []struct {
		name    string
		record  *app.Record
		now     *app.State
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
		{"a damaged entry", &app.Record{Damaged: true}, &three, Pending{Changes: updates, Record: shown(one, 5)}, 0, false, "upsert first", 0, "0/0/0"},
		{"a missed delete", shown(one, 5), nil, Pending{Record: shown(one, 5)}, 0, false, "remove unknown", 0, "5/5/5"},
		{"an observed delete", shown(one, 5), nil, Pending{Changes: []*app.Change{app.Removal(one, app.Observation{})}, Record: shown(one, 5)}, 0, false, "", 1, "5/5/5"},
		{"the last event was removed", shown(one, 5), &three, Pending{Record: shown(two, 9)}, 0, false, "upsert", 0, "9/5/9"},
		{"it was removed, with changes", shown(one, 5), &three, Pending{Changes: updates[1:], Record: shown(two, 9)}, 0, false, "", 1, "9/9/9"},
		{"the last event was lost", shown(one, 5), &three, Pending{Record: shown(two, 9)}, 9, false, "upsert", 0, "5/5/5"},
		{"it was of another stream", shown(one, 5), &three, Pending{Record: shown(two, 9)}, 0, true, "upsert", 0, "5/5/5"},
		{"the only event was lost", onlyLost(one, 0), &one, Pending{}, 0, false, "upsert first", 0, "0/0/0"},
		{"the only event was lost, behind a foreign message", onlyLost(one, 8), &one, Pending{}, 0, false, "upsert first", 0, "0/0/8"},
		{"the only event was lost, of an app that is gone", onlyLost(one, 0), nil, Pending{}, 0, false, "remove unknown", 0, "5/5/5"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := &World{
				SameStream: !test.other, Lost: func(sequence uint64) bool { return sequence == test.lost }, Watched: func(string) bool { return true },
			}
			step := Next(w, Facts{Record: test.record, Known: true, Cluster: test.now, Pending: test.pending})
			carried := 0
			if step.Pending {
				carried, step.Publish = len(step.Publish), nil
			}
			if got := describe(step.Publish); got != test.want {
				t.Errorf("differences %q, want %q", got, test.want)
			}
			if carried != test.carried {
				t.Errorf("%d pending changes are carried, want %d", carried, test.carried)
			}
			r := step.After
			if got := fmt.Sprintf("%d/%d/%d", r.Previous(), r.Stands(), r.Fence()); got != test.follows {
				t.Errorf("the changes follow %s, want %s", got, test.follows)
			}
		})
	}
}

func ptr(s app.State) *app.State { return &s }

// While the Revision that a Service names is awaited, the published count stands.
func TestNextStandIn(t *testing.T) {
	named := testService("u1", "101", "True", func(svc *kservice.Service) { svc.Status.LatestReadyRevisionName = "rev-2" })
	published := publishedAs(t, app.State{Service: testService("u1", "100", "True"), Revision: testRevision("99", 2)})
	for _, test := range []struct {
		name   string
		awaits bool
		now    app.State
		want   int32 // the count
	}{
		{"awaited", true, app.State{Service: named}, 2},
		{"not awaited", false, app.State{Service: named}, 0},
		{"another stands in already", true, app.State{Service: named, Revision: testRevision("99", 3)}, 3},
		{"the same Revision", true, app.State{Service: testService("u1", "101", "True")}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			step := Next(&World{}, Facts{Record: published, Known: true, Cluster: &test.now, Awaits: test.awaits})
			if len(step.Publish) != 1 {
				t.Fatalf("%d changes, want one", len(step.Publish))
			}
			if got := app.Replicas(step.Publish[0].State); got != test.want {
				t.Errorf("%d replicas, want %d", got, test.want)
			}
		})
	}
}

// A conversion that changes (another version of this program) is a difference
// although nothing in the cluster changed.
func TestShowsComparesContent(t *testing.T) {
	s := app.State{Service: testService("u1", "100", "True")}
	r := publishedAs(t, s)
	if !Shows(r, s) {
		t.Error("the very state is not recognized")
	}
	other, err := r.App.App()
	if err != nil {
		t.Fatal(err)
	}
	other.Status.Conditions = append(other.Status.Conditions, &appv1.Condition{Message: "more"})
	r.App = encodertest.Encoded(other)
	if Shows(r, s) {
		t.Error("another App counts as the same")
	}
}
