package audit_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// A Revision that an event showed as deleted does not come back as it was, and one that was there all
// the time is not absent.
func TestPhantomRevisions(t *testing.T) {
	for _, test := range []struct {
		name string
		play func(*world, *app)
		want []string
	}{
		{"deleted", func(_ *world, a *app) { a.dropRevision() }, nil},
		{"deleted, and back as it was", func(w *world, a *app) {
			had := a.revisions[a.ready]
			a.dropRevision()
			a.note = "back"
			a.edit()
			w.steps[w.at("back")].rev = had
			a.note = "end"
			a.edit()
		}, []string{"lost", "reordered"}},
		{"another one, observed late", func(w *world, a *app) {
			a.note = "rollout"
			a.roll(2)
			w.steps[w.at("rollout")].rev = nil
			a.note = "known"
			a.scale(3)
		}, nil},
		{"observed late, and deleted later", func(w *world, a *app) {
			a.note = "rollout"
			a.roll(2)
			w.steps[w.at("rollout")].rev = nil
			a.note = "known"
			a.edit()
			a.dropRevision()
		}, nil},
		{"there since long", func(w *world, a *app) {
			a.roll(2)
			w.now = w.now.Add(time.Minute)
			a.note = "blind"
			a.edit()
			w.steps[w.at("blind")].rev = nil
			w.steps[w.at("blind")-1].rev = nil // the rollout itself
			a.note = "known"
			a.edit()
		}, []string{"drift"}},
		{"there since before a gap", func(w *world, a *app) {
			a.roll(2)
			rollout := w.steps[len(w.steps)-1]
			rollout.rev = nil
			w.now = w.now.Add(time.Minute)
			w.gap(func() { a.edit() })
			w.steps[len(w.steps)-1].rev = nil
			a.note = "known"
			a.edit()
		}, []string{"drift"}},
		{"made in a gap", func(w *world, a *app) {
			w.gap(func() {
				a.roll(2)
				w.now = w.now.Add(time.Minute)
				a.edit()
			})
			w.steps[len(w.steps)-1].rev = nil
			a.note = "known"
			a.edit()
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			a := w.app("checkout")
			a.note = "create"
			a.create()
			a.note = "ready"
			a.roll(1)
			a.note = ""
			test.play(w, a)
			w.wants(t, audit.Check(w.render()), test.want...)
		})
	}
}

// phantom is the tape of a bridge whose lists of Revisions, pods and Services came one after the
// other, when an app had been deleted: each changed the App before the delete was published.
func phantom(t *testing.T, apart time.Duration, change func(*audit.Input)) (w *world, in audit.Input) {
	w = newWorld(t)
	a := w.app("checkout")
	a.create()
	a.roll(1)
	a.note = "last"
	a.edit()
	a.note = ""
	w.gap(func() {
		a.delete()
		w.now = w.now.Add(20 * time.Second)
		a.dropRevision()
	})
	deleted := w.steps[len(w.steps)-1]
	state := *w.steps[w.at("last")]
	state.note, state.rev, state.synthesized, state.first, state.at = "revisions", nil, true, false, deleted.at
	deleted.at = deleted.at.Add(apart)
	w.steps[len(w.steps)-1] = &state
	w.steps = append(w.steps, deleted)
	deleted.message = func(m *audit.Message) { m.Header.Set(subjects.HeaderFinalStateUnknown, subjects.FlagTrue) }
	in = w.render()
	change(&in)
	return w, in
}

// A change of the parts of an app that was gone is none where lists came apart.
func TestPhantomBeforeDelete(t *testing.T) {
	for _, test := range []struct {
		name   string
		apart  time.Duration
		change func(*audit.Input)
		want   []string
	}{
		{"half a second before", 500 * time.Millisecond, func(*audit.Input) {}, []string{"reordered"}},
		{"the list did not come in time", joinTime + time.Second, func(*audit.Input) {}, nil},
		{"observed", 500 * time.Millisecond, func(in *audit.Input) {
			in.Events[len(in.Events)-2].Header.Del(subjects.HeaderSynthesized)
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, in := phantom(t, test.apart, test.change)
			w.wants(t, audit.Check(in), test.want...)
		})
	}
}

const joinTime = 10 * time.Second

// A condition of pods that they got after the event was stored is none that a bridge saw.
func TestPhantomPods(t *testing.T) {
	for _, test := range []struct {
		name  string
		after time.Duration // the event
		want  []string
	}{
		{"before", -time.Second, nil},
		{"a moment later, by another clock", time.Second, nil},
		{"later", time.Minute, []string{"drift"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			a := w.app("checkout")
			a.create()
			a.roll(1)
			a.edit()
			in := w.render()
			in.PodConditions = true
			last := &in.Events[len(in.Events)-1]
			pod := podOf(t, a, "1", "CrashLoopBackOff")
			pod.At = last.Stored.Add(test.after)
			in.Pods = append(in.Pods, pod)
			payload, entry := w.decode(last.Data), entryOf(&in, "checkout")
			updated := payload.GetUpdateEvent().GetUpdatedApp()
			updated.Status.Conditions[0].Substate = appv1.Status_CRASH_LOOP
			last.Data, entry.Data = w.encode(payload), w.encode(updated)
			for _, header := range []nats.Header{last.Header, entry.Header} {
				header.Set(subjects.HeaderReason, appv1.Status_CRASH_LOOP.String())
				header.Set(subjects.HeaderReasonRevision, a.ready)
			}
			w.wants(t, audit.Check(in), test.want...)
		})
	}
}
