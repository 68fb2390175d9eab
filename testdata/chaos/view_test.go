package main

import (
	"testing"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// Whatever stream or bucket say wrongly of an app is seen.
func TestTruthJudge(t *testing.T) {
	app := &appv1.App{Status: &appv1.Status{CurrentReplicas: 2}}
	there := truth{exists: true, uid: "u1", version: "7", app: app}
	gone := truth{}
	const form = "application/json"
	message := func(m proto.Message, header ...string) *audit.Message {
		data, _, err := appv1.Encode(m, form)
		if err != nil {
			t.Fatal(err)
		}
		h := nats.Header{subjects.CEType: {subjects.Updated.Type()}, subjects.CEDataContentType: {form}, subjects.HeaderUID: {"u1"}, subjects.HeaderResourceVersion: {"7"}}
		for i := 0; i < len(header); i += 2 {
			h[header[i]] = []string{header[i+1]}
		}
		return &audit.Message{Sequence: 40, Header: h, Data: data}
	}
	other := &appv1.App{Status: &appv1.Status{CurrentReplicas: 42}}
	event := message(apptest.Updated(app, nil))
	entry := message(app, subjects.HeaderEventSequence, "40")
	marker := message(app, subjects.HeaderEventSequence, "40", subjects.HeaderKVOperation, subjects.KVDelete)
	deleted := message(apptest.Deleted(app), subjects.CEType, subjects.Deleted.Type())
	foreign := &audit.Message{Sequence: 41, Header: nats.Header{}}
	for _, test := range []struct {
		name  string
		truth truth
		shown shown
		owed  bool
		wrong bool
	}{
		{name: "right", truth: there, shown: shown{event, entry}},
		{name: "an older event", truth: there, shown: shown{message(apptest.Updated(app, nil), subjects.HeaderResourceVersion, "6"), entry}, wrong: true},
		{name: "of another object", truth: there, shown: shown{message(apptest.Updated(app, nil), subjects.HeaderUID, "u0"), entry}, wrong: true},
		{name: "another count of replicas in the event", truth: there, shown: shown{message(apptest.Updated(other, nil)), entry}, wrong: true},
		{name: "another body in the entry", truth: there, shown: shown{event, message(other, subjects.HeaderEventSequence, "40")}, wrong: true},
		{name: "an entry that was truncated", truth: there, shown: shown{event, message(other, subjects.HeaderEventSequence, "40", subjects.HeaderTruncated, "spec")}},
		{name: "an older entry", truth: there, shown: shown{event, message(app, subjects.HeaderEventSequence, "39")}, wrong: true},
		{name: "an entry of an older version", truth: there, shown: shown{nil, message(app, subjects.HeaderEventSequence, "40", subjects.HeaderResourceVersion, "6")}, wrong: true},
		{name: "no entry", truth: there, shown: shown{event, nil}, wrong: true},
		{name: "a marker", truth: there, shown: shown{event, marker}, wrong: true},
		{name: "deleted by the stream", truth: there, shown: shown{deleted, entry}, wrong: true},
		{name: "no event, by retention", truth: there, shown: shown{nil, entry}},
		{name: "no event, by a hand", truth: there, shown: shown{nil, entry}, owed: true, wrong: true},
		{name: "a foreign message", truth: there, shown: shown{foreign, entry}},
		{name: "a foreign message in place of the event", truth: there, shown: shown{foreign, entry}, owed: true, wrong: true},
		{name: "gone", truth: gone, shown: shown{deleted, marker}},
		{name: "gone, never there", truth: gone},
		{name: "gone, and no delete", truth: gone, shown: shown{event, entry}, wrong: true},
		{name: "an entry of what never was", truth: gone, shown: shown{nil, entry}, wrong: true},
		{name: "an entry of what is gone", truth: gone, shown: shown{deleted, entry}, wrong: true},
	} {
		if got := test.truth.judge(test.shown, test.owed); (got != "") != test.wrong {
			t.Errorf("%s: got %q, want something: %v", test.name, got, test.wrong)
		}
	}
}

// The view follows an app over its changes, as a bridge converts them.
func TestView(t *testing.T) {
	const key = "shop.production.checkout"
	v := newView(nil, nil)
	service := func(version, label string) audit.Change {
		return audit.Change{Kind: audit.KindService, Name: "checkout", Object: &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{
				"namespace": "flyte", "name": "checkout", "uid": "u1", "resourceVersion": version,
				"labels":      map[string]any{kservice.LabelManaged: label},
				"annotations": map[string]any{kservice.AnnotationAppID: "shop/production/checkout"},
			},
			"status": map[string]any{"latestReadyRevisionName": "checkout-1"},
		}}}
	}
	revision := audit.Change{Kind: audit.KindRevision, Name: "checkout-1", Object: &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": "flyte", "name": "checkout-1", "resourceVersion": "5"},
		"status":   map[string]any{"actualReplicas": int64(3)},
	}}}
	v.take(service("4", "true"))
	v.take(revision)
	got, err := v.truthOf(key)
	if err != nil || !got.exists || got.uid != "u1" || got.version != "4" || got.app.GetStatus().GetCurrentReplicas() != 3 {
		t.Errorf("got %+v, %v", got, err)
	}
	if got := v.newest(audit.KindRevision, "checkout-1"); got != 5 {
		t.Errorf("got version %d, want 5", got)
	}
	if got, want := v.owner(audit.KindRevision, "checkout-1"), key; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := v.owner(audit.KindRevision, "checkout-2"); got != "" {
		t.Errorf("got %q of a Revision that no app shows", got)
	}
	v.take(service("6", ""))
	if got, err := v.truthOf(key); err != nil || got.exists {
		t.Errorf("without its label: got %+v, %v", got, err)
	}
	gone := service("7", "true")
	gone.Deleted = true
	v.take(service("7", "true"))
	v.take(gone)
	if got, err := v.truthOf(key); err != nil || got.exists {
		t.Errorf("deleted: got %+v, %v", got, err)
	}
}
