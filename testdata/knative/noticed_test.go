package knative_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// The comparison of conditions passes what is right, and notices what is not. The audit has tests
// of its own.
func TestConditionsAreCompared(t *testing.T) {
	t.Parallel()
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{
		map[string]any{"type": "ConfigurationsReady", "status": "True", "lastTransitionTime": "2026-01-07T03:01:13Z"},
		map[string]any{"type": "Ready", "status": "Unknown", "reason": "NotYet", "message": "wait", "lastTransitionTime": "2026-01-07T03:01:14Z"},
		map[string]any{"type": "RoutesReady", "status": "Unknown", "lastTransitionTime": "2026-01-07T03:01:14Z"},
	}}}}
	const (
		configuration = `{"deploymentStatus": "DEPLOYMENT_STATUS_DEPLOYING", "message": "Configuration is ready", "lastTransitionTime": "2026-01-07T03:01:13Z"}`
		ready         = `{"deploymentStatus": "DEPLOYMENT_STATUS_PENDING", "message": "NotYet: wait", "lastTransitionTime": "2026-01-07T03:01:14Z"}`
		other         = `{"deploymentStatus": "DEPLOYMENT_STATUS_PENDING", "message": "NotYet", "lastTransitionTime": "2026-01-07T03:01:14Z"}`
		crashing      = `{"deploymentStatus": "DEPLOYMENT_STATUS_PENDING", "message": "NotYet: wait", "lastTransitionTime": "2026-01-07T03:01:14Z", "substate": "CRASH_LOOP"}`
		later         = `{"deploymentStatus": "DEPLOYMENT_STATUS_PENDING", "message": "NotYet: wait", "lastTransitionTime": "2026-01-07T03:01:15Z"}`
	)
	for _, test := range []struct {
		name, conditions, word string
		reason                 string
		stopped                bool
		want                   int
	}{
		{name: "right", conditions: configuration + "," + ready, word: "PENDING"},
		{name: "another word", conditions: configuration + "," + ready, word: "ACTIVE", want: 1},
		{name: "one missing", conditions: ready, word: "PENDING", want: 1},
		{name: "another order", conditions: ready + "," + configuration, word: "PENDING", want: 1},
		{name: "another message", conditions: configuration + "," + other, word: "PENDING", want: 1},
		{name: "another time", conditions: configuration + "," + later, word: "PENDING", want: 1},
		{name: "a reason", conditions: configuration + "," + crashing, word: "PENDING", reason: "CRASH_LOOP"},
		{name: "another reason", conditions: configuration + "," + crashing, word: "PENDING", reason: "OOM_KILLED", want: 1},
		{name: "a reason in the header alone", conditions: configuration + "," + ready, word: "PENDING", reason: "CRASH_LOOP", want: 1},
		{name: "a reason in the App alone", conditions: configuration + "," + crashing, word: "PENDING", want: 1},
		{name: "stopped", conditions: configuration + "," + ready, word: "PENDING", stopped: true, want: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			held := object.DeepCopy()
			if test.stopped {
				held.SetLabels(map[string]string{"flyte.org/app-stopped": "true"})
			}
			in := audit.Input{
				Subjects: names,
				Changes:  []audit.Change{{Kind: audit.KindService, UID: "u", ResourceVersion: "7", Object: held}},
				Events: []audit.Message{{
					Subject: "flyte.apps.events.p.d.a.updated", Sequence: 1,
					Header: nats.Header{
						subjects.HeaderUID: {"u"}, subjects.HeaderResourceVersion: {"7"}, subjects.HeaderAppStatus: {test.word},
						subjects.HeaderReason:      {test.reason},
						subjects.CEDataContentType: {subjects.ContentTypeJSON},
					},
					Data: []byte(`{"updateEvent": {"updatedApp": {"status": {"conditions": [` + test.conditions + `]}}}}`),
				}},
			}
			if err := appv1.Decode(in.Events[0].Data, subjects.ContentTypeJSON, &appv1.WatchResponse{}); err != nil {
				t.Fatal(err)
			}
			if got := conditionProblems(in); len(got) != test.want {
				t.Errorf("got %d problems, want %d: %q", len(got), test.want, got)
			}
		})
	}
}
