package kservice

import "time"

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
