package bridge

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// The entries of the bucket are a contract: a golden file each.
func TestEntryGolden(t *testing.T) {
	e := testEncoder()
	first, err := e.Encode(testID, app.NewUpsert(app.State{Service: testService("u1", "100", "Unknown")}, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	first.Record.Sequence = 7
	ready := app.NewUpsert(app.State{Service: testService("u1", "105", "True"), Revision: testRevision("104", 2)}, false)
	ready.Merged = 3
	second, err := e.Encode(testID, ready, first.Record)
	if err != nil {
		t.Fatal(err)
	}
	second.Record.Sequence = 12
	gone := &app.Change{Remove: true, DeletedVersion: "110", ChangedAt: time.Date(2026, 3, 1, 13, 0, 0, 5000, time.UTC)}
	third, err := e.Encode(testID, gone, second.Record)
	if err != nil {
		t.Fatal(err)
	}
	b := &store.Bucket{Entries: app.Entries{Name: subjects.DefaultBucket, ContentType: subjects.ContentTypeJSON}}
	entry, err := b.Entry(testID, second.Record, second.Msg.Header)
	if err != nil {
		t.Fatal(err)
	}
	third.Record.Sequence = 13
	marker, err := b.Entry(testID, third.Record, third.Msg.Header)
	if err != nil {
		t.Fatal(err)
	}
	for name, msg := range map[string]*nats.Msg{
		"entry": entry, "marker": marker,
	} {
		t.Run(name, func(t *testing.T) {
			apptest.Golden(t, name+".txt", apptest.Render(msg))
		})
	}
}

// The status headers of an app's life. What follows is made from what is read back, from the event
// or from its bucket entry, as after a restart.
func TestEventStatus(t *testing.T) {
	stopped := testService("u1", "103", "True", func(svc *kservice.Service) { svc.Labels[kservice.LabelStopped] = "true" })
	silent := testService("u1", "104", "True", func(svc *kservice.Service) { svc.Status.Conditions = nil })
	none := [2]string{}
	for _, from := range []string{"memory", "event", "entry"} {
		t.Run(from, func(t *testing.T) {
			e, b := testEncoder(), &store.Bucket{Entries: app.Entries{Name: subjects.DefaultBucket, ContentType: subjects.ContentTypeJSON}}
			var prev *app.Record
			for i, step := range []struct {
				name   string
				change *app.Change
				old    bool // by a version of appbridge without these headers
				want   [2]string
			}{
				{"created", app.NewUpsert(app.State{Service: testService("u1", "100", "Unknown")}, true), false, [2]string{"PENDING", ""}},
				{"ready", app.NewUpsert(app.State{Service: testService("u1", "101", "True")}, false), false, [2]string{"ACTIVE", "PENDING"}},
				{"failed", app.NewUpsert(app.State{Service: testService("u1", "102", "False")}, false), false, [2]string{"FAILED", "ACTIVE"}},
				{"stopped", app.NewUpsert(app.State{Service: stopped}, false), false, [2]string{"STOPPED", "FAILED"}},
				{"without conditions", app.NewUpsert(app.State{Service: silent}, false), false, [2]string{"", "STOPPED"}},
				{"ready after none", app.NewUpsert(app.State{Service: testService("u1", "105", "True")}, false), false, [2]string{"ACTIVE", ""}},
				{"the same again", app.NewUpsert(app.State{Service: testService("u1", "106", "True")}, false), false, [2]string{"ACTIVE", "ACTIVE"}},
				{"deleted", &app.Change{Remove: true, DeletedVersion: "107"}, false, [2]string{"", "ACTIVE"}},
				{"created after a delete", app.NewUpsert(app.State{Service: testService("u2", "108", "False")}, true), false, [2]string{"FAILED", ""}},
				{"by an older version", app.NewUpsert(app.State{Service: testService("u2", "109", "True")}, false), true, none},
				{"after an older version", app.NewUpsert(app.State{Service: testService("u2", "110", "True")}, false), false, [2]string{"ACTIVE", ""}},
				{"by an older version again", app.NewUpsert(app.State{Service: testService("u2", "111", "True")}, false), true, none},
				{"deleted after an older version", app.MissedDelete(), false, none},
			} {
				ev, err := e.Encode(testID, step.change, prev)
				if err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				if step.old {
					ev.Msg.Header.Del(subjects.HeaderAppStatus)
					ev.Msg.Header.Del(subjects.HeaderPreviousAppStatus)
				}
				sequence := uint64(i + 1)
				next, err := app.ReadEvent(ev.Record.Kind, sequence, ev.Msg.Header, ev.Msg.Data)
				if err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				entry, err := b.Entry(testID, next, ev.Msg.Header)
				if err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				for what, h := range map[string]nats.Header{"event": ev.Msg.Header, "entry": entry.Header} {
					for j, name := range []string{subjects.HeaderAppStatus, subjects.HeaderPreviousAppStatus} {
						var want []string
						if step.want[j] != "" {
							want = []string{step.want[j]}
						}
						if got := h[name]; !slices.Equal(got, want) {
							t.Errorf("%s: %s header %s is %q, want %q", step.name, what, name, got, want)
						}
					}
				}
				switch {
				case step.old || from == "event":
					prev = next
				case from == "entry":
					if prev, err = app.ReadEntry(entry.Header, entry.Data); err != nil {
						t.Fatalf("%s: %v", step.name, err)
					}
				default:
					prev = ev.Record
					prev.Sequence = sequence
				}
			}
		})
	}
}

// An App that JSON cannot express has a binary entry.
func TestEntryWithoutJSONForm(t *testing.T) {
	svc := testService("u1", "100", "True", func(svc *kservice.Service) {
		svc.Annotations[kservice.AnnotationSpec] = "EhISEAoOCgF4EgkRAQAAAAAA+H8=" // a NaN in the pod's Struct
	})
	ev, err := testEncoder().Encode(testID, app.NewUpsert(app.State{Service: svc}, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := app.ReadEvent(subjects.Created, 3, ev.Msg.Header, ev.Msg.Data)
	if err != nil {
		t.Fatal(err)
	}
	entry, err := (&store.Bucket{Entries: app.Entries{Name: "b", ContentType: subjects.ContentTypeJSON}}).Entry(testID, r, ev.Msg.Header)
	if err != nil {
		t.Fatal(err)
	}
	if got := entry.Header.Get(subjects.CEDataContentType); got != subjects.ContentTypeProtobuf {
		t.Errorf("entry has content type %q, want %q", got, subjects.ContentTypeProtobuf)
	}
}
