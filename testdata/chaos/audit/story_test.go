package audit_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

func TestFieldsLeftOut(t *testing.T) {
	w := story(t)
	w.steps[w.at("edit-1")].truncated = "old_app"
	w.steps[w.at("edit-3")].truncated = "old_app,spec"
	w.steps[w.at("edit-4b")].truncated = "old_app,spec"
	w.steps[w.at("delete")].truncated = "spec"
	w.steps[w.at("edit-9")].truncated = "old_app,spec"
	if r := audit.Check(w.render()); !r.OK() {
		t.Errorf("%s\n%v", r, r.Problems())
	}
	w.steps[w.at("edit-1")].message = func(m *audit.Message) { m.Header.Del(subjects.HeaderTruncated) }
	if r := audit.Check(w.render()); counts(r) != "drift" {
		t.Errorf("fields left out without a word: %s\n%v", r, r.Problems())
	}
}

func TestForeignMessages(t *testing.T) {
	w := story(t)
	w.final = func(in *audit.Input) {
		in.Events = append(in.Events, audit.Message{
			Subject: "flyte.apps.events.shop.production.checkout.updated", Sequence: uint64(len(in.Events) + 1),
			Header: nats.Header{}, Data: []byte("hello"),
		})
	}
	if r := audit.Check(w.render()); !r.OK() || r.Foreign != 1 || r.Events != len(w.steps) {
		t.Errorf("%s foreign=%d, want one foreign message and %d events\n%v", r, r.Foreign, len(w.steps), r.Problems())
	}
}

// TestObjectBecomesAnotherApp: a changed app id ends one app and begins another.
func TestObjectBecomesAnotherApp(t *testing.T) {
	w := newWorld(t)
	a, b := w.app("checkout"), w.app("till")
	a.create()
	a.edit()
	// The same object goes on as the other app.
	a.exists = false
	b.name, b.uid, b.exists, b.managed, b.created, b.generation = a.name, a.uid, true, true, a.created, a.generation
	b.edit()
	a.settle("")
	w.steps[len(w.steps)-1].deletedVersion = "" // an update showed it
	b.edit()
	in := w.render()
	if r := audit.Check(in); !r.OK() || r.Changes != 5 {
		t.Errorf("%s, want 5 changes and nothing wrong\n%v", r, r.Problems())
	}
}

// TestTruthIsTakenInOrder: the order of versions counts, not that of the slice.
func TestTruthIsTakenInOrder(t *testing.T) {
	w := story(t)
	in := w.render()
	slices.Reverse(in.Changes)
	if r := audit.Check(in); !r.OK() {
		t.Errorf("%s\n%v", r, r.Problems())
	}
}

func TestUnreadableTruth(t *testing.T) {
	in := story(t).render()
	in.Changes = append(in.Changes, audit.Change{Kind: audit.KindService, Name: "broken", ResourceVersion: "9999"},
		audit.Change{Kind: audit.KindRevision, Name: "odd", ResourceVersion: "9999", Object: &unstructured.Unstructured{Object: map[string]any{"status": "?"}}})
	if r := audit.Check(in); counts(r) != "drift" {
		t.Errorf("%s\n%v", r, r.Problems())
	}
}

func TestReports(t *testing.T) {
	p := audit.Problem{App: "a/b/c", Sequence: 7, What: "odd"}
	if got, want := p.String(), "a/b/c (sequence 7): odd"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	one := audit.Report{Changes: 3, Events: 2, Excused: 1, Lost: []audit.Problem{p}}
	sum := one.Plus(audit.Report{Changes: 4, Foreign: 1, Drift: []audit.Problem{p, p}})
	if got, want := sum.String(), "changes=7 events=2 excused=1 lost=1 duplicated=0 reordered=0 drift=2 reused=0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if sum.OK() || len(sum.Problems()) != 3 || len(one.Problems()) != 1 {
		t.Errorf("the sum has problems %v", sum.Problems())
	}
	if !(audit.Report{}).OK() {
		t.Error("an empty report is not OK")
	}
}
