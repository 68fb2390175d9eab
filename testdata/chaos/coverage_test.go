package main

import (
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// service is a version of the Knative Service of shop/production/<name>.
func service(name, uid string, version int64, managed, deleted bool) audit.Change {
	object := &unstructured.Unstructured{}
	object.SetAnnotations(map[string]string{"flyte.org/app-id": "shop/production/" + name})
	if managed {
		object.SetLabels(map[string]string{"flyte.org/app-managed": "true"})
	}
	return audit.Change{
		Kind: audit.KindService, Name: name, UID: types.UID(uid), ResourceVersion: strconv.FormatInt(version, 10), Deleted: deleted, Object: object,
	}
}

func TestTruthAt(t *testing.T) {
	changes := []audit.Change{
		service("a", "u1", 10, true, false),
		{Kind: audit.KindRevision, Name: "a-00001", UID: "r1", ResourceVersion: "11"},
		service("a", "u1", 12, false, false),
		service("b", "u2", 13, true, false),
		service("a", "u1", 14, true, false),
		service("b", "u2", 15, true, true),
	}
	for _, test := range []struct {
		revision int64
		want     map[string]appState
	}{
		{9, map[string]appState{}},
		{11, map[string]appState{"shop.production.a": {"u1", 10, false}}},
		{13, map[string]appState{"shop.production.a": {"u1", 12, true}, "shop.production.b": {"u2", 13, false}}},
		{math.MaxInt64, map[string]appState{"shop.production.a": {"u1", 14, false}, "shop.production.b": {"u2", 15, true}}},
	} {
		got := truthAt(changes, test.revision)
		if len(got) != len(test.want) {
			t.Errorf("at %d: got %v, want %v", test.revision, got, test.want)
		}
		for key, want := range test.want {
			if got[key] != want {
				t.Errorf("at %d, %s: got %v, want %v", test.revision, key, got[key], want)
			}
		}
	}
}

func TestStateOf(t *testing.T) {
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	event := func(kind string, headers ...string) audit.Message {
		m := audit.Message{Subject: "flyte.apps.events.shop.production.a." + kind, Header: nats.Header{subjects.CEType: {"x"}, subjects.HeaderUID: {"u1"}}}
		for i := 0; i < len(headers); i += 2 {
			m.Header.Set(headers[i], headers[i+1])
		}
		return m
	}
	for _, test := range []struct {
		name string
		m    audit.Message
		want appState
	}{
		{"an update", event("updated", subjects.HeaderResourceVersion, "12"), appState{"u1", 12, false}},
		{"a delete that was seen", event("deleted", subjects.HeaderResourceVersion, "12", subjects.HeaderDeletedResourceVersion, "13"), appState{"u1", 13, true}},
		{"a delete that was not", event("deleted", subjects.HeaderResourceVersion, "12"), appState{"u1", 0, true}},
	} {
		key, got, ok := stateOf(test.m, names)
		if !ok || key != "shop.production.a" || got != test.want {
			t.Errorf("%s: got %s %v %v, want %v", test.name, key, got, ok, test.want)
		}
	}
	foreign := event("updated", subjects.HeaderResourceVersion, "12")
	foreign.Header.Del(subjects.CEType)
	elsewhere := event("updated")
	elsewhere.Subject = "somewhere"
	for _, m := range []audit.Message{foreign, elsewhere, event("vanished"), {}} {
		if key, got, ok := stateOf(m, names); ok {
			t.Errorf("%s: got %s %v, want nothing", m.Subject, key, got)
		}
	}
}

func TestBehind(t *testing.T) {
	present, gone := appState{"u1", 10, false}, appState{"u1", 20, true}
	told := func(s appState) map[string]appEvent { return map[string]appEvent{"app": {1, s}} }
	for _, test := range []struct {
		name      string
		then, now appState
		events    map[string]appEvent
		want      bool
	}{
		{"nothing is told", present, present, nil, true},
		{"it is told", present, present, told(present), false},
		{"an older version is told", present, present, told(appState{"u1", 9, false}), true},
		{"a newer version is told", present, appState{"u1", 11, false}, told(appState{"u1", 11, false}), false},
		{"the removal is not told", gone, gone, told(present), true},
		{"the removal is told", gone, gone, told(gone), false},
		{"the removal is told, without its version", gone, gone, told(appState{"u1", 0, true}), false},
		{"it was removed since, and that is told", present, gone, told(gone), false},
		{"it was removed since, unseen, and that is told", present, gone, told(appState{"u1", 0, true}), false},
		{"a removal is told, but it is there", present, present, told(appState{"u0", 0, true}), true},
		{"the one before is told to be removed", present, present, told(appState{"u0", 9, true}), true},
		{"it came and went untold", gone, gone, nil, false},
		{"it was there and went untold", present, gone, nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := behind(map[string]appState{"app": test.then}, map[string]appState{"app": test.now}, test.events)
			if (len(got) > 0) != test.want {
				t.Errorf("got %v, want behind: %v", got, test.want)
			}
		})
	}
}

func TestBucketBehind(t *testing.T) {
	entry := func(key, sequence string) audit.Message {
		return audit.Message{
			Subject: subjects.BucketSubject(subjects.DefaultBucket, key),
			Header:  nats.Header{subjects.HeaderEventSequence: {sequence}},
		}
	}
	events := map[string]appEvent{"a.b.missing": {sequence: 3}, "a.b.late": {sequence: 5}, "a.b.right": {sequence: 7}}
	got := bucketBehind([]audit.Message{entry("a.b.late", "4"), entry("a.b.right", "7"), entry("a.b.foreign", "")}, events)
	if want := []string{"a.b.late", "a.b.missing"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
