package watch

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// watchedID is the app of watchedService.
var watchedID = subjects.AppID{Project: "vision", Domain: "development", Name: "stream.lit"}

func watchedService(uid, version, status string) *kservice.Service {
	created := metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	return &kservice.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: "stream.lit-vision-development", Namespace: "flyte", UID: types.UID(uid), ResourceVersion: version, Generation: 3,
			CreationTimestamp: created,
			Labels:            map[string]string{kservice.LabelManaged: "true"},
			Annotations: map[string]string{
				kservice.AnnotationAppID: "vision/development/stream.lit",
			},
		},
		Status: kservice.ServiceStatus{
			LatestReadyRevisionName: "rev-1",
			Conditions: []kservice.Condition{{
				Type: "Ready", Status: status, Reason: "Because", Message: "of that",
				LastTransitionTime: kservice.Time{Time: created.Add(90 * time.Second)},
			}},
		},
	}
}

func watchedRevision(version string, replicas int32) *kservice.Revision {
	return &kservice.Revision{
		ObjectMeta: metav1.ObjectMeta{Name: "rev-1", Namespace: "flyte", ResourceVersion: version},
		Status:     kservice.RevisionStatus{ActualReplicas: &replicas},
	}
}
