package kservice

import (
	"encoding/json"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
)

// Object is a Knative Service as the content of an unstructured.Unstructured: exactly the fields
// that are set. Go's type would also send an empty status and a creation time that is null. The
// object shares nothing with svc.
func Object(svc *servingv1.Service) (map[string]any, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(svc)
	if err != nil {
		return nil, fmt.Errorf("encode knative service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	delete(object, "status")
	dropNulls(object)
	return object, nil
}

// Apply changes an existing object, the content of an unstructured.Unstructured, to a Knative
// Service: it replaces the spec, merges labels and annotations, and removes the labels of a stopped
// app. Other fields stay, also those that Knative's type does not have. The error reports metadata,
// labels or annotations of the wrong type; then the object is unchanged.
//
// The caller checks that the object belongs to the app.
func Apply(svc *servingv1.Service, existing map[string]any) error {
	object, err := Object(svc)
	if err != nil {
		return err
	}
	metadata, err := field(existing, "metadata")
	if err != nil {
		return err
	}
	labels, err := field(metadata, "labels")
	if err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	annotations, err := field(metadata, "annotations")
	if err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	maps.Copy(labels, anyMap(svc.Labels))
	delete(labels, LabelStopped)
	delete(labels, LabelVisibility)
	maps.Copy(annotations, anyMap(svc.Annotations))
	metadata["labels"] = labels
	metadata["annotations"] = annotations
	existing["metadata"] = metadata
	existing["spec"] = object["spec"]
	return nil
}

// field is a field of an object that is an object itself, a new one if it is missing.
func field(object map[string]any, name string) (map[string]any, error) {
	value, ok := object[name].(map[string]any)
	switch {
	case !ok && object[name] != nil:
		return nil, fmt.Errorf("%s: a %T, want an object", name, object[name])
	case value == nil:
		value = map[string]any{}
	}
	return value, nil
}

// dropNulls removes the unset fields that Go's types encode, such as the sources of a projected
// volume.
func dropNulls(value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if inner == nil {
				delete(v, key)
				continue
			}
			dropNulls(inner)
		}
	case []any:
		for _, inner := range v {
			dropNulls(inner)
		}
	}
}

func anyMap(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for key, value := range m {
		out[key] = value
	}
	return out
}

// Unchanged reports whether a Knative Service with these labels and annotations needs no write: it
// is not stopped and was deployed with the same spec as svc. It ignores the configuration.
func Unchanged(labels, annotations map[string]string, svc *servingv1.Service) bool {
	return labels[LabelStopped] != labelTrue && annotations[AnnotationSpecSHA] == svc.Annotations[AnnotationSpecSHA]
}

// StopPatch is the JSON merge patch that stops an app: its Knative Service becomes cluster-local
// and scales to zero. With a resourceVersion, the patch conflicts with any other version.
func StopPatch(resourceVersion string) []byte {
	type object = map[string]any
	metadata := object{
		"labels": object{LabelStopped: labelTrue, LabelVisibility: serving.VisibilityClusterLocal},
	}
	if resourceVersion != "" {
		metadata["resourceVersion"] = resourceVersion
	}
	template := object{"metadata": object{"annotations": object{
		autoscaling.MinScaleAnnotationKey: "0", autoscaling.InitialScaleAnnotationKey: "0",
	}}}
	// Maps of strings always have a JSON form.
	patch, _ := json.Marshal(object{"metadata": metadata, "spec": object{"template": template}})
	return patch
}
