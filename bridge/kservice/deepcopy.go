package kservice

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

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

// DeepCopyObject returns a copy that shares nothing with l.
func (l *ServiceList) DeepCopyObject() runtime.Object {
	out, meta := *l, l.ListMeta
	out.ListMeta = *meta.DeepCopy()
	out.Items = slices.Clone(l.Items)
	for i := range out.Items {
		out.Items[i] = *out.Items[i].DeepCopy()
	}
	return &out
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

// DeepCopyObject returns a copy that shares nothing with l.
func (l *RevisionList) DeepCopyObject() runtime.Object {
	out, meta := *l, l.ListMeta
	out.ListMeta = *meta.DeepCopy()
	out.Items = slices.Clone(l.Items)
	for i := range out.Items {
		out.Items[i] = *out.Items[i].DeepCopy()
	}
	return &out
}
