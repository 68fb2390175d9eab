package audit_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

func TestTruncatedEntry(t *testing.T) {
	without := func(w *world, m *audit.Message, spec, status bool) {
		app := &appv1.App{}
		if err := protojson.Unmarshal(m.Data, app); err != nil {
			t.Fatal(err)
		}
		if spec {
			app.Spec = nil
		}
		if status {
			app.Status = nil
		}
		m.Data = w.encode(app)
	}
	for _, test := range []struct {
		name  string
		event string // what the last event leaves out
		entry func(*world, *audit.Message)
		want  string
	}{
		{name: "the entry alone", entry: func(w *world, m *audit.Message) {
			without(w, m, true, false)
			m.Header.Set(subjects.HeaderTruncated, "spec")
		}},
		{name: "the entry alone, the status too", entry: func(w *world, m *audit.Message) {
			without(w, m, true, true)
			m.Header.Set(subjects.HeaderTruncated, "spec,status")
		}},
		{name: "without a word", entry: func(w *world, m *audit.Message) { without(w, m, true, false) }, want: "drift"},
		{name: "a word and nothing left out", entry: func(_ *world, m *audit.Message) { m.Header.Set(subjects.HeaderTruncated, "spec") }, want: "drift"},
		{name: "more than it says", entry: func(w *world, m *audit.Message) {
			without(w, m, true, true)
			m.Header.Set(subjects.HeaderTruncated, "spec")
		}, want: "drift"},
		{name: "old_app, which no entry has", event: "old_app", entry: func(*world, *audit.Message) {}},
		{name: "as the event", event: "old_app,spec", entry: func(*world, *audit.Message) {}},
		{name: "the event alone, and the entry does not say so", event: "old_app,spec", entry: func(_ *world, m *audit.Message) { m.Header.Del(subjects.HeaderTruncated) }, want: "drift"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := story(t)
			w.steps[w.at("edit-9")].truncated = test.event
			in := w.render()
			test.entry(w, entryOf(&in, "checkout"))
			w.wants(t, audit.Check(in), strings.Fields(test.want)...)
		})
	}
}

// TestWholeAfterTruncated: what follows an event that left its spec out may show
// the whole App, or what was told.
func TestWholeAfterTruncated(t *testing.T) {
	w := story(t)
	i := w.at("edit-4")
	w.steps[i].truncated = "old_app,spec"
	in := w.render()
	w.wants(t, audit.Check(in)) // old_app as it was told
	j := w.at("edit-4b")
	app, err := kservice.Convert(w.steps[i].service, w.steps[i].rev, in.App)
	if err != nil {
		t.Fatal(err)
	}
	payload := w.decode(in.Events[j].Data)
	payload.GetUpdateEvent().OldApp = app
	in.Events[j].Data = w.encode(payload)
	w.wants(t, audit.Check(in))
	payload.GetUpdateEvent().OldApp.Metadata = nil
	in.Events[j].Data = w.encode(payload)
	w.wants(t, audit.Check(in), "drift")
}
