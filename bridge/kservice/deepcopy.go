package kservice

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// DeepCopyObject makes a copy that shares nothing with s.
func (s *Service) DeepCopyObject() runtime.Object {
	if s == nil {
		return nil
	}
	return s.DeepCopy()
}

// DeepCopy makes a copy that shares nothing with s; nil stays nil.
func (s *Service) DeepCopy() *Service {
	if s == nil {
		return nil
	}
	out := new(Service)
	s.deepCopyInto(out)
	return out
}

func (s *Service) deepCopyInto(out *Service) {
	*out = *s
	out.ObjectMeta = *s.ObjectMeta.DeepCopy()
	// A condition holds values alone, so a copy of the slice is deep enough.
	out.Status.Conditions = slices.Clone(s.Status.Conditions)
}

// DeepCopyObject makes a copy that shares nothing with l.
func (l *ServiceList) DeepCopyObject() runtime.Object {
	if l == nil {
		return nil
	}
	return l.DeepCopy()
}

// DeepCopy makes a copy that shares nothing with l; nil stays nil.
func (l *ServiceList) DeepCopy() *ServiceList {
	if l == nil {
		return nil
	}
	out := *l
	out.ListMeta = *l.ListMeta.DeepCopy()
	if l.Items != nil {
		out.Items = make([]Service, len(l.Items))
		for i := range l.Items {
			l.Items[i].deepCopyInto(&out.Items[i])
		}
	}
	return &out
}

// DeepCopyObject makes a copy that shares nothing with r.
func (r *Revision) DeepCopyObject() runtime.Object {
	if r == nil {
		return nil
	}
	return r.DeepCopy()
}

// DeepCopy makes a copy that shares nothing with r; nil stays nil.
func (r *Revision) DeepCopy() *Revision {
	if r == nil {
		return nil
	}
	out := new(Revision)
	r.deepCopyInto(out)
	return out
}

func (r *Revision) deepCopyInto(out *Revision) {
	*out = *r
	out.ObjectMeta = *r.ObjectMeta.DeepCopy()
	if r.Status.ActualReplicas != nil {
		out.Status.ActualReplicas = new(*r.Status.ActualReplicas)
	}
}

// DeepCopyObject makes a copy that shares nothing with l.
func (l *RevisionList) DeepCopyObject() runtime.Object {
	if l == nil {
		return nil
	}
	return l.DeepCopy()
}

// DeepCopy makes a copy that shares nothing with l; nil stays nil.
func (l *RevisionList) DeepCopy() *RevisionList {
	if l == nil {
		return nil
	}
	out := *l
	out.ListMeta = *l.ListMeta.DeepCopy()
	if l.Items != nil {
		out.Items = make([]Revision, len(l.Items))
		for i := range l.Items {
			l.Items[i].deepCopyInto(&out.Items[i])
		}
	}
	return &out
}
