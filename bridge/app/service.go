package app

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// CachedService is what is kept of a version of a Knative Service: its App, encoded, and what else
// is read of the object. It is immutable.
type CachedService struct {
	Namespace, Name   string
	UID               types.UID
	ResourceVersion   string
	Generation        int64
	CreationTimestamp metav1.Time

	ID        subjects.AppID     // zero: the object is no app, for Err
	Err       error              // why it cannot be published
	Org       string             // the organization of the app
	Selection kservice.Selection // the labels that lists select by

	LatestReadyRevisionName string // names the Revision whose replicas count; empty before one was ready
	// LatestCreatedRevisionName names the newest Revision. Empty: the App has no place for what pods say.
	LatestCreatedRevisionName string
	Stopped                   bool
	Status                    string    // the App's state in one word; see kservice.StatusWord
	LastChange                time.Time // the newest time that the object carries

	app Encoded // without its count of replicas
}

// Object is the Knative Service with its metadata and the name of its Revision.
func (s *CachedService) Object() *kservice.Service {
	return &kservice.Service{ObjectMeta: s.meta(), Status: kservice.ServiceStatus{LatestReadyRevisionName: s.LatestReadyRevisionName}}
}

// GetObjectMeta returns what an informer reads of an object.
func (s *CachedService) GetObjectMeta() metav1.Object {
	meta := s.meta()
	return &meta
}

func (s *CachedService) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion,
		Generation: s.Generation, CreationTimestamp: s.CreationTimestamp,
	}
}

// Key is its namespace and name.
func (s *CachedService) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
}

// IsApp reports whether the object has the id of an app.
func (s *CachedService) IsApp() bool { return s.ID != subjects.AppID{} }

// Keeper makes Services. It is the transform of an informer.
type Keeper struct {
	App  kservice.Config
	Form string // content type of the Apps
	// PodConditions prepares Apps for what their pods say.
	PodConditions bool
}

// Transform replaces a Knative Service by what is kept of it, and trims a Revision. It returns what
// it returned once, and any other object, as it is. The error is always nil: one error would fail a
// whole list.
func (k Keeper) Transform(obj any) (any, error) {
	if svc, ok := obj.(*kservice.Service); ok {
		return k.Keep(svc), nil
	}
	return kservice.Trim(obj)
}

// Keep returns what is kept of a Knative Service. What cannot be published has the reason.
func (k Keeper) Keep(svc *kservice.Service) *CachedService {
	kept := &CachedService{
		Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID, ResourceVersion: svc.ResourceVersion,
		Generation: svc.Generation, CreationTimestamp: svc.CreationTimestamp,
		Org: kservice.Org(svc), Selection: kservice.SelectionOf(svc),
		LatestReadyRevisionName: svc.Status.LatestReadyRevisionName, Stopped: kservice.Stopped(svc),
		Status: kservice.StatusWord(svc), LastChange: kservice.LastChange(svc),
	}
	if kept.ID, kept.Err = Identity(svc); kept.Err != nil {
		return kept
	}
	speaks := -1
	if k.PodConditions {
		if speaks = kservice.ReadyIndex(svc); speaks >= 0 {
			kept.LatestCreatedRevisionName = svc.Status.LatestCreatedRevisionName
		}
	}
	app, err := kservice.Convert(svc, nil, k.App)
	if err == nil {
		kept.app, err = encodeCountless(app, k.Form, speaks)
	}
	if err != nil {
		kept.Err = fmt.Errorf("convert %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	return kept
}
