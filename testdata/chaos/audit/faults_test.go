package audit_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// story is a world in which the step of every kind has a name: that of what
// happened, for the app checkout.
func story(t testing.TB) *world {
	w := newWorld(t)
	a, other, gone := w.app("checkout"), w.app("storefront"), w.app("gone")
	do := func(note string, f func()) {
		a.note = note
		f()
		other.note, gone.note = "beside", "beside"
		if !other.exists {
			other.create()
		}
		other.edit()
	}
	gone.create()
	do("create", a.create)
	do("ready", func() { a.roll(1) })
	do("edit-1", a.edit)
	do("scale-2", func() { a.scale(2) })
	do("scale-3", func() { a.scale(3) })
	do("scale-1", func() { a.scale(1) })
	do("scale-4", func() { a.scale(4) })
	do("scale-1b", func() { a.scale(1) })
	gone.edit()
	do("edit-2", a.edit)
	a.merging = true
	do("merged", func() { a.edit(); a.scale(4); a.edit() })
	a.merging = false
	do("edit-3", a.edit)
	do("unlabel", func() { a.label(false) })
	do("relabel", func() { a.label(true) })
	do("edit-4", a.edit)
	do("edit-4b", a.edit)
	do("delete", a.delete)
	gone.delete()
	do("create-2", a.create)
	do("ready-2", func() { a.roll(2) })
	do("edit-5", a.edit)
	w.gap(func() {
		a.note = "resync"
		a.edit()
		a.edit()
		a.edit()
		gone.create()
		gone.edit()
		gone.delete()
	})
	do("edit-6", a.edit)
	do("delete-2", a.delete)
	do("create-3", a.create)
	do("edit-7", a.edit)
	do("delete-3", a.delete)
	do("create-4", a.create)
	do("edit-8", a.edit)
	do("delete-4", a.delete)
	do("create-5", a.create)
	do("ready-5", func() { a.roll(2) })
	do("scale-5", func() { a.scale(5) })
	do("edit-9", a.edit)
	return w
}

// at is the place of a step of checkout.
func (w *world) at(note string) int {
	w.t.Helper()
	i := slices.IndexFunc(w.steps, func(s *step) bool { return s.note == note && s.app.name == "checkout" })
	if i < 0 {
		w.t.Fatalf("no step %q", note)
	}
	return i
}

func (w *world) drop(notes ...string) {
	for _, note := range notes {
		i := w.at(note)
		w.steps = slices.Delete(w.steps, i, i+1)
	}
}

func (w *world) swap(a, b string) {
	i, j := w.at(a), w.at(b)
	w.steps[i], w.steps[j] = w.steps[j], w.steps[i]
}

// repeat tells a step once more, after another one.
func (w *world) repeat(note, after string, change func(*step)) {
	again := *w.steps[w.at(note)]
	again.note = "again"
	if change != nil {
		change(&again)
	}
	w.steps = slices.Insert(w.steps, w.at(after)+1, &again)
}

// header changes the header of an event.
func (w *world) header(note, name, value string) {
	w.steps[w.at(note)].message = func(m *audit.Message) {
		m.Header.Del(name)
		if value != "" {
			m.Header[name] = []string{value}
		}
	}
}

// entry is the bucket's message of an app.
func entryOf(in *audit.Input, name string) *audit.Message {
	i := slices.IndexFunc(in.Entries, func(m audit.Message) bool { return strings.HasSuffix(m.Subject, "."+name) })
	if i < 0 {
		panic("no entry of " + name)
	}
	return &in.Entries[i]
}

// entryHeader changes a header of the bucket's message of an app.
func entryHeader(name, header, value string) func(*audit.Input) {
	return func(in *audit.Input) {
		h := entryOf(in, name).Header
		delete(h, header)
		if value != "" {
			h[header] = []string{value}
		}
	}
}

// counts are the counters that are not zero.
func counts(r audit.Report) string {
	var out []string
	for _, c := range []struct {
		name     string
		problems []audit.Problem
	}{{"lost", r.Lost}, {"duplicated", r.Duplicated}, {"reordered", r.Reordered}, {"drift", r.Drift}, {"reused", r.Reused}} {
		if len(c.problems) > 0 {
			out = append(out, c.name)
		}
	}
	return strings.Join(out, " ")
}

func TestStory(t *testing.T) {
	w := story(t)
	r := audit.Check(w.render())
	if !r.OK() || r.Merged != 1 || r.Excused != 5 || r.Foreign != 0 || r.Events != len(w.steps) {
		t.Errorf("%s merged=%d foreign=%d, want 1 merged, 5 excused and nothing wrong in %d events\n%v", r, r.Merged, r.Foreign, len(w.steps), r.Problems())
	}
	want := "changes=" + strconv.Itoa(r.Changes) + " events=" + strconv.Itoa(r.Events) + " excused=5 lost=0 duplicated=0 reordered=0 drift=0 reused=0"
	if r.String() != want {
		t.Errorf("got %q, want %q", r, want)
	}
}

func TestFaults(t *testing.T) {
	const checkout = "shop/production/checkout"
	for _, fault := range []struct {
		name  string
		steps func(*world)
		input func(*audit.Input)
		want  string // the counters that rise
		lost  int    // how many states are lost, if not 0
		app   string // that the problems name; checkout if empty
	}{
		{name: "lost create", steps: func(w *world) { w.drop("create-2") }, want: "lost", lost: 1},
		{name: "lost update", steps: func(w *world) { w.drop("edit-4") }, want: "lost", lost: 1},
		{name: "two lost updates", steps: func(w *world) { w.drop("edit-4", "edit-4b") }, want: "lost", lost: 2},
		{name: "lost delete and create", steps: func(w *world) { w.drop("delete", "create-2") }, want: "lost", lost: 2},
		{name: "lost delete", steps: func(w *world) { w.drop("delete"); w.steps[w.at("create-2")].kind = subjects.Updated }, want: "lost", lost: 1},
		{name: "lost delete, created twice", steps: func(w *world) { w.drop("delete"); w.steps[w.at("create-2")].kind = subjects.Created }, want: "lost reordered", lost: 1},
		{name: "label off and on, untold", steps: func(w *world) { w.drop("unlabel", "relabel") }, want: "lost", lost: 2},
		{name: "lost last state", steps: func(w *world) { w.drop("edit-9") }, want: "lost", lost: 1},
		{name: "lost last delete", steps: func(w *world) {
			w.steps = slices.DeleteFunc(w.steps, func(s *step) bool { return s.app.name == "gone" && s.remove })
		}, want: "lost", lost: 1, app: "shop/production/gone"},
		{name: "lost life", steps: func(w *world) { w.drop("create-3", "edit-7", "delete-3") }, want: "lost", lost: 3},
		{name: "life outside its gap", input: func(in *audit.Input) { in.Gaps[0].From = in.Gaps[0].To }, want: "lost", lost: 3, app: "shop/production/gone"},
		{name: "lost app", steps: func(w *world) {
			w.steps = slices.DeleteFunc(w.steps, func(s *step) bool { return s.app.name == "gone" })
		}, want: "lost", lost: 3, app: "shop/production/gone"},
		{name: "lost replica count", steps: func(w *world) { w.drop("scale-3") }, want: "lost", lost: 1},
		{name: "lost replica count before an update", steps: func(w *world) { w.drop("scale-2", "scale-3", "scale-1") }, want: "lost", lost: 3},
		{name: "lost last replica count", steps: func(w *world) { w.drop("scale-5"); w.steps[w.at("edit-9")].rev = w.steps[w.at("ready-5")].rev }, want: "drift"},

		{name: "message twice", steps: func(w *world) { w.repeat("edit-4", "edit-4", func(s *step) { s.again = true }) }, want: "duplicated"},
		{name: "delete twice", steps: func(w *world) {
			w.repeat("delete", "delete", func(s *step) { s.kind = subjects.Deleted })
		}, want: "duplicated"},
		{name: "state twice with another id", steps: func(w *world) { w.repeat("edit-4", "edit-4", nil) }, want: "duplicated"},
		{name: "last state twice", steps: func(w *world) { w.repeat("edit-9", "edit-9", nil) }, want: "duplicated"},
		{name: "replica count twice", steps: func(w *world) { w.repeat("scale-3", "scale-3", nil) }, want: "duplicated"},

		{name: "swapped updates", steps: func(w *world) { w.swap("edit-2", "edit-1") }, want: "reordered"},
		{name: "swapped create and update", steps: func(w *world) { w.swap("create-3", "edit-7") }, want: "reordered"},
		{name: "swapped replica counts", steps: func(w *world) { w.swap("scale-2", "scale-3") }, want: "reordered"},
		{name: "swapped lives", steps: func(w *world) {
			w.swap("create-3", "create-4")
			w.swap("edit-7", "edit-8")
			w.swap("delete-3", "delete-4")
		}, want: "reordered"},
		{name: "swapped messages", steps: func(w *world) {
			i, j := w.at("edit-4"), w.at("edit-4b")
			w.final = func(in *audit.Input) {
				a, b := &in.Events[i], &in.Events[j]
				a.Sequence, b.Sequence = b.Sequence, a.Sequence
				*a, *b = *b, *a
			}
		}, want: "reordered drift"},
		{name: "stale append", steps: func(w *world) { w.repeat("edit-2", "edit-4", nil) }, want: "reordered"},
		{name: "stale append after the last", steps: func(w *world) { w.repeat("edit-6", "edit-9", nil) }, want: "reordered"},
		{name: "stale delete", steps: func(w *world) { w.repeat("delete", "edit-5", nil) }, want: "reordered"},
		{name: "created in place of updated", steps: func(w *world) { w.steps[w.at("edit-4")].kind = subjects.Created }, want: "reordered"},
		{name: "updated in place of created", steps: func(w *world) { w.steps[w.at("create-2")].kind = subjects.Updated }, want: "reordered"},
		{name: "wrong previous sequence", steps: func(w *world) { w.header("edit-4", subjects.HeaderPreviousSequence, "3") }, want: "reordered"},
		{name: "no previous sequence", steps: func(w *world) { w.header("edit-4", subjects.HeaderPreviousSequence, "") }, want: "reordered"},
		{name: "message id of another place", steps: func(w *world) {
			w.steps[w.at("edit-4")].message = func(m *audit.Message) {
				id, _ := subjects.ParseMessageID(m.Header.Get(subjects.HeaderMsgID))
				id.PreviousSequence--
				m.Header.Set(subjects.HeaderMsgID, id.String())
				m.Header[subjects.CEID] = []string{id.String()}
			}
		}, want: "reordered"},
		{name: "stream steps back", input: func(in *audit.Input) {
			n := len(in.Events)
			in.Events[n-2], in.Events[n-1] = in.Events[n-1], in.Events[n-2]
		}, want: "reordered", app: "flyte.apps.events.shop.production."},

		{name: "merged count too small", steps: func(w *world) { w.steps[w.at("merged")].merged = 0 }, want: "lost"},
		{name: "merged count too large", steps: func(w *world) { w.steps[w.at("merged")].merged = 9 }, want: "drift"},
		{name: "merged create", steps: func(w *world) { w.drop("create-3"); w.steps[w.at("edit-7")].merged = 1 }, want: "lost drift", lost: 1},
		{name: "merged delete", steps: func(w *world) {
			w.drop("edit-4")
			w.steps[w.at("delete")].merged = 1
		}, want: "lost drift", lost: 1},
		{name: "synthesized over a skip without a gap", steps: func(w *world) {
			w.drop("edit-4b", "delete", "create-2", "ready-2")
			w.steps[w.at("edit-5")].synthesized = true
		}, want: "lost", lost: 4},
		{name: "synthesized without its gap", input: func(in *audit.Input) { in.Gaps = nil }, want: "lost", lost: 5, app: "shop/production/"},
		{name: "skip in a gap without a mark", steps: func(w *world) { w.steps[w.at("resync")].synthesized = false }, want: "lost", lost: 2},
		{name: "another object in a gap without a delete", steps: func(w *world) {
			w.drop("delete-2")
			s := w.steps[w.at("create-3")]
			s.synthesized, s.kind = true, subjects.Updated
			w.gaps = append(w.gaps, audit.Gap{From: s.at.Add(-9 * time.Second), To: s.at})
		}, want: "lost", lost: 1},

		{name: "invented version", steps: func(w *world) {
			w.repeat("edit-4", "edit-4", func(s *step) {
				s.service = s.service.DeepCopyObject().(*kservice.Service)
				s.service.ResourceVersion = "99999"
			})
		}, want: "drift"},
		{name: "invented delete", steps: func(w *world) {
			w.header("delete", subjects.HeaderDeletedResourceVersion, "99999")
		}, want: "lost drift"},
		{name: "delete of what is there", steps: func(w *world) {
			w.repeat("delete-3", "edit-9", func(s *step) { s.uid, s.deletedVersion, s.synthesized, s.lost = "u6", "", true, true })
		}, want: "drift"},
		{name: "event of no app", steps: func(w *world) {
			stranger := *w.steps[w.at("edit-9")]
			a := *stranger.app
			a.id.Name = "stranger"
			stranger.app = &a
			w.steps = append(w.steps, &stranger)
		}, want: "drift", app: "shop/production/stranger"},
		{name: "wrong payload", steps: func(w *world) {
			w.steps[w.at("edit-4")].change = func(app *appv1.App) { app.Status.Conditions[0].Message = "?" }
		}, want: "drift"},
		{name: "wrong last payload", steps: func(w *world) {
			w.steps[w.at("edit-9")].change = func(app *appv1.App) { app.Status.Conditions[0].Message = "?" }
		}, want: "drift"},
		{name: "wrong payload of a delete", steps: func(w *world) {
			w.steps[w.at("delete")].change = func(app *appv1.App) { app.Spec = nil }
		}, want: "drift"},
		{name: "wrong old app", steps: func(w *world) {
			w.steps[w.at("edit-4")].message = func(m *audit.Message) {
				m.Data = w.encode(apptest.Updated(w.decode(m.Data).GetUpdateEvent().GetUpdatedApp(), nil))
			}
		}, want: "drift"},
		{name: "no payload", steps: func(w *world) {
			w.steps[w.at("edit-4")].message = func(m *audit.Message) { m.Data = []byte("{}") }
		}, want: "drift"},
		{name: "wrong replica count", steps: func(w *world) {
			w.steps[w.at("scale-3")].change = func(app *appv1.App) { app.Status.CurrentReplicas = 7 }
		}, want: "drift"},
		{name: "wrong last replica count", steps: func(w *world) {
			w.steps[w.at("edit-9")].change = func(app *appv1.App) { app.Status.CurrentReplicas = 7 }
		}, want: "drift"},
		{name: "no Revision any more", steps: func(w *world) { w.steps[w.at("edit-9")].rev = nil }, want: "drift"},
		{name: "a Revision that never was", steps: func(w *world) {
			w.header("edit-9", subjects.HeaderRevisionResourceVersion, "99999")
		}, want: "drift"},

		{name: "bucket behind by one", steps: func(w *world) { w.frozen = w.at("edit-9") }, want: "drift"},
		{name: "bucket behind by a life", steps: func(w *world) { w.frozen = w.at("delete-3") }, want: "drift"},
		{name: "bucket with another sequence", input: entryHeader("checkout", subjects.HeaderEventSequence, "7"), want: "drift"},
		{name: "no entry", input: func(in *audit.Input) { in.Entries = slices.Delete(in.Entries, 0, 1) }, want: "drift"},
		{name: "no marker", input: func(in *audit.Input) { in.Entries = slices.Delete(in.Entries, 1, 2) }, want: "drift", app: "shop/production/gone"},
		{name: "entry that should be a marker", input: entryHeader("gone", subjects.HeaderKVOperation, ""), want: "drift", app: "shop/production/gone"},
		{name: "marker of another operation", input: entryHeader("gone", subjects.HeaderKVOperation, subjects.KVPurge), want: "drift", app: "shop/production/gone"},
		{name: "marker that should be an entry", input: entryHeader("checkout", subjects.HeaderKVOperation, subjects.KVDelete), want: "drift"},
		{name: "marker with a value", input: func(in *audit.Input) { entryOf(in, "gone").Data = []byte("{}") }, want: "drift", app: "shop/production/gone"},
		{name: "entry with another App", input: func(in *audit.Input) { entryOf(in, "checkout").Data = entryOf(in, "storefront").Data }, want: "drift"},
		{name: "entry that is garbage", input: func(in *audit.Input) { entryOf(in, "checkout").Data = []byte("?") }, want: "drift"},
		{name: "entry with another header", input: entryHeader("checkout", subjects.CETime, "2026-01-01T00:00:00Z"), want: "drift"},
		{name: "entry without a header", input: entryHeader("checkout", subjects.HeaderNamespace, ""), want: "drift"},
		{name: "entry with a header too many", input: entryHeader("checkout", subjects.HeaderSynthesized, subjects.FlagTrue), want: "drift"},
		{name: "key of no app", input: func(in *audit.Input) {
			e := *entryOf(in, "checkout")
			e.Subject = strings.Replace(e.Subject, "checkout", "stranger", 1)
			in.Entries = append(in.Entries, e)
		}, want: "drift", app: "shop/production/stranger"},
		{name: "foreign key", input: func(in *audit.Input) {
			in.Entries = append(in.Entries, audit.Message{Subject: subjects.BucketSubject(bucket, "config"), Sequence: 99})
		}, want: "drift", app: subjects.BucketSubject(bucket, "config")},
	} {
		t.Run(fault.name, func(t *testing.T) {
			w := story(t)
			if fault.steps != nil {
				fault.steps(w)
			}
			in := w.render()
			if fault.input != nil {
				fault.input(&in)
			}
			r := audit.Check(in)
			if counts(r) != fault.want {
				t.Errorf("counters that rose: %q, want %q\n%s\n%v", counts(r), fault.want, r, r.Problems())
			}
			if fault.lost > 0 && len(r.Lost) != fault.lost {
				t.Errorf("%d lost, want %d\n%v", len(r.Lost), fault.lost, r.Lost)
			}
			app := fault.app
			if app == "" {
				app = checkout
			}
			for _, p := range r.Problems() {
				if !strings.HasPrefix(p.String(), app) || p.What == "" {
					t.Errorf("the problem names %s, want %s: %s", p.App, app, p)
				}
			}
		})
	}
}

// Two bridges that elect no leader give each other a gap without an end. What is published in it still
// steps back nowhere, and refers to the app's event before.
func TestStepBackInAGap(t *testing.T) {
	found := func(s *step) { s.synthesized = true }
	for _, fault := range []struct {
		name  string
		steps func(*world)
		want  string
	}{
		{"nothing", func(*world) {}, ""},
		{"a state is skipped", func(w *world) {
			w.drop("edit-4")
			w.steps[w.at("edit-4b")].synthesized = true
		}, ""},
		{"an older state", func(w *world) { w.repeat("edit-2", "edit-4", found) }, "reordered"},
		{"an older state and the present one again", func(w *world) {
			w.repeat("edit-4", "edit-4", found)
			w.repeat("edit-2", "edit-4", found)
		}, "duplicated reordered"},
		{"an older count", func(w *world) { w.repeat("scale-2", "scale-3", found) }, "reordered"},
		{"an older state of the object before", func(w *world) { w.repeat("edit-4", "create-2", found) }, "reordered"},
		{"a former object after a delete", func(w *world) {
			w.repeat("edit-4", "delete", func(s *step) { s.synthesized, s.kind = true, subjects.Created })
		}, "reordered"},
		{"a delete of what is there", func(w *world) {
			w.repeat("delete", "edit-5", func(s *step) { s.synthesized, s.lost, s.deletedVersion = true, true, "" })
		}, "drift"},
		{"another predecessor", func(w *world) {
			w.steps[w.at("edit-4")].synthesized = true
			w.header("edit-4", subjects.HeaderPreviousSequence, "3")
		}, "reordered"},
		{"no predecessor", func(w *world) {
			w.steps[w.at("edit-4")].synthesized = true
			w.header("edit-4", subjects.HeaderPreviousSequence, "")
		}, "reordered"},
	} {
		t.Run(fault.name, func(t *testing.T) {
			w := story(t)
			fault.steps(w)
			in := w.render()
			in.Gaps = []audit.Gap{{To: w.now.Add(time.Hour)}}
			if r := audit.Check(in); counts(r) != fault.want {
				t.Errorf("counters that rose: %q, want %q\n%s\n%v", counts(r), fault.want, r, r.Problems())
			}
		})
	}
}
