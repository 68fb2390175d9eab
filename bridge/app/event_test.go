package app

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// The messages on the wire are a contract: a golden file each.
func TestEventGolden(t *testing.T) {
	e := testEncoder()
	first, err := e.Encode(testID, NewUpsert(State{Service: testService("100", "Unknown")}, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	first.Record.Sequence = 7
	ready := NewUpsert(State{Service: testService("105", "True"), Revision: testRevision("104", 2)}, false)
	ready.Merged = 3
	second, err := e.Encode(testID, ready, first.Record)
	if err != nil {
		t.Fatal(err)
	}
	second.Record.Sequence = 12
	gone := &Change{Remove: true, DeletedVersion: "110", ChangedAt: time.Date(2026, 3, 1, 13, 0, 0, 5000, time.UTC)}
	third, err := e.Encode(testID, gone, second.Record)
	if err != nil {
		t.Fatal(err)
	}
	fourth, err := e.Encode(testID, MissedDelete(), second.Record)
	if err != nil {
		t.Fatal(err)
	}
	for name, msg := range map[string]*nats.Msg{
		"created": first.Msg, "updated": second.Msg, "deleted": third.Msg, "deleted-missed": fourth.Msg,
	} {
		t.Run(name, func(t *testing.T) {
			apptest.Golden(t, name+".txt", apptest.Render(msg))
		})
	}
}

// The same change after the same record gives the same bytes, always.
func TestEventIsDeterministic(t *testing.T) {
	e := testEncoder()
	prev := &Record{Kind: subjects.Created, Sequence: 4, UID: "u1", ResourceVersion: "90", App: encoded(&appv1.App{})}
	var first []byte
	for range 200 {
		ev, err := e.Encode(testID, NewUpsert(State{Service: testService("100", "True"), Revision: testRevision("99", 1)}, false), prev)
		if err != nil {
			t.Fatal(err)
		}
		got := apptest.Render(ev.Msg)
		if first == nil {
			first = got
		}
		if !bytes.Equal(got, first) {
			t.Fatalf("got\n%s\nthe first time it was\n%s", got, first)
		}
	}
}

// What does not fit loses old_app first, then the spec; a delete always fits.
func TestEventTooLarge(t *testing.T) {
	big := testService("100", "True", func(svc *kservice.Service) { svc.Status.Conditions[0].Message = strings.Repeat("m", 3000) })
	old := &Record{
		Kind: subjects.Created, Sequence: 4, UID: "u1", ResourceVersion: "90",
		App: encoded(&appv1.App{Status: &appv1.Status{Conditions: []*appv1.Condition{{Message: strings.Repeat("o", 4000)}}}}),
	}
	for _, test := range []struct {
		name    string
		maxSize int
		change  *Change
		prev    *Record
		want    string // Flyte-Truncated
		err     error
	}{
		{"fits", 100_000, NewUpsert(State{Service: big}, false), old, "", nil},
		{"without old_app", 6000, NewUpsert(State{Service: big}, false), old, "old_app", nil},
		{"without the spec", 4200, NewUpsert(State{Service: big}, false), old, "old_app,spec", nil},
		{"does not fit", 2000, NewUpsert(State{Service: big}, false), old, "", ErrTooLarge},
		{"a create", 2000, NewUpsert(State{Service: big}, true), nil, "", ErrTooLarge},
		{"a delete", 2000, &Change{Remove: true}, old, "spec,status", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := testEncoder()
			e.MaxSize = func() int { return test.maxSize }
			ev, err := e.Encode(testID, test.change, test.prev)
			if !errors.Is(err, test.err) {
				t.Fatalf("got error %v, want %v", err, test.err)
			}
			if err != nil {
				return
			}
			if got := ev.Msg.Header.Get(subjects.HeaderTruncated); got != test.want {
				t.Errorf("truncated %q, want %q (%d bytes)", got, test.want, ev.Msg.Size())
			}
			if got := ev.Msg.Size(); got > test.maxSize {
				t.Errorf("%d bytes, limit %d", got, test.maxSize)
			}
			r, err := ReadEvent(ev.Record.Kind, 5, ev.Msg.Header, ev.Msg.Data)
			if err != nil {
				t.Fatal(err)
			}
			got, errGot := r.App.App()
			want, errWant := ev.Record.App.App()
			if !proto.Equal(got, want) || errGot != nil || errWant != nil {
				t.Errorf("read back %v (%v), want %v (%v)", got, errGot, want, errWant)
			}
		})
	}
}

// An App that JSON cannot express goes out in binary, and says so.
func TestEventWithoutJSONForm(t *testing.T) {
	svc := testService("100", "True", func(svc *kservice.Service) {
		svc.Annotations[kservice.AnnotationSpec] = "EhISEAoOCgF4EgkRAQAAAAAA+H8=" // a NaN in the pod's Struct
	})
	ev, err := testEncoder().Encode(testID, NewUpsert(State{Service: svc}, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := ev.Msg.Header.Get(subjects.CEDataContentType); got != subjects.ContentTypeProtobuf {
		t.Errorf("content type %q, want %q", got, subjects.ContentTypeProtobuf)
	}
	ev.Record.Sequence = 3
	r, err := ReadEvent(subjects.Created, 3, ev.Msg.Header, ev.Msg.Data)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := (State{Service: svc}).App(); err != nil || !SameApp(r.App, want, r.ContentType) {
		t.Error("the App of the state is not recognized")
	}
}

// Whatever stands in the stream or the bucket, reading it does not panic, and
// what is accepted is complete.
func FuzzRecord(f *testing.F) {
	ev, err := testEncoder().Encode(testID, NewUpsert(State{Service: testService("100", "True")}, true), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("u1", "100", subjects.Created.Type(), subjects.ContentTypeJSON, "7", "", ev.Msg.Data)
	f.Add("u1", "100", subjects.Deleted.Type(), subjects.ContentTypeProtobuf, "7", "DEL", []byte{})
	f.Add("", "", "", "", "", "", []byte("{"))
	f.Add("u", "1", subjects.Updated.Type(), subjects.ContentTypeProtobuf, "-1", "", []byte{0x0a, 0xff})
	f.Fuzz(func(t *testing.T, uid, version, kind, form, sequence, op string, data []byte) {
		h := nats.Header{}
		for name, value := range map[string]string{
			subjects.HeaderUID: uid, subjects.HeaderResourceVersion: version, subjects.CEType: kind,
			subjects.CEDataContentType: form, subjects.HeaderEventSequence: sequence, subjects.HeaderKVOperation: op,
		} {
			if value != "" {
				h.Set(name, value)
			}
		}
		for _, k := range []subjects.EventKind{subjects.Created, subjects.Updated, subjects.Deleted} {
			if r, err := ReadEvent(k, 1, h, data); err == nil && (r.App.IsZero() || r.UID == "" || r.ResourceVersion == "") {
				t.Errorf("accepted %+v", r)
			}
		}
		if r, err := ReadEntry(h, data); err == nil && (r.UID == "" || r.Sequence == 0 || (r.Kind != subjects.Deleted) == r.App.IsZero()) {
			t.Errorf("accepted %+v", r)
		}
	})
}
