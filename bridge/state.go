package bridge

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// state is one observed state of an app: a version of its Knative Service and
// the Revision that gives current_replicas. It is immutable.
type state struct {
	service  *kservice.Service
	revision *kservice.Revision // nil without a latest ready Revision
}

// app is the App of a state. Its count is that of the state's Revision, also of one that stands in.
func (st state) app(cfg kservice.Config) (*appv1.App, error) {
	return kservice.ConvertCounting(st.service, st.revision, cfg)
}

// standsIn reports whether the state's Revision is not the one that its Service names.
func (st state) standsIn() bool {
	return st.revision != nil && st.revision.Name != st.service.Status.LatestReadyRevisionName
}

// shownBy reports whether a record is of just this state.
func (st state) shownBy(r *record) bool {
	revision, version := "", ""
	if st.revision != nil {
		revision, version = st.revision.Name, st.revision.ResourceVersion
	}
	return r.uid == string(st.service.UID) && r.resourceVersion == st.service.ResourceVersion &&
		r.revision == revision && r.revisionVersion == version
}

// replicas is the count that the App of a state shows: a stopped app shows none.
func replicas(st state) int32 {
	if st.revision == nil || st.revision.Status.ActualReplicas == nil || kservice.Stopped(st.service) {
		return 0
	}
	return *st.revision.Status.ActualReplicas
}

// lastCount is the Revision that gave the count of a record, nil if it gave none, if it is of
// another object than svc, or if it is the one that svc names.
func lastCount(svc *kservice.Service, r *record) *kservice.Revision {
	if !r.exists() || r.uid != string(svc.UID) || r.revision == "" || r.revision == svc.Status.LatestReadyRevisionName {
		return nil
	}
	count := int32(r.app.GetStatus().GetCurrentReplicas())
	if count == 0 {
		return nil
	}
	return &kservice.Revision{
		ObjectMeta: metav1.ObjectMeta{Name: r.revision, Namespace: svc.Namespace, ResourceVersion: r.revisionVersion},
		Status:     kservice.RevisionStatus{ActualReplicas: &count},
	}
}
