package kservice

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
	kept := map[string]string{}
	for _, key := range keys {
		if value, ok := (*m)[key]; ok {
			kept[key] = value
		}
	}
	switch {
	case len(kept) == len(*m): // a second call writes nothing
	case len(kept) == 0:
		*m = nil
	default:
		*m = kept
	}
}
