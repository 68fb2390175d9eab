package kservice

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// replicaLabels are the labels of the pods of an app: that of its Knative Service and, once a
// Revision was ready, that of the latest ready one. svc is the app's Service. If it is nil, its
// name follows from the id.
func replicaLabels(id subjects.AppID, svc *Service) map[string]string {
	if svc == nil {
		return map[string]string{LabelService: Name(id)}
	}
	want := map[string]string{LabelService: svc.Name}
	if svc.Status.LatestReadyRevisionName != "" {
		want[LabelRevision] = svc.Status.LatestReadyRevisionName
	}
	return want
}

// OwnsPod reports whether a pod with these labels belongs to the Knative Service of that name and
// uid in its namespace. A pod that Knative did not label with a uid belongs to it by the name
// alone. A deleted Service and its successor of the same name may be two apps, and the pods of the
// first outlive it by up to the timeout of its Revision.
func OwnsPod(service string, uid types.UID, pod map[string]string) bool {
	label := pod[LabelServiceUID]
	return pod[LabelService] == service && (label == "" || label == string(uid))
}

// Replicas are the replicas of an app among pods of its namespace, sorted by name. id is the app in
// the replicas, svc its Knative Service. If svc is nil, Replicas matches by name alone like Flyte,
// which does not prove that the pods are this app's. The replicas share nothing with the arguments.
func Replicas(id *appv1.Identifier, svc *Service, pods []corev1.Pod) []*appv1.Replica {
	app := subjects.AppID{Project: id.GetProject(), Domain: id.GetDomain(), Name: id.GetName()}
	selector := labels.SelectorFromSet(replicaLabels(app, svc))
	var out []*appv1.Replica
	for i := range pods {
		pod := &pods[i]
		if !selector.Matches(labels.Set(pod.Labels)) || svc != nil && !OwnsPod(svc.Name, svc.UID, pod.Labels) {
			continue
		}
		status, reason := PodStatus(pod)
		out = append(out, &appv1.Replica{
			Metadata: &appv1.ReplicaMeta{Id: &appv1.ReplicaIdentifier{AppId: proto.CloneOf(id), Name: pod.Name}},
			Status:   &appv1.ReplicaStatus{DeploymentStatus: status, Reason: reason},
		})
	}
	slices.SortStableFunc(out, func(a, b *appv1.Replica) int {
		return cmp.Compare(a.GetMetadata().GetId().GetName(), b.GetMetadata().GetId().GetName())
	})
	return out
}
