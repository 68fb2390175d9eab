package kservice

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Trim is the transform of an informer: it drops the parts of an object that this package does not
// read, so that the cache stays small. It changes the object and returns it. A second call writes
// nothing, so the object may have concurrent readers by then.
//
// Of a Service it keeps the labels and annotations that this package reads, and the last time of
// the managed fields as LastChange. Of a Revision it drops labels, annotations, owners,
// finalizers and managed fields, and keeps the uid of its Service as Owner. It returns other
// objects, such as tombstones, unchanged. The error is always nil.
func Trim(obj any) (any, error) {
	switch o := obj.(type) {
	case *Service:
		if last := lastManaged(o); last.After(o.LastChange) {
			o.LastChange = last
		}
		if o.ManagedFields != nil {
			o.ManagedFields = nil
		}
		keepOnly(&o.Labels, KeepsLabel)
		keepOnly(&o.Annotations, KeepsAnnotation)
	case *Revision:
		if uid := o.Labels[LabelServiceUID]; uid != "" {
			o.Owner = OwnerOf(types.UID(uid))
		}
		if o.ManagedFields != nil || o.Labels != nil || o.Annotations != nil || o.OwnerReferences != nil || o.Finalizers != nil {
			o.ManagedFields, o.Labels, o.Annotations, o.OwnerReferences, o.Finalizers = nil, nil, nil, nil, nil
		}
	}
	return obj, nil
}

// KeepsLabel reports whether Trim keeps a label of a Service.
func KeepsLabel(key string) bool {
	return key == LabelManaged || key == LabelStopped || key == LabelProject || key == LabelDomain
}

// KeepsAnnotation reports whether Trim keeps an annotation of a Service.
func KeepsAnnotation(key string) bool {
	return key == AnnotationAppID || key == AnnotationOrg || key == AnnotationSpec
}

// keepOnly replaces m by a map with only the keys to be kept, unless m has no others.
func keepOnly(m *map[string]string, keep func(key string) bool) {
	kept := maps.Clone(*m)
	maps.DeleteFunc(kept, func(key, _ string) bool { return !keep(key) })
	switch {
	case len(kept) == len(*m): // a second call writes nothing
	case len(kept) == 0:
		*m = nil
	default:
		*m = kept
	}
}

// LastChange is the last time in the object: of a transition of a condition, the deletion, a change
// of a managed field, or the creation. It is in UTC, and zero if the object has no time. Trim does
// not change it.
func LastChange(svc *Service) time.Time {
	last := svc.CreationTimestamp.Time
	later := func(t time.Time) {
		if t.After(last) {
			last = t
		}
	}
	if svc.DeletionTimestamp != nil {
		later(svc.DeletionTimestamp.Time)
	}
	later(svc.LastChange)
	later(lastManaged(svc))
	for i := range svc.Status.Conditions {
		later(svc.Status.Conditions[i].LastTransitionTime.Time)
	}
	return last.UTC()
}

// lastManaged is the last time of the managed fields, in UTC.
func lastManaged(svc *Service) time.Time {
	var last time.Time
	for i := range svc.ManagedFields {
		if t := svc.ManagedFields[i].Time; t != nil && t.After(last) {
			last = t.Time
		}
	}
	return last.UTC()
}
