package kservice

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/subjects/appv1"
)

// OwnsPod reports whether a pod with these labels belongs to the Knative Service of that name and
// uid in its namespace. A pod that Knative did not label with a uid belongs to it by the name
// alone. A deleted Service and its successor of the same name may be two apps, and the pods of the
// first outlive it by up to the timeout of its Revision.
func OwnsPod(service string, uid types.UID, pod map[string]string) bool {
	label := pod[LabelServiceUID]
	return pod[LabelService] == service && (label == "" || label == string(uid))
}

// Replicas are the replicas of an app among pods of its namespace, sorted by name: the pods of its
// Knative Service and, once a Revision was ready, only those of the latest ready one. id is the app
// in the replicas. The replicas share nothing with the arguments.
func Replicas(id *appv1.Identifier, svc *Service, pods []corev1.Pod) []*appv1.Replica {
	ready := svc.Status.LatestReadyRevisionName
	var out []*appv1.Replica
	for i := range pods {
		pod := &pods[i]
		if !OwnsPod(svc.Name, svc.UID, pod.Labels) || ready != "" && pod.Labels[LabelRevision] != ready {
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

// Statuses of replicas: deployment statuses without their prefix.
const (
	replicaActive    = "ACTIVE"
	replicaDeploying = "DEPLOYING"
	replicaPending   = "PENDING"
	replicaFailed    = "FAILED"
	replicaStopped   = "STOPPED"
)

// PodStatus is the status of a replica and, if known, the reason. It follows from the phase of the
// pod and its container statuses. Init containers, conditions and a deletion in progress do not
// count.
func PodStatus(pod *corev1.Pod) (status, reason string) {
	containers := pod.Status.ContainerStatuses
	switch pod.Status.Phase {
	case corev1.PodRunning:
		return runningStatus(containers)
	case corev1.PodPending:
		for i := range containers {
			if waiting := containers[i].State.Waiting; waiting != nil && waiting.Reason != "" {
				return replicaPending, waiting.Reason
			}
		}
		return replicaPending, "Pending"
	case corev1.PodFailed:
		reason = pod.Status.Reason
		if reason == "" && len(containers) > 0 && containers[0].State.Terminated != nil {
			reason = containers[0].State.Terminated.Reason
		}
		return replicaFailed, reason
	case corev1.PodSucceeded:
		return replicaStopped, "pod completed"
	default:
		return replicaPending, string(pod.Status.Phase)
	}
}

// runningStatus is active once every container is ready.
func runningStatus(containers []corev1.ContainerStatus) (status, reason string) {
	for i := range containers {
		if containers[i].Ready {
			continue
		}
		if waiting := containers[i].State.Waiting; waiting != nil {
			return replicaDeploying, waiting.Reason
		}
		return replicaDeploying, "container not ready"
	}
	return replicaActive, ""
}
