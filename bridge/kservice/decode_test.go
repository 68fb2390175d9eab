package kservice_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/appbridge/appbridge/bridge/kservice"
)

func TestDecodeServiceToleratesBadValues(t *testing.T) {
	ready := `{"type":"Ready","status":"True","lastTransitionTime":"2026-01-02T03:04:05.5+01:00"}`
	good := kservice.Condition{
		Type: "Ready", Status: "True",
		LastTransitionTime: kservice.Time{Time: time.Date(2026, 1, 2, 2, 4, 5, 5e8, time.UTC)},
	}
	tests := []struct {
		name string
		rest string
		want kservice.ServiceStatus
	}{
		{
			"good", `"status":{"conditions":[` + ready + `],"latestReadyRevisionName":"r"}`,
			kservice.ServiceStatus{Conditions: []kservice.Condition{good}, LatestReadyRevisionName: "r"},
		},
		{
			"url", `"status":{"url":"http://[::1","address":{"url":3},"conditions":[` + ready + `]}`,
			kservice.ServiceStatus{Conditions: []kservice.Condition{good}},
		},
		{
			"quantity", `"spec":{"template":{"spec":{"containers":[{"resources":{"limits":{"cpu":"many"}}}],"timeoutSeconds":"x"}}},` +
				`"status":{"conditions":[` + ready + `]}`,
			kservice.ServiceStatus{Conditions: []kservice.Condition{good}},
		},
		{
			"time is no time", `"status":{"conditions":[{"type":"A","lastTransitionTime":"yesterday"},` + ready + `]}`,
			kservice.ServiceStatus{Conditions: []kservice.Condition{{Type: "A"}, good}},
		},
		{
			"time is empty", `"status":{"conditions":[{"type":"A","lastTransitionTime":""}]}`,
			kservice.ServiceStatus{Conditions: []kservice.Condition{{Type: "A"}}},
		},
		{
			"time is null", `"status":{"conditions":[{"type":"A","lastTransitionTime":null}]}`,
			kservice.ServiceStatus{Conditions: []kservice.Condition{{Type: "A"}}},
		},
		{
			"time is an object", `"status":{"conditions":[{"type":"A","lastTransitionTime":{"a":[1]}},` + ready + `]}`,
			kservice.ServiceStatus{Conditions: []kservice.Condition{{Type: "A"}, good}},
		},
		{
			"time with escapes", `"status":{"conditions":[{"type":"A","lastTransitionTime":"1970\u002d01-01T00:00:00Z"}]}`,
			kservice.ServiceStatus{Conditions: []kservice.Condition{
				{Type: "A", LastTransitionTime: kservice.Time{Time: time.Unix(0, 0).UTC()}},
			}},
		},
		{
			"message is a number", `"status":{"conditions":[{"type":"A","message":1,"reason":"r"},` + ready + `]}`,
			kservice.ServiceStatus{Conditions: []kservice.Condition{{Type: "A", Reason: "r"}, good}},
		},
		{
			"condition is null", `"status":{"conditions":[null,` + ready + `]}`,
			kservice.ServiceStatus{Conditions: []kservice.Condition{{}, good}},
		},
		{
			"conditions are no list", `"status":{"conditions":"all fine","latestReadyRevisionName":"r"}`,
			kservice.ServiceStatus{LatestReadyRevisionName: "r"},
		},
		{
			"revision name is no name", `"status":{"latestReadyRevisionName":{},"conditions":[` + ready + `]}`,
			kservice.ServiceStatus{Conditions: []kservice.Condition{good}},
		},
		{
			"keys of other case", `"status":{"Conditions":[` + ready + `],"LatestReadyRevisionName":"r"}`,
			kservice.ServiceStatus{},
		},
		{"status is a string", `"status":"ready"`, kservice.ServiceStatus{}},
		{"status is null", `"status":null`, kservice.ServiceStatus{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			raw := serviceJSON("bad", tt.rest)
			svc := decode[*kservice.Service](t, []byte(raw))
			if !reflect.DeepEqual(svc.Status, tt.want) {
				t.Errorf("\n got %+v\nwant %+v", svc.Status, tt.want)
			}
			if got, want := svc.Name, "bad"; got != want {
				t.Errorf("name: got %q, want %q", got, want)
			}
			list := decode[*kservice.ServiceList](t, fmt.Appendf(nil,
				`{"apiVersion":"serving.knative.dev/v1","kind":"ServiceList","metadata":{"resourceVersion":"9"},"items":[%s,%s]}`,
				raw, serviceJSON("good", `"status":{"latestReadyRevisionName":"g"}`)))
			if len(list.Items) != 2 || list.Items[1].Status.LatestReadyRevisionName != "g" || list.ResourceVersion != "9" {
				t.Errorf("a list with it: got %+v", list)
			}
		})
	}
}

func serviceJSON(name, rest string) string {
	return fmt.Sprintf(`{"apiVersion":"serving.knative.dev/v1","kind":"Service","metadata":{"name":%q},%s}`, name, rest)
}

func TestDecodeRevisionToleratesBadCounts(t *testing.T) {
	tests := []struct {
		name, count string
		want        *int32
	}{
		{"zero", `0`, new(int32(0))},
		{"negative", `-1`, new(int32(-1))},
		{"largest", `2147483647`, new(int32(2147483647))},
		{"beyond 32 bits", `2147483648`, nil},
		{"beyond 64 bits", `99999999999999999999999999`, nil},
		{"fraction", `1.5`, nil},
		{"exponent", `1e3`, nil},
		{"text", `"3"`, nil},
		{"null", `null`, nil},
		{"object", `{"n":3}`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			raw := fmt.Sprintf(`{"apiVersion":"serving.knative.dev/v1","kind":"Revision","metadata":{"name":"r"},`+
				`"status":{"actualReplicas":%s,"desiredReplicas":"x"}}`, tt.count)
			got := decode[*kservice.Revision](t, []byte(raw)).Status.ActualReplicas
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			list := decode[*kservice.RevisionList](t, fmt.Appendf(nil,
				`{"apiVersion":"serving.knative.dev/v1","kind":"RevisionList","items":[%s]}`, raw))
			if len(list.Items) != 1 || !reflect.DeepEqual(list.Items[0].Status.ActualReplicas, tt.want) {
				t.Errorf("in a list: got %+v, want %v", list.Items, tt.want)
			}
		})
	}
}

func TestDecodeRevisionReadiness(t *testing.T) {
	for _, tt := range []struct {
		name, conditions string
		notReady         bool
	}{
		{"none", `[]`, false},
		{"ready", `[{"type":"Active","status":"False"},{"type":"Ready","status":"True"}]`, false},
		{"not yet", `[{"type":"Ready","status":"Unknown"}]`, true},
		{"failed", `[{"type":"ContainerHealthy","status":"True"},{"type":"Ready","status":"False","reason":7}]`, true},
		{"bad types", `[{"type":1},{"type":"Ready","status":true}]`, true},
		{"no list", `"x"`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rev := decode[*kservice.Revision](t, fmt.Appendf(nil, `{"apiVersion":"serving.knative.dev/v1","kind":"Revision","metadata":{"name":"r"},`+
				`"status":{"conditions":%s,"actualReplicas":2}}`, tt.conditions))
			if rev.Status.NotReady != tt.notReady {
				t.Errorf("not ready: got %t, want %t", rev.Status.NotReady, tt.notReady)
			}
			if n := rev.Status.ActualReplicas; n == nil || *n != 2 {
				t.Errorf("got count %v, want 2", n)
			}
			if rev.Known() == tt.notReady {
				t.Errorf("known: got %t", rev.Known())
			}
		})
	}
	if (*kservice.Revision)(nil).Known() || (&kservice.Revision{}).Known() {
		t.Error("a Revision without a count is known")
	}
}

func TestDecodeRejectsWhatIsNoJSON(t *testing.T) {
	for _, raw := range []string{
		`{"apiVersion":"serving.knative.dev/v1","kind":"Service","status":{"conditions":[}}`,
		`{"apiVersion":"serving.knative.dev/v1","kind":"Service","status":`,
	} {
		if _, _, err := decoder(t).Decode([]byte(raw), nil, nil); err == nil {
			t.Errorf("%s: got no error, want one", raw)
		}
	}
}

func TestDeepCopySharesNothing(t *testing.T) {
	svc, rev := sampleService(), sampleRevision()
	managedAt(svc, 5)
	for _, obj := range []runtime.Object{
		svc, &kservice.ServiceList{Items: []kservice.Service{*svc}},
		rev, &kservice.RevisionList{Items: []kservice.Revision{*rev}},
	} {
		t.Run(fmt.Sprintf("%T", obj), func(t *testing.T) {
			before, err := json.Marshal(obj)
			if err != nil {
				t.Fatal(err)
			}
			out := obj.DeepCopyObject()
			if !reflect.DeepEqual(out, obj) {
				t.Errorf("\n got %+v\nwant %+v", out, obj)
			}
			switch o := out.(type) {
			case *kservice.Service:
				scribble(o)
			case *kservice.ServiceList:
				scribble(&o.Items[0])
			case *kservice.Revision:
				*o.Status.ActualReplicas = 99
			case *kservice.RevisionList:
				*o.Items[0].Status.ActualReplicas = 99
			}
			after, err := json.Marshal(obj)
			if err != nil {
				t.Fatal(err)
			}
			if string(after) != string(before) {
				t.Errorf("writing to the copy changed the original:\n got %s\nwant %s", after, before)
			}
		})
	}
}

func scribble(svc *kservice.Service) {
	svc.Labels["x"] = "y"
	svc.Annotations[kservice.AnnotationAppID] = "other"
	svc.Status.Conditions[0].Type = "other"
	svc.ManagedFields[0].Manager = "other"
}
