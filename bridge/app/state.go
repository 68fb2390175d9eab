package app

import "github.com/appbridge/appbridge/bridge/kservice"

// State is one observed state of an app: a version of its Knative Service, the Revision that gives
// current_replicas, and what its pods say. It is immutable.
type State struct {
	Service  *CachedService
	Revision *kservice.Revision // nil without a latest ready Revision
	Pods     kservice.PodCondition
}

// App is the App of a state. Its count is that of the state's Revision, also of one that stands in.
func (st State) App() (Encoded, error) {
	return st.Service.app.counting(uint32(Replicas(st))).saying(st.Pods), st.Service.Err
}

// StandsIn reports whether the state's Revision is not the one that its Service names.
func (st State) StandsIn() bool {
	return st.Revision != nil && st.Revision.Name != st.Service.LatestReadyRevisionName
}

// RecordedBy reports whether a record is of exactly this state.
func (st State) RecordedBy(r *Record) bool {
	revision, version := "", ""
	if st.Revision != nil {
		revision, version = st.Revision.Name, st.Revision.ResourceVersion
	}
	return r.UID == string(st.Service.UID) && r.ResourceVersion == st.Service.ResourceVersion &&
		r.Revision == revision && r.RevisionVersion == version && r.reason == st.Pods.Reason() && r.ReasonRevision == st.Pods.Revision
}

// Same reports whether there is no change from one state to the other: the Revision may be a newer
// version with the same count.
func (st State) Same(other State) bool {
	a, b := st.Service, other.Service
	return a.UID == b.UID && a.ResourceVersion == b.ResourceVersion && Replicas(st) == Replicas(other) && st.Pods == other.Pods
}

// Replicas is the count that the App of a state has: a stopped app has 0.
func Replicas(st State) int32 {
	if st.Revision == nil || st.Revision.Status.ActualReplicas == nil || st.Service.Stopped {
		return 0
	}
	return *st.Revision.Status.ActualReplicas
}
