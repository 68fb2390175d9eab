package kservice

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of the Knative kinds of this package.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "serving.knative.dev", Version: "v1"}
}

// AddToScheme registers the trimmed Service and Revision, and their lists, as
// the kinds of serving.knative.dev/v1. A scheme that knows Knative's own types
// for these kinds already must not be used.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(), &Service{}, &ServiceList{}, &Revision{}, &RevisionList{})
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}

// Service is a Knative Service with only the fields that a conversion reads. The others are not
// decoded. That saves memory, and one object with a field that cannot be decoded does not fail the
// whole list.
type Service struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status ServiceStatus `json:"status,omitempty"`

	// LastChange is the newest time of the managed fields that Trim dropped;
	// zero before Trim, and when there were none. In UTC.
	LastChange time.Time `json:"-"`
}

// ServiceStatus is the part of a Service's status that a conversion reads.
type ServiceStatus struct {
	// Conditions in the order of the object.
	Conditions []Condition `json:"conditions,omitempty"`
	// LatestReadyRevisionName names the Revision whose replicas count; empty
	// while none was ready yet.
	LatestReadyRevisionName string `json:"latestReadyRevisionName,omitempty"`
}

// Condition is one condition of a Service.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// LastTransitionTime is zero when it is missing, null or not a time.
	LastTransitionTime Time `json:"lastTransitionTime,omitzero"`
}

// ServiceList is a list of Services.
type ServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Service `json:"items"`
}

// Revision is a Knative Revision with only the fields that a conversion reads.
type Revision struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status RevisionStatus `json:"status,omitempty"`
}

// RevisionStatus is the part of a Revision's status that a conversion reads.
type RevisionStatus struct {
	// ActualReplicas counts the running replicas; nil when the count is
	// missing, not a whole number, or beyond 32 bits.
	ActualReplicas *int32 `json:"actualReplicas,omitempty"`
	// NotReady is set when there is a Ready condition and it is not True. No conversion reads it:
	// it shows that a Service names a newer version of the Revision as ready.
	NotReady bool `json:"-"`
}

// Known reports whether the count of a Revision that a Service names as its latest ready one can be
// taken from r. It cannot from nil, nor from a version that is from before the Revision was ready.
func (r *Revision) Known() bool {
	return r != nil && r.Status.ActualReplicas != nil && !r.Status.NotReady
}

// RevisionList is a list of Revisions.
type RevisionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Revision `json:"items"`
}
