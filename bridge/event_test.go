package bridge

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

var update = flag.Bool("update", false, "write the golden files anew")

func testEncoder() *encoder {
	s, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		panic(err)
	}
	return &encoder{
		subjects: s, source: subjects.Source("test"), stream: subjects.DefaultStream,
		form: subjects.ContentTypeJSON, app: kservice.Config{BaseDomain: "apps.example.com"}, maxSize: func() int { return 1 << 20 },
	}
}

var testID = subjects.AppID{Project: "vision", Domain: "development", Name: "stream.lit"}

// testService is version of an object; status is that of its Ready condition.
func testService(uid, version, status string) *kservice.Service {
	created := metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	return &kservice.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: "stream.lit-vision-development", Namespace: "flyte", UID: types.UID(uid), ResourceVersion: version, Generation: 3,
			CreationTimestamp: created,
			Labels:            map[string]string{kservice.LabelManaged: "true"},
			Annotations: map[string]string{
				kservice.AnnotationAppID: "vision/development/stream.lit",
				kservice.AnnotationOrg:   "acme",
				kservice.AnnotationSpec:  "Ch8KGGdoY3IuaW8vYWNtZS9oZWxsbzoxLjQuMjoDCJA/",
			},
		},
		Status: kservice.ServiceStatus{
			LatestReadyRevisionName: "rev-1",
			Conditions: []kservice.Condition{{
				Type: "Ready", Status: status, Reason: "Because", Message: "of that",
				LastTransitionTime: kservice.Time{Time: created.Add(90 * time.Second)},
			}},
		},
	}
}

func testRevision(version string, replicas int32) *kservice.Revision {
	return &kservice.Revision{
		ObjectMeta: metav1.ObjectMeta{Name: "rev-1", Namespace: "flyte", ResourceVersion: version},
		Status:     kservice.RevisionStatus{ActualReplicas: &replicas},
	}
}

// render is a message as the golden files show it.
func render(m *nats.Msg) []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, m.Subject)
	names := make([]string, 0, len(m.Header))
	for name := range m.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(m.Header[name], " | "))
	}
	fmt.Fprintf(&b, "\n%s\n", m.Data)
	return b.Bytes()
}

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
	b := &bucket{name: subjects.DefaultBucket, form: subjects.ContentTypeJSON}
	entry, err := b.entry(testID, second.record, second.msg.Header)
	if err != nil {
		t.Fatal(err)
	}
	third.record.sequence = 13
	marker, err := b.entry(testID, third.record, third.msg.Header)
	if err != nil {
		t.Fatal(err)
	}
	for name, msg := range map[string]*nats.Msg{
		"created": first.msg, "updated": second.msg, "deleted": third.msg, "deleted-missed": fourth.msg,
		"entry": entry, "marker": marker,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("..", "testdata", "golden", name+".txt")
			got := render(msg)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
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
		got := render(ev.msg)
		if first == nil {
			first = got
		}
		if !bytes.Equal(got, first) {
			t.Fatalf("got\n%s\nthe first time it was\n%s", got, first)
		}
	}
}

// The status headers of an app's life. What follows is made from what is read back, from the event
// or from its bucket entry, as after a restart.
func TestEventStatus(t *testing.T) {
	stopped := testService("u1", "103", "True")
	stopped.Labels[kservice.LabelStopped] = "true"
	silent := testService("u1", "104", "True")
	silent.Status.Conditions = nil
	none := [2]string{}
	for _, from := range []string{"memory", "event", "entry"} {
		t.Run(from, func(t *testing.T) {
			e, b := testEncoder(), &bucket{name: subjects.DefaultBucket, form: subjects.ContentTypeJSON}
			var prev *record
			for i, step := range []struct {
				name   string
				change *change
				old    bool // by a version of appbridge without these headers
				want   [2]string
			}{
				{"created", newUpsert(state{service: testService("u1", "100", "Unknown")}, true), false, [2]string{"PENDING", ""}},
				{"ready", newUpsert(state{service: testService("u1", "101", "True")}, false), false, [2]string{"ACTIVE", "PENDING"}},
				{"failed", newUpsert(state{service: testService("u1", "102", "False")}, false), false, [2]string{"FAILED", "ACTIVE"}},
				{"stopped", newUpsert(state{service: stopped}, false), false, [2]string{"STOPPED", "FAILED"}},
				{"without conditions", newUpsert(state{service: silent}, false), false, [2]string{"", "STOPPED"}},
				{"ready after none", newUpsert(state{service: testService("u1", "105", "True")}, false), false, [2]string{"ACTIVE", ""}},
				{"the same again", newUpsert(state{service: testService("u1", "106", "True")}, false), false, [2]string{"ACTIVE", "ACTIVE"}},
				{"deleted", &change{remove: true, deletedVersion: "107"}, false, [2]string{"", "ACTIVE"}},
				{"created after a delete", newUpsert(state{service: testService("u2", "108", "False")}, true), false, [2]string{"FAILED", ""}},
				{"by an older version", newUpsert(state{service: testService("u2", "109", "True")}, false), true, none},
				{"after an older version", newUpsert(state{service: testService("u2", "110", "True")}, false), false, [2]string{"ACTIVE", ""}},
				{"by an older version again", newUpsert(state{service: testService("u2", "111", "True")}, false), true, none},
				{"deleted after an older version", missedDelete(), false, none},
			} {
				ev, err := e.encode(testID, step.change, prev)
				if err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				if step.old {
					ev.msg.Header.Del(subjects.HeaderAppStatus)
					ev.msg.Header.Del(subjects.HeaderPreviousAppStatus)
				}
				sequence := uint64(i + 1)
				next, err := recordOfEvent(ev.record.kind, sequence, ev.msg.Header, ev.msg.Data)
				if err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				entry, err := b.entry(testID, next, ev.msg.Header)
				if err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				for what, h := range map[string]nats.Header{"event": ev.msg.Header, "entry": entry.Header} {
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
					if prev, err = recordOfEntry(entry.Header, entry.Data); err != nil {
						t.Fatalf("%s: %v", step.name, err)
					}
				default:
					prev = ev.record
					prev.sequence = sequence
				}
			}
		})
	}
}

// A state that an older version of appbridge published, without a status, is published: an upgrade
// alone is no change, and the bucket's entry is what its event is.
func TestStatusMissingIsNoChange(t *testing.T) {
	e, now := testEncoder(), state{service: testService("u1", "100", "True"), revision: testRevision("99", 1)}
	ev, err := e.encode(testID, newUpsert(now, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	ev.msg.Header.Del(subjects.HeaderAppStatus)
	r, err := recordOfEvent(subjects.Created, 7, ev.msg.Header, ev.msg.Data)
	if err != nil {
		t.Fatal(err)
	}
	if r.status != "" {
		t.Fatalf("status %q: this test tests nothing", r.status)
	}
	b := &bucket{name: subjects.DefaultBucket, form: e.form}
	entry, err := b.entry(testID, r, ev.msg.Header)
	if err != nil {
		t.Fatal(err)
	}
	inBucket, err := recordOfEntry(entry.Header, entry.Data)
	if err != nil {
		t.Fatal(err)
	}
	for name, published := range map[string]*record{"event": r, "entry": inBucket} {
		changes, _ := reconcile(map[subjects.AppID]*record{testID: published}, map[subjects.AppID]state{testID: now}, e.app,
			func(string) bool { return true })
		if len(changes) > 0 {
			t.Errorf("%s: %d changes are owed, want none", name, len(changes))
		}
	}
	m := b.mismatch(testID, &lastEvent{record: r, header: ev.msg.Header}, &held{record: inBucket, header: entry.Header}, time.Now())
	if m != nil {
		t.Errorf("the entry does not show its event: %s", m.detail)
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
	entry, err := (&bucket{name: "b", form: subjects.ContentTypeJSON}).entry(testID, r, ev.msg.Header)
	if err != nil {
		t.Fatal(err)
	}
	if got := entry.Header.Get(subjects.CEDataContentType); got != subjects.ContentTypeProtobuf {
		t.Errorf("entry has content type %q, want %q", got, subjects.ContentTypeProtobuf)
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
