package decoder

import (
	"bytes"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/appbridge/appbridge/bridge/kservice"
)

// object reads an object of a kind: its TypeMeta, its metadata and its status.
func (s *scanner) object(kind string, of *metav1.TypeMeta, metadata, status func()) {
	s.fields(func(name []byte) uint {
		switch string(name) {
		case "apiVersion":
			of.APIVersion = s.word()
			return 1
		case "kind":
			of.Kind = s.word()
			return 2
		case "metadata":
			metadata()
			return 4
		case "status":
			status()
			return 8
		}
		// Kubernetes reads these two in any case.
		if bytes.EqualFold(name, []byte("kind")) || bytes.EqualFold(name, []byte("apiVersion")) {
			s.unusual()
		}
		s.value()
		return 0
	})
	if of.Kind != kind || of.APIVersion != kservice.GroupVersion().String() {
		s.unusual()
	}
}

func (s *scanner) service(svc *kservice.Service) {
	s.object("Service", &svc.TypeMeta,
		func() {
			labels := func() map[string]string { return s.pairs(kservice.KeepsLabel, s.word) }
			svc.LastChange = s.metadata(&svc.ObjectMeta, labels, kservice.KeepsAnnotation)
		},
		func() { s.serviceStatus(&svc.Status) })
}

func (s *scanner) revision(rev *kservice.Revision) {
	var is metav1.TypeMeta
	owner := func(name string) bool { return name == kservice.LabelServiceUID }
	none := func(string) bool { return false }
	s.object("Revision", &is,
		func() { s.metadata(&rev.ObjectMeta, func() map[string]string { return s.pairs(owner, s.text) }, none) },
		func() { s.revisionStatus(&rev.Status) })
}

// metadata reads an ObjectMeta but for its managed fields, of which it returns the newest time.
func (s *scanner) metadata(meta *metav1.ObjectMeta, labels func() map[string]string, annotation func(string) bool) (managed time.Time) {
	s.fields(func(name []byte) uint {
		switch string(name) {
		case "name":
			meta.Name = s.text()
			return 1
		case "namespace":
			meta.Namespace = s.word()
			return 1 << 1
		case "uid":
			meta.UID = types.UID(s.text())
			return 1 << 2
		case "resourceVersion":
			meta.ResourceVersion = s.text()
			return 1 << 3
		case "generation":
			meta.Generation = s.number()
			return 1 << 4
		case "creationTimestamp":
			meta.CreationTimestamp.Time = s.time().Local()
			return 1 << 5
		case "deletionTimestamp":
			meta.DeletionTimestamp = &metav1.Time{Time: s.time().Local()}
			return 1 << 6
		case "labels":
			meta.Labels = labels()
			return 1 << 7
		case "annotations":
			meta.Annotations = s.pairs(annotation, s.text)
			return 1 << 8
		case "managedFields":
			managed = s.managed()
			return 1 << 9
		case "generateName":
			meta.GenerateName = s.text()
			return 1 << 10
		case "selfLink":
			meta.SelfLink = s.text() //nolint:staticcheck // deprecated, and may be there all the same
			return 1 << 11
		case "deletionGracePeriodSeconds":
			meta.DeletionGracePeriodSeconds = new(s.number())
			return 1 << 12
		case "finalizers":
			s.each(func() { meta.Finalizers = append(meta.Finalizers, s.word()) })
			return 1 << 13
		case "ownerReferences":
			s.plain(&meta.OwnerReferences)
			return 1 << 14
		}
		s.value()
		return 0
	})
	return managed
}

// plain reads a value as client-go does.
func (s *scanner) plain(into any) {
	if value := s.value(); s.err == nil && kjson.UnmarshalCaseSensitivePreserveInts(value, into) != nil {
		s.unusual()
	}
}

// managed reads managed fields and returns their newest time.
func (s *scanner) managed() (newest time.Time) {
	s.each(func() {
		s.fields(func(name []byte) uint {
			switch string(name) {
			case "time":
				if t := s.time(); t.After(newest) {
					newest = t
				}
				return 1
			case "manager", "operation", "apiVersion", "fieldsType", "subresource":
				s.raw()
			default:
				s.value()
			}
			return 0
		})
	})
	return newest.UTC()
}

func (s *scanner) serviceStatus(status *kservice.ServiceStatus) {
	s.fields(func(name []byte) uint {
		switch string(name) {
		case "conditions":
			status.Conditions = make([]kservice.Condition, 0, 3)
			s.each(func() { status.Conditions = append(status.Conditions, s.condition()) })
			return 1
		case "latestReadyRevisionName":
			status.LatestReadyRevisionName = s.text()
			return 2
		case "latestCreatedRevisionName":
			status.LatestCreatedRevisionName = s.text()
			return 4
		}
		s.value()
		return 0
	})
}

func (s *scanner) condition() (c kservice.Condition) {
	s.fields(func(name []byte) uint {
		switch string(name) {
		case "type":
			c.Type = s.word()
			return 1
		case "status":
			c.Status = s.word()
			return 2
		case "reason":
			c.Reason = s.word()
			return 4
		case "message":
			c.Message = s.text()
			return 8
		case "lastTransitionTime":
			c.LastTransitionTime.Time = s.time().UTC()
			return 16
		}
		s.value()
		return 0
	})
	return c
}

func (s *scanner) revisionStatus(status *kservice.RevisionStatus) {
	s.fields(func(name []byte) uint {
		switch string(name) {
		case "actualReplicas":
			// As kservice does: what is no number of 32 bits is no count.
			if n, err := strconv.ParseInt(string(s.value()), 10, 32); err == nil {
				status.ActualReplicas = new(int32(n))
			}
			return 1
		case "conditions":
			found := false
			s.each(func() {
				if c := s.condition(); c.Type == kservice.ConditionReady && !found {
					found, status.NotReady = true, c.Status != "True"
				}
			})
			return 2
		}
		s.value()
		return 0
	})
}
