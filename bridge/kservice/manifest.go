package kservice

import (
	"encoding/json"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/runtime"
)

// Object is the manifest as the content of an unstructured.Unstructured. It shares nothing with the
// manifest.
func (m *Manifest) Object() (map[string]any, error) {
	spec, err := m.spec()
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"apiVersion": GroupVersion().String(),
		"kind":       "Service",
		"metadata": map[string]any{
			"name":        m.Name,
			"namespace":   m.Namespace,
			"labels":      anyMap(m.Labels),
			"annotations": anyMap(m.Annotations),
		},
		"spec": spec,
	}, nil
}

// Apply changes an existing object, the content of an unstructured.Unstructured, to the manifest:
// it replaces the spec, merges labels and annotations, and removes the labels of a stopped app.
// Other fields stay. The error reports metadata, labels or annotations of the wrong type; then the
// object is unchanged.
//
// The caller checks that the object belongs to the app.
func (m *Manifest) Apply(existing map[string]any) error {
	spec, err := m.spec()
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
	maps.Copy(labels, anyMap(m.Labels))
	delete(labels, LabelStopped)
	delete(labels, LabelVisibility)
	maps.Copy(annotations, anyMap(m.Annotations))
	metadata["labels"] = labels
	metadata["annotations"] = annotations
	existing["metadata"] = metadata
	existing["spec"] = spec
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

func (m *Manifest) spec() (map[string]any, error) {
	pod, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&m.Template.PodSpec)
	if err != nil {
		return nil, fmt.Errorf("pod spec of knative service %s/%s: %w", m.Namespace, m.Name, err)
	}
	dropNulls(pod)
	pod["timeoutSeconds"] = m.Template.TimeoutSeconds
	metadata := map[string]any{}
	if len(m.Template.Labels) > 0 {
		metadata["labels"] = anyMap(m.Template.Labels)
	}
	if len(m.Template.Annotations) > 0 {
		metadata["annotations"] = anyMap(m.Template.Annotations)
	}
	return map[string]any{"template": map[string]any{"metadata": metadata, "spec": pod}}, nil
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
// is not stopped and was deployed with the same spec. It ignores the configuration.
func Unchanged(labels, annotations map[string]string, m *Manifest) bool {
	return labels[LabelStopped] != labelTrue && annotations[AnnotationSpecSHA] == m.Annotations[AnnotationSpecSHA]
}

// StopPatch is the JSON merge patch that stops an app: its Knative Service becomes cluster-local
// and scales to zero. With a resourceVersion, the patch conflicts with any other version.
func StopPatch(resourceVersion string) []byte {
	type object = map[string]any
	metadata := object{
		"labels": object{LabelStopped: labelTrue, LabelVisibility: "cluster-local"},
	}
	if resourceVersion != "" {
		metadata["resourceVersion"] = resourceVersion
	}
	template := object{"metadata": object{"annotations": object{annotationMinScale: "0", annotationInitialScale: "0"}}}
	// Maps of strings always have a JSON form.
	patch, _ := json.Marshal(object{"metadata": metadata, "spec": object{"template": template}})
	return patch
}
