package kservice

import corev1 "k8s.io/api/core/v1"

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
		if pod.Status.Reason != "" {
			return replicaFailed, pod.Status.Reason
		}
		if len(containers) > 0 && containers[0].State.Terminated != nil {
			return replicaFailed, containers[0].State.Terminated.Reason
		}
		return replicaFailed, ""
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
