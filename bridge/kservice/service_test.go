package kservice_test

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
)

// sampleService is a managed Service of the app p/d/n, ready since readyAt.
func sampleService() *kservice.Service {
	created := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	svc := &kservice.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "serving.knative.dev/v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "flyte", Name: "n-p-d", UID: "u", ResourceVersion: "7", Generation: 2,
			CreationTimestamp: metav1.NewTime(created),
			Labels: map[string]string{
				kservice.LabelManaged: "true", kservice.LabelProject: "p", kservice.LabelDomain: "d",
				"team": "blue",
			},
			Annotations: map[string]string{
				kservice.AnnotationAppID: "p/d/n", kservice.AnnotationOrg: "acme",
				kservice.AnnotationSpec:                            "CggKAWk6AwiQPw==",
				"kubectl.kubernetes.io/last-applied-configuration": "{}",
			},
			Finalizers: []string{"keep"},
		},
	}
	svc.Status.LatestReadyRevisionName = "n-p-d-00001"
	svc.Status.Conditions = []kservice.Condition{
		{Type: "ConfigurationsReady", Status: "True", LastTransitionTime: at(created, 10)},
		{Type: "Ready", Status: "True", LastTransitionTime: at(created, 20)},
		{Type: "RoutesReady", Status: "True"},
	}
	return svc
}

func sampleRevision() *kservice.Revision {
	return &kservice.Revision{
		ObjectMeta: metav1.ObjectMeta{Namespace: "flyte", Name: "n-p-d-00001"},
		Status:     kservice.RevisionStatus{ActualReplicas: new(int32(3))},
	}
}

func sampleConfig() kservice.Config {
	return kservice.Config{BaseDomain: "apps.example.com"}
}

func at(start time.Time, seconds int) kservice.Time {
	return kservice.Time{Time: start.Add(time.Duration(seconds) * time.Second)}
}

// managedAt adds an entry of managed fields; a negative number of seconds after
// the creation means an entry without time.
func managedAt(svc *kservice.Service, seconds int) {
	entry := metav1.ManagedFieldsEntry{Manager: "controller", FieldsV1: metav1.NewFieldsV1("{}")}
	if seconds >= 0 {
		entry.Time = new(metav1.NewTime(svc.CreationTimestamp.Add(time.Duration(seconds) * time.Second)))
	}
	svc.ManagedFields = append(svc.ManagedFields, entry)
}
