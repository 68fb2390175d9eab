package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/appbridge/appbridge/bridge/kservice"
)

// service is the object of a state, as the bridge decodes and trims it. Of the
// managed fields only their newest time is taken: the rest is most of the work
// and no part of the conversion.
func (s *state) service() (*kservice.Service, error) {
	if s.object == nil {
		return nil, errors.New("there is no object")
	}
	o := s.object
	svc := &kservice.Service{ObjectMeta: metav1.ObjectMeta{
		Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), Generation: o.GetGeneration(),
		ResourceVersion:   s.version, // whatever stands in the object
		CreationTimestamp: o.GetCreationTimestamp(), DeletionTimestamp: o.GetDeletionTimestamp(),
		Labels: o.GetLabels(), Annotations: o.GetAnnotations(),
	}, LastChange: newestManaged(o)}
	if status, there := o.Object["status"]; there {
		// By way of JSON, which is what the bridge decodes it from.
		data, err := json.Marshal(status)
		if err == nil {
			err = json.Unmarshal(data, &svc.Status)
		}
		if err != nil {
			return nil, fmt.Errorf("decode the status: %w", err)
		}
	}
	_, err := kservice.Trim(svc)
	return svc, err
}

// newestManaged is the newest time of the managed fields, zero without any.
func newestManaged(o *unstructured.Unstructured) (newest time.Time) {
	fields, _, err := unstructured.NestedFieldNoCopy(o.Object, "metadata", "managedFields")
	if err != nil {
		return newest
	}
	entries, _ := fields.([]any)
	for _, entry := range entries {
		field, _ := entry.(map[string]any)
		text, _ := field["time"].(string)
		if at, err := time.Parse(time.RFC3339, text); err == nil && at.After(newest) {
			newest = at.UTC()
		}
	}
	return newest
}

// ready is the name of the latest ready Revision.
func (s *state) ready() string {
	if s.object == nil {
		return ""
	}
	name, _, err := unstructured.NestedString(s.object.Object, "status", "latestReadyRevisionName")
	if err != nil {
		return ""
	}
	return name
}
