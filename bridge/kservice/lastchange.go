package kservice

import "time"

// LastChange is the newest time that the object itself carries: a transition of
// a condition, the deletion, a change of a managed field, the creation. It is in
// UTC; zero when the object carries no time at all. Trim does not change it.
func LastChange(svc *Service) time.Time {
	newest := svc.CreationTimestamp.Time
	later := func(t time.Time) {
		if t.After(newest) {
			newest = t
		}
	}
	if svc.DeletionTimestamp != nil {
		later(svc.DeletionTimestamp.Time)
	}
	later(svc.LastChange)
	later(newestManaged(svc))
	for i := range svc.Status.Conditions {
		later(svc.Status.Conditions[i].LastTransitionTime.Time)
	}
	return newest.UTC()
}

// newestManaged is the newest time of the managed fields, in UTC.
func newestManaged(svc *Service) time.Time {
	var newest time.Time
	for i := range svc.ManagedFields {
		if t := svc.ManagedFields[i].Time; t != nil && t.After(newest) {
			newest = t.Time
		}
	}
	return newest.UTC()
}
