package bridge

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
	first, err := e.encode(testID, newUpsert(state{service: testService("u1", "100", "Unknown")}, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	first.record.sequence = 7
	ready := newUpsert(state{service: testService("u1", "105", "True"), revision: testRevision("104", 2)}, false)
	ready.merged = 3
	second, err := e.encode(testID, ready, first.record)
	if err != nil {
		t.Fatal(err)
	}
	second.record.sequence = 12
	gone := &change{remove: true, deletedVersion: "110", changedAt: time.Date(2026, 3, 1, 13, 0, 0, 5000, time.UTC)}
	third, err := e.encode(testID, gone, second.record)
	if err != nil {
		t.Fatal(err)
	}
	fourth, err := e.encode(testID, missedDelete(), second.record)
	if err != nil {
		t.Fatal(err)
	}
	for name, msg := range map[string]*nats.Msg{
		"created": first.msg, "updated": second.msg, "deleted": third.msg, "deleted-missed": fourth.msg,
	} {
		t.Run(name, func(t *testing.T) {
			apptest.Golden(t, name+".txt", apptest.Render(msg))
		})
	}
}

// The same change after the same record gives the same bytes, always.
func TestEventIsDeterministic(t *testing.T) {
	e := testEncoder()
	prev := &record{kind: subjects.Created, sequence: 4, uid: "u1", resourceVersion: "90", app: &appv1.App{}}
	var first []byte
	for range 200 {
		ev, err := e.encode(testID, newUpsert(state{service: testService("u1", "100", "True"), revision: testRevision("99", 1)}, false), prev)
		if err != nil {
			t.Fatal(err)
		}
		got := apptest.Render(ev.msg)
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
	big := testService("u1", "100", "True")
	big.Status.Conditions[0].Message = strings.Repeat("m", 3000)
	old := &record{
		kind: subjects.Created, sequence: 4, uid: "u1", resourceVersion: "90",
		app: &appv1.App{Status: &appv1.Status{Conditions: []*appv1.Condition{{Message: strings.Repeat("o", 4000)}}}},
	}
	for _, test := range []struct {
		name    string
		maxSize int
		change  *change
		prev    *record
		want    string // Flyte-Truncated
		err     error
	}{
		{"fits", 100_000, newUpsert(state{service: big}, false), old, "", nil},
		{"without old_app", 6000, newUpsert(state{service: big}, false), old, "old_app", nil},
		{"without the spec", 4100, newUpsert(state{service: big}, false), old, "old_app,spec", nil},
		{"does not fit", 2000, newUpsert(state{service: big}, false), old, "", errTooLarge},
		{"a create", 2000, newUpsert(state{service: big}, true), nil, "", errTooLarge},
		{"a delete", 2000, &change{remove: true}, old, "spec,status", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := testEncoder()
			e.maxSize = func() int { return test.maxSize }
			ev, err := e.encode(testID, test.change, test.prev)
			if !errors.Is(err, test.err) {
				t.Fatalf("got error %v, want %v", err, test.err)
			}
			if err != nil {
				return
			}
			if got := ev.msg.Header.Get(subjects.HeaderTruncated); got != test.want {
				t.Errorf("truncated %q, want %q (%d bytes)", got, test.want, ev.msg.Size())
			}
			if got := ev.msg.Size(); got > test.maxSize {
				t.Errorf("%d bytes, limit %d", got, test.maxSize)
			}
			r, err := recordOfEvent(ev.record.kind, 5, ev.msg.Header, ev.msg.Data)
			if err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(r.app, ev.record.app) {
				t.Errorf("read back %v, want %v", r.app, ev.record.app)
			}
		})
	}
}

// An App that JSON cannot express goes out in binary, and says so.
func TestEventWithoutJSONForm(t *testing.T) {
	svc := testService("u1", "100", "True")
	svc.Annotations[kservice.AnnotationSpec] = "EhISEAoOCgF4EgkRAQAAAAAA+H8=" // a NaN in the pod's Struct
	ev, err := testEncoder().encode(testID, newUpsert(state{service: svc}, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := ev.msg.Header.Get(subjects.CEDataContentType); got != subjects.ContentTypeProtobuf {
		t.Errorf("content type %q, want %q", got, subjects.ContentTypeProtobuf)
	}
	ev.record.sequence = 3
	r, err := recordOfEvent(subjects.Created, 3, ev.msg.Header, ev.msg.Data)
	if err != nil {
		t.Fatal(err)
	}
	if !isPublished(state{service: svc}, r, kservice.Config{BaseDomain: "apps.example.com"}) {
		t.Error("the state is not recognized as published")
	}
}

// Whatever stands in the stream or the bucket, reading it does not panic, and
// what is accepted is complete.
func FuzzRecord(f *testing.F) {
	ev, err := testEncoder().encode(testID, newUpsert(state{service: testService("u1", "100", "True")}, true), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("u1", "100", subjects.Created.Type(), subjects.ContentTypeJSON, "7", "", ev.msg.Data)
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
			if r, err := recordOfEvent(k, 1, h, data); err == nil && (r.app == nil || r.uid == "" || r.resourceVersion == "") {
				t.Errorf("accepted %+v", r)
			}
		}
		if r, err := recordOfEntry(h, data); err == nil && (r.uid == "" || r.sequence == 0 || (r.kind != subjects.Deleted) != (r.app != nil)) {
			t.Errorf("accepted %+v", r)
		}
	})
}
