package testenv

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// status fills in the pod's status as a kubelet writes it.
func (p *Pod) status(status *corev1.PodStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ready := true
	status.Phase = corev1.PodPending
	status.ContainerStatuses = nil
	for _, c := range p.containers {
		s := c.status()
		if p.noIDs {
			s.ContainerID = ""
			for _, ended := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
				if ended != nil {
					ended.ContainerID = ""
				}
			}
		}
		status.ContainerStatuses = append(status.ContainerStatuses, s)
		ready = ready && s.Ready
		if c.current != nil {
			status.Phase = corev1.PodRunning
			if status.StartTime == nil {
				status.StartTime = &metav1.Time{Time: c.current.started}
			}
		}
	}
	if p.finished != "" {
		status.Phase = p.finished
	}
	if p.evicted {
		status.Reason, status.Message = "Evicted", "The node was low on resource: ephemeral-storage."
	}
	readiness := corev1.ConditionFalse
	if ready {
		readiness = corev1.ConditionTrue
	}
	now := metav1.Now()
	status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.ContainersReady, Status: readiness, LastTransitionTime: now},
		{Type: corev1.PodReady, Status: readiness, LastTransitionTime: now},
	}
}

func (c *container) status() corev1.ContainerStatus {
	status := corev1.ContainerStatus{
		Name: c.name, Image: c.name, ContainerID: c.id(), RestartCount: c.restarts,
	}
	ended := c.previous // what the last state tells of
	switch {
	case c.waiting != "":
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.waiting}
		ended = c.current
	case c.current.running:
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.current.started)}
		status.Ready = true
	default:
		status.State.Terminated = c.current.terminated()
	}
	started := status.Ready
	status.Started = &started
	if ended != nil {
		status.LastTerminationState.Terminated = ended.terminated()
	}
	return status
}

func (i *instance) terminated() *corev1.ContainerStateTerminated {
	reason := "Completed"
	if i.exit != 0 {
		reason = "Error"
	}
	return &corev1.ContainerStateTerminated{
		ExitCode: i.exit, Reason: reason, ContainerID: i.id,
		StartedAt: metav1.NewTime(i.started), FinishedAt: metav1.NewTime(i.finished),
	}
}
