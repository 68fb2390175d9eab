package kservice_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
)

func TestManifestObject(t *testing.T) {
	m := built(t, `{"pod": {"podSpec": {
		"containers": [{"name": "a", "image": "i", "ports": [{"containerPort": 8080}], "resources": {"limits": {"cpu": "1500m"}}}],
		"volumes": [{"name": "v", "projected": {"defaultMode": 420}}]
	}}}`, deployDefaults())
	m.Labels, m.Annotations = map[string]string{"l": "1"}, map[string]string{"a": ""}

	got := deployedObject(t, m)

	type object = map[string]any
	want := object{
		"apiVersion": "serving.knative.dev/v1",
		"kind":       "Service",
		"metadata": object{
			"name": "n-p-d", "namespace": "flyte",
			"labels": object{"l": "1"}, "annotations": object{"a": ""},
		},
		"spec": object{"template": object{
			"metadata": object{},
			"spec": object{
				"timeoutSeconds": int64(300), "enableServiceLinks": false,
				"containers": []any{object{
					"name": "a", "image": "i",
					"ports":     []any{object{"containerPort": int64(8080)}},
					"resources": object{"limits": object{"cpu": "1500m"}},
					"env": []any{
						object{"name": "INTERNAL_APP_ENDPOINT_PATTERN", "value": "http://{app_fqdn}-p-d.flyte.svc.cluster.local"},
						object{"name": "FLYTE_INTERNAL_EXECUTION_PROJECT", "value": "p"},
						object{"name": "FLYTE_INTERNAL_EXECUTION_DOMAIN", "value": "d"},
					},
				}},
				"volumes": []any{object{"name": "v", "projected": object{"defaultMode": int64(420)}}},
			},
		}},
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("got, want: %s", diff)
	}

	// Nothing is shared.
	got["metadata"].(object)["labels"].(object)["l"] = "changed"
	got["spec"].(object)["template"].(object)["spec"].(object)["containers"].([]any)[0].(object)["name"] = "changed"
	if again := deployedObject(t, m); !reflect.DeepEqual(again, want) {
		t.Errorf("after a change of the object before:\n got %v\nwant %v", again, want)
	}
}

func TestManifestApply(t *testing.T) {
	type object = map[string]any
	m := built(t, `{"container": {"image": "new"}, "securityContext": {"secrets": [{"key": "a"}]}}`, deployDefaults())
	spec := deployedObject(t, m)["spec"]
	existing := object{
		"apiVersion": "serving.knative.dev/v1", "kind": "Service", "extra": object{"kept": int64(1)},
		"metadata": object{
			"name": "n-p-d", "namespace": "flyte", "resourceVersion": "7", "uid": "u", "finalizers": []any{"keep"},
			"labels": object{
				"team": "ml", kservice.LabelStopped: "true", kservice.LabelVisibility: "cluster-local", kservice.LabelAppName: "old",
			},
			"annotations": object{"creator": "someone", kservice.AnnotationSpecSHA: "old"},
		},
		"spec":   object{"traffic": []any{object{"percent": int64(100)}}, "template": object{"metadata": object{"annotations": object{"keep": "no"}}}},
		"status": object{"latestReadyRevisionName": "n-p-d-00001"},
	}
	if err := kservice.Apply(m, existing); err != nil {
		t.Fatalf("Apply: %v", err)
	}
	labels, annotations := object{"team": "ml"}, object{"creator": "someone"}
	for key, value := range m.Labels {
		labels[key] = value
	}
	for key, value := range m.Annotations {
		annotations[key] = value
	}
	want := object{
		"apiVersion": "serving.knative.dev/v1", "kind": "Service", "extra": object{"kept": int64(1)},
		"metadata": object{
			"name": "n-p-d", "namespace": "flyte", "resourceVersion": "7", "uid": "u", "finalizers": []any{"keep"},
			"labels": labels, "annotations": annotations,
		},
		"spec":   spec,
		"status": object{"latestReadyRevisionName": "n-p-d-00001"},
	}
	if diff := cmp.Diff(existing, want); diff != "" {
		t.Errorf("got, want: %s", diff)
	}
	once := runtime.DeepCopyJSON(existing)
	if err := kservice.Apply(m, existing); err != nil || !reflect.DeepEqual(existing, once) {
		t.Errorf("a second time: got %v and %v, want %v", existing, err, once)
	}

	bare := object{}
	if err := kservice.Apply(m, bare); err != nil {
		t.Fatalf("Apply to an empty object: %v", err)
	}
	if got, want := bare["metadata"].(object)["labels"].(object)[kservice.LabelAppName], "n"; got != want {
		t.Errorf("label of an empty object: got %v, want %v", got, want)
	}
}

func TestManifestApplyErrors(t *testing.T) {
	type object = map[string]any
	m := built(t, `{"container": {}}`, deployDefaults())
	tests := []struct {
		name     string
		existing object
		want     string
	}{
		{"metadata", object{"metadata": "x"}, "metadata: a string, want an object"},
		{"labels", object{"metadata": object{"labels": []any{}}}, "metadata: labels: a []interface {}, want an object"},
		{"annotations", object{"metadata": object{"annotations": true}}, "metadata: annotations: a bool, want an object"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := runtime.DeepCopyJSON(tt.existing)
			err := kservice.Apply(m, tt.existing)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if !reflect.DeepEqual(tt.existing, before) {
				t.Errorf("the object was changed:\n got %v\nwant %v", tt.existing, before)
			}
		})
	}
}

func TestUnchanged(t *testing.T) {
	m := built(t, `{"container": {"image": "i"}}`, deployDefaults())
	other := built(t, `{"container": {"image": "j"}}`, deployDefaults())
	tests := []struct {
		name        string
		labels      map[string]string
		annotations map[string]string
		want        bool
	}{
		{"same", m.Labels, m.Annotations, true},
		{"no labels", nil, m.Annotations, true},
		{"no annotations", m.Labels, nil, false},
		{"another spec", m.Labels, other.Annotations, false},
		{"stopped", map[string]string{kservice.LabelStopped: "true"}, m.Annotations, false},
		{"not stopped", map[string]string{kservice.LabelStopped: "True"}, m.Annotations, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := kservice.Unchanged(tt.labels, tt.annotations, m); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestStopPatch(t *testing.T) {
	const (
		labels   = `"labels":{"flyte.org/app-stopped":"true","networking.knative.dev/visibility":"cluster-local"}`
		template = `"spec":{"template":{"metadata":{"annotations":{"autoscaling.knative.dev/initial-scale":"0","autoscaling.knative.dev/min-scale":"0"}}}}`
	)
	for version, want := range map[string]string{
		"":    `{"metadata":{` + labels + `},` + template + `}`,
		"7":   `{"metadata":{` + labels + `,"resourceVersion":"7"},` + template + `}`,
		`"\n`: `{"metadata":{` + labels + `,"resourceVersion":"\"\\n"},` + template + `}`,
	} {
		if got := string(kservice.StopPatch(version)); got != want {
			t.Errorf("resource version %q:\n got %s\nwant %s", version, got, want)
		}
	}

	var patch map[string]any
	if err := json.Unmarshal(kservice.StopPatch(""), &patch); err != nil {
		t.Fatal(err)
	}
	svc := deployedObject(t, built(t, `{"container": {"image": "i"}}`, deployDefaults()))
	once := mergePatch(runtime.DeepCopyJSON(svc), patch)
	if twice := mergePatch(runtime.DeepCopyJSON(once), patch); !reflect.DeepEqual(twice, once) {
		t.Errorf("twice:\n got %v\nwant %v", twice, once)
	}
}

// A manifest that is placed is the one that Build gives for that namespace.
func TestPlace(t *testing.T) {
	const spec = `{"container": {"image": "i"}}`
	got := built(t, spec, deployDefaults())
	kservice.Place(got, types.NamespacedName{Namespace: "elsewhere", Name: "other"})

	cfg := deployDefaults()
	cfg.Namespace = "elsewhere"
	want := built(t, spec, cfg)
	want.Name = "other"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want, got: %s", diff)
	}
}
