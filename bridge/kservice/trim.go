package kservice

import "slices"

// Trim is an informer's transform: it drops from an object what neither the
// conversion nor the identity reads, so that the cache stays small. It changes
// the object it is given and returns it. Doing so again changes nothing, and
// does not even write, so it may meet an object that others already read.
//
// Of a Service it keeps the labels and annotations that this package reads, and
// the newest time of the managed fields as LastChange. Of a Revision it drops
// managed fields and annotations. Anything else, such as a tombstone, is
// returned as it is. The error is always nil.
func Trim(obj any) (any, error) {
	switch o := obj.(type) {
	case *Service:
		if newest := newestManaged(o); newest.After(o.LastChange) {
			o.LastChange = newest
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

// keepOnly puts a map with the given keys alone in the place of m, unless m has
// no other keys.
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
