package kservice

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// GroupVersion is that of the Knative kinds of this package.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "serving.knative.dev", Version: "v1"}
}

// AddToScheme registers the trimmed Service and Revision, and their lists, as the kinds of
// serving.knative.dev/v1. The scheme must not have Knative's own types for them.
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

	// LastChange is the newest time of the managed fields that Trim dropped, in UTC.
	LastChange time.Time `json:"-"`
}

// DeepCopyObject returns a copy that shares nothing with s.
func (s *Service) DeepCopyObject() runtime.Object { return s.DeepCopy() }

// DeepCopy returns a copy that shares nothing with s. nil stays nil.
func (s *Service) DeepCopy() *Service {
	if s == nil {
		return nil
	}
	out := *s
	out.ObjectMeta = *s.ObjectMeta.DeepCopy()
	out.Status.Conditions = slices.Clone(s.Status.Conditions)
	return &out
}

// ServiceStatus is the part of a Service's status that a conversion reads.
type ServiceStatus struct {
	// Conditions in the order of the object.
	Conditions []Condition `json:"conditions,omitempty"`
	// LatestReadyRevisionName names the Revision whose replicas count, if one was ready.
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

// DeepCopyObject returns a copy that shares nothing with l.
func (l *ServiceList) DeepCopyObject() runtime.Object {
	return &ServiceList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy(), Items: copies(l.Items, (*Service).DeepCopy)} //nolint:staticcheck // names what is copied
}

// copies returns deep copies. nil stays nil.
func copies[T any](items []T, deepCopy func(*T) *T) []T {
	out := slices.Clone(items)
	for i := range out {
		out[i] = *deepCopy(&out[i])
	}
	return out
}

// Revision is a Knative Revision with only the fields that a conversion reads.
type Revision struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status RevisionStatus `json:"status,omitempty"`
}

// DeepCopyObject returns a copy that shares nothing with r.
func (r *Revision) DeepCopyObject() runtime.Object { return r.DeepCopy() }

// DeepCopy returns a copy that shares nothing with r. nil stays nil.
func (r *Revision) DeepCopy() *Revision {
	if r == nil {
		return nil
	}
	out := *r
	out.ObjectMeta = *r.ObjectMeta.DeepCopy()
	if r.Status.ActualReplicas != nil {
		out.Status.ActualReplicas = new(*r.Status.ActualReplicas)
	}
	return &out
}

// RevisionStatus is the part of a Revision's status that a conversion reads.
type RevisionStatus struct {
	// ActualReplicas counts the running replicas. nil: no count, or no whole number of 32 bits.
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

// DeepCopyObject returns a copy that shares nothing with l.
func (l *RevisionList) DeepCopyObject() runtime.Object {
	return &RevisionList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy(), Items: copies(l.Items, (*Revision).DeepCopy)} //nolint:staticcheck // names what is copied
}

// Compare orders the Services of a list by namespace and name, as Kubernetes does.
func Compare(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Selection are the labels of a Service that lists select by. The id of the app is in an annotation,
// so the two may differ.
type Selection struct {
	managed         bool
	project, domain string
}

// SelectionOf returns the labels of a Service.
func SelectionOf(svc *Service) Selection {
	return Selection{svc.Labels[LabelManaged] == labelTrue, svc.Labels[LabelProject], svc.Labels[LabelDomain]}
}

// Listed reports whether the Service is on the list of a project and a domain, empty meaning any.
func (s Selection) Listed(project, domain string) bool {
	return s.managed && (project == "" || s.project == project) && (domain == "" || s.domain == domain)
}
