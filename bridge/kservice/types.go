package kservice

import (
	"cmp"
	"encoding/json"
	"errors"
	"hash/maphash"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	kjson "sigs.k8s.io/json"
)

// GroupVersion is that of the Knative kinds of this package.
func GroupVersion() schema.GroupVersion { return servingv1.SchemeGroupVersion }

// AddToScheme registers the trimmed Service and Revision, and their lists, as the kinds of
// serving.knative.dev/v1. The scheme must not have Knative's own types for them.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(), &Service{}, &Revision{})
	scheme.AddKnownTypeWithName(GroupVersion().WithKind("ServiceList"), &ServiceList{})
	scheme.AddKnownTypeWithName(GroupVersion().WithKind("RevisionList"), &RevisionList{})
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
	// LatestCreatedRevisionName names the newest Revision, ready or not. Only a PodCondition needs it.
	LatestCreatedRevisionName string `json:"latestCreatedRevisionName,omitempty"`
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

// List is a list of objects of one kind.
type List[T any, P interface {
	*T
	DeepCopy() *T
}] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []T `json:"items"`
}

type (
	// ServiceList is a list of Services.
	ServiceList = List[Service, *Service]
	// RevisionList is a list of Revisions.
	RevisionList = List[Revision, *Revision]
)

// DeepCopyObject returns a copy that shares nothing with l.
func (l *List[T, P]) DeepCopyObject() runtime.Object {
	out := &List[T, P]{TypeMeta: l.TypeMeta, Items: slices.Clone(l.Items)}
	l.ListMeta.DeepCopyInto(&out.ListMeta) //nolint:staticcheck // names what is copied
	for i := range out.Items {
		out.Items[i] = *P(&l.Items[i]).DeepCopy()
	}
	return out
}

// Revision is a Knative Revision with only the fields that a conversion reads.
type Revision struct {
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status RevisionStatus `json:"status,omitempty"`

	// Owner is what Trim keeps of LabelServiceUID.
	Owner Owner `json:"-"`
}

// Owner identifies the Service that a Revision belongs to by a hash of its uid: the uid itself would
// take six times as much memory. Zero: the Revision does not say.
type Owner uint64

var ownerSeed = maphash.MakeSeed()

// OwnerOf is the Owner of the Revisions of a Service.
func OwnerOf(service types.UID) Owner {
	if service == "" {
		return 0
	}
	return Owner(maphash.String(ownerSeed, string(service)))
}

// BelongsTo reports whether a Revision may be one of a Service. Names do not tell: the first Revision
// of a Service that was deleted and created again has the name that the former one had.
func (r *Revision) BelongsTo(service types.UID) bool {
	return r.Owner == 0 || r.Owner == OwnerOf(service)
}

// GetObjectKind implements runtime.Object. A Revision does not hold its kind.
func (*Revision) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

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

// Time is a time that is zero, rather than an error, when it cannot be parsed.
type Time struct {
	time.Time
}

// UnmarshalJSON reads an RFC 3339 time, with or without a fraction, as UTC.
// Anything else is the zero time. It never returns an error.
func (t *Time) UnmarshalJSON(data []byte) error {
	var text string
	_ = json.Unmarshal(data, &text) // what is no string is no time
	parsed, _ := time.Parse(time.RFC3339, text)
	t.Time = parsed.UTC()
	return nil
}

// UnmarshalJSON skips values of the wrong type.
func (s *ServiceStatus) UnmarshalJSON(data []byte) error {
	type plain ServiceStatus // without this method
	return decodeTolerant(data, (*plain)(s))
}

// UnmarshalJSON skips values of the wrong type.
func (s *RevisionStatus) UnmarshalJSON(data []byte) error {
	var raw struct {
		ActualReplicas json.RawMessage `json:"actualReplicas"`
		Conditions     []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	}
	if err := decodeTolerant(data, &raw); err != nil {
		return err
	}
	s.ActualReplicas, s.NotReady = nil, false
	for _, c := range raw.Conditions {
		if c.Type == ConditionReady {
			s.NotReady = c.Status != conditionTrue
			break
		}
	}
	// The decoder would leave a zero behind where a number does not fit.
	if n, err := strconv.ParseInt(string(raw.ActualReplicas), 10, 32); err == nil {
		s.ActualReplicas = new(int32(n))
	}
	return nil
}

// decodeTolerant decodes like client-go, but a value of the wrong type becomes the zero value: the
// decoder continues after it and reports it at the end.
func decodeTolerant(data []byte, into any) error {
	err := kjson.UnmarshalCaseSensitivePreserveInts(data, into)
	if errors.As(err, new(*json.UnmarshalTypeError)) {
		return nil
	}
	return err
}
