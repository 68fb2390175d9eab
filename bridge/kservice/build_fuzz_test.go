package kservice_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

func FuzzBuild(f *testing.F) {
	for _, spec := range []string{
		fullSpec,
		`{}`,
		`{"container": {}}`,
		`{"container": {"resources": {"limits": [{"name": "CPU", "value": "1e-999"}]}}}`,
		`{"pod": {}}`,
		`{"pod": {"podSpec": {"containers": [{"resources": {"limits": {"cpu": 0.1, "memory": "1Gi"}}}]}}}`,
		`{"pod": {"podSpec": {"containers": [null], "volumes": [{"emptyDir": {"sizeLimit": "1e99"}}], "overhead": {"a": "1"}}}}`,
		`{"pod": {"podSpec": {"securityContext": {"runAsUser": 1.5e300}, "activeDeadlineSeconds": -0.0}}}`,
		`{"securityContext": {"secrets": [{"key": "\u0000é\""}, {"mountRequirement": 7}]}}`,
		everyFeature,
		`{"container": {"image": "app:1", "env": [{}], "ports": [{}, {}]}, "autoscaling": {"replicas": {"min": 9, "max": 1}, "scaledownPeriod": "-1s"}}`,
		`{"pod": {"podSpec": {"containers": [{}, null, {"readinessProbe": {"grpc": null, "httpGet": {"port": "x"}}}], "initContainers": [{}], "volumes": [{"projected": {"sources": [{}]}}]}}}`,
	} {
		message := &appv1.Spec{}
		if err := protojson.Unmarshal([]byte(spec), message); err != nil {
			f.Fatal(err)
		}
		wire, err := proto.Marshal(message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add("p", "d", "n", wire)
	}
	f.Add("", "é", "\xff", []byte("\x12\x02\x12\x00"))
	f.Fuzz(func(t *testing.T, project, domain, name string, wire []byte) {
		spec := &appv1.Spec{}
		if proto.Unmarshal(wire, spec) != nil {
			return
		}
		id := subjects.AppID{Project: project, Domain: domain, Name: name}
		app := &appv1.App{Spec: spec}
		before := proto.CloneOf(app)
		m, err := build(id, app, deployDefaults())
		wrong, denied := validateApp(id, app, deployDefaults())
		found := slices.Concat(wrong, denied)
		for _, problem := range found {
			if len(problem) > 300 {
				t.Errorf("%q: %d bytes, want at most 300", problem, len(problem))
			}
		}
		again, errAgain := build(id, proto.CloneOf(app), deployDefaults())
		if !proto.Equal(app, before) {
			t.Errorf("the app was changed:\n got %v\nwant %v", app, before)
		}
		if err != nil {
			if m != nil || len(found) == 0 || errAgain == nil || errAgain.Error() != err.Error() {
				t.Errorf("got %v and %v, problems %q, the second time %v", m, err, found, errAgain)
			}
			return
		}
		if errAgain != nil || cmp.Diff(again, m) != "" {
			t.Fatalf("a second time: got %v and %v, want %v", again, errAgain, m)
		}
		svc := &kservice.Service{}
		svc.Annotations = m.Annotations
		if back, err := kservice.Convert(svc, nil, sampleConfig()); err != nil || !proto.Equal(back.GetSpec(), spec) {
			t.Errorf("converted back: got %v and %v, want %v", back.GetSpec(), err, spec)
		}
		checkFuzzed(t, m, app, len(wrong) == 0)
		first, second := jsonOf(t, m), jsonOf(t, again)
		if first != second {
			t.Errorf("a second time:\n got %s\nwant %s", second, first)
		}
	})
}

// checkFuzzed runs Knative's validation, which must neither panic nor change anything.
func checkFuzzed(t *testing.T, m *servingv1.Service, app *appv1.App, good bool) {
	t.Helper()
	if wrong := validation.IsDNS1035Label(m.Name); good && len(wrong) > 0 {
		t.Errorf("the name %q passed: %q", m.Name, wrong)
	}
	before := m.DeepCopy()
	found := kservice.Check(m, app, deployDefaults())
	for _, problem := range found {
		if strings.Contains(problem, "its validation failed") {
			t.Error(problem)
		}
		if len(problem) > 300 {
			t.Errorf("%q: %d bytes, want at most 300", problem, len(problem))
		}
	}
	if again := kservice.Check(m, app, deployDefaults()); !slices.Equal(again, found) {
		t.Errorf("a second time: got %q, want %q", again, found)
	}
	if diff := cmp.Diff(m, before); diff != "" {
		t.Errorf("the Service was changed: %s", diff)
	}
}

func jsonOf(t *testing.T, m *servingv1.Service) string {
	t.Helper()
	object, err := kservice.Object(m)
	if err != nil {
		t.Fatalf("Object: %v", err)
	}
	text, err := json.Marshal(runtime.DeepCopyJSON(object))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
