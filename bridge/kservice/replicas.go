package kservice

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// replicaLabels are the labels that the pods of an app have: that of its Knative
// Service and, once a Revision of it was ready, that of the latest ready one. svc
// is the app's Service, nil when there is none: then its name follows from the id.
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
func OwnsPod(service string, uid types.UID, labels map[string]string) bool {
	label := labels[LabelServiceUID]
	return labels[LabelService] == service && (label == "" || label == string(uid))
}

// Replicas are the replicas of an app among the given pods, by name; other pods
// are passed over. id is the app asked for and is what the replicas carry; svc is
// its Knative Service. Without one Flyte matches by the name alone, which does not prove
// that the pods are this app's. The caller holds the pods to the
// namespace. Nothing given is changed or shared.
func Replicas(id *appv1.Identifier, svc *Service, pods []corev1.Pod) []*appv1.Replica {
	want := replicaLabels(subjects.AppID{
		Project: id.GetProject(),
		Domain:  id.GetDomain(),
		Name:    id.GetName(),
	}, svc)
	var out []*appv1.Replica
	for i := range pods {
		pod := &pods[i]
		if !hasLabels(pod.Labels, want) || svc != nil && !OwnsPod(svc.Name, svc.UID, pod.Labels) {
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
