package kservice

import "slices"

// Trim is the transform of an informer: it drops the parts of an object that this package does not
// read, so that the cache stays small. It changes the object and returns it. A second call writes
// nothing, so the object may have concurrent readers by then.
//
// Of a Service it keeps the labels and annotations that this package reads, and the last time of
// the managed fields as LastChange. Of a Revision it drops managed fields and annotations. It
// returns other objects, such as tombstones, unchanged. The error is always nil.
func Trim(obj any) (any, error) {
	switch o := obj.(type) {
	case *Service:
		if last := lastManaged(o); last.After(o.LastChange) {
			o.LastChange = last
		}
		if o.ManagedFields != nil {
			o.ManagedFields = nil
		}
		keepOnly(&o.Labels, LabelManaged, LabelStopped, LabelProject, LabelDomain)
		keepOnly(&o.Annotations, AnnotationAppID, AnnotationOrg, AnnotationSpec)
	case *Revision:
		if o.ManagedFields != nil {
			o.ManagedFields = nil
		}
		if o.Annotations != nil {
			o.Annotations = nil
		}
	}
	return obj, nil
}

// keepOnly replaces m by a map with only the given keys, unless m has no others.
func keepOnly(m *map[string]string, keys ...string) {
	foreign := false
	for key := range *m {
		if !slices.Contains(keys, key) {
			foreign = true
			break
		}
	}
	if !foreign {
		return
	}
	var kept map[string]string
	for _, key := range keys {
		if value, ok := (*m)[key]; ok {
			if kept == nil {
				kept = make(map[string]string, len(keys))
			}
			kept[key] = value
		}
	}
	*m = kept
}
