package logsvc

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podState is what decides how the log of a container is read: which instances
// of it there are, by container id or what stands in for it, and what will become of it.
type podState struct {
	gone    bool   // the pod is not there any more
	over    bool   // the container does not run and will not be started again
	running bool   // current runs
	current string // whose log a request brings; empty: nothing was started yet
	last    string // whose log a request for the previous one brings; empty: nobody's
	started time.Time
	ended   *corev1.ContainerStateTerminated // how current ended
	waiting string                           // why nothing runs
}

// stateOf reads the state of a container from the pod of that uid, nil when there
// is none. Of a container that waits to be started again, the kubelet brings the
// log that ended last, asked for the previous one or not.
func stateOf(pod *corev1.Pod, uid types.UID, container string) podState {
	if pod == nil || pod.UID != uid {
		return podState{gone: true}
	}
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	s := podState{over: finished}
	status, restart := statusOf(pod, container)
	if status == nil {
		return s
	}
	before := status.LastTerminationState.Terminated
	if before != nil {
		restarts := status.RestartCount
		if status.State.Running != nil || status.State.Terminated != nil {
			restarts-- // the last of them came after it
		}
		s.last = endedID(before, restarts)
	}
	switch {
	case status.State.Running != nil:
		s.started = status.State.Running.StartedAt.Time
		s.current = cmp.Or(status.ContainerID, standInID(s.started, status.RestartCount))
		s.running = !finished
		return s
	case status.State.Terminated != nil:
		s.ended = status.State.Terminated
	case before != nil:
		s.ended = before
	}
	if waiting := status.State.Waiting; waiting != nil {
		s.waiting = waiting.Reason
	}
	if s.ended != nil {
		s.current, s.started = endedID(s.ended, status.RestartCount), s.ended.StartedAt.Time
		s.over = finished || pod.DeletionTimestamp != nil || !restart(s.ended)
	}
	return s
}

// endedID identifies an instance that has ended, after so many restarts. It is empty for one that
// the kubelet lost sight of: then there is neither an id nor a start time, and no log.
func endedID(ended *corev1.ContainerStateTerminated, restarts int32) string {
	if ended.ContainerID == "" && ended.StartedAt.IsZero() {
		return ""
	}
	return cmp.Or(ended.ContainerID, standInID(ended.StartedAt.Time, restarts))
}

// standInID identifies an instance without a container id, as virtual kubelets report it. The
// start time alone does not: it has whole seconds.
func standInID(started time.Time, restarts int32) string {
	return fmt.Sprintf("restart %d, started %s", restarts, started.UTC().Format(time.RFC3339))
}

// statusOf is the status of a container, nil when there is none yet, and whether
// it is started again after it ended so.
func statusOf(pod *corev1.Pod, container string) (*corev1.ContainerStatus, func(*corev1.ContainerStateTerminated) bool) {
	for i := range pod.Status.ContainerStatuses {
		if status := &pod.Status.ContainerStatuses[i]; status.Name == container {
			return status, restarts(pod.Spec.RestartPolicy)
		}
	}
	for i := range pod.Status.InitContainerStatuses {
		if status := &pod.Status.InitContainerStatuses[i]; status.Name == container {
			return status, restarts(initPolicy(pod, container))
		}
	}
	return nil, nil
}

// initPolicy is how an init container is started again: until it succeeds,
// unless it is one that goes on beside the others.
func initPolicy(pod *corev1.Pod, container string) corev1.RestartPolicy {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == container && c.RestartPolicy != nil {
			return corev1.RestartPolicy(*c.RestartPolicy)
		}
	}
	if pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
		return corev1.RestartPolicyNever
	}
	return corev1.RestartPolicyOnFailure
}

func restarts(policy corev1.RestartPolicy) func(*corev1.ContainerStateTerminated) bool {
	return func(ended *corev1.ContainerStateTerminated) bool {
		switch policy {
		case corev1.RestartPolicyNever:
			return false
		case corev1.RestartPolicyOnFailure:
			return ended.ExitCode != 0
		}
		return true
	}
}

// endText says how the container ended.
func (s podState) endText() string {
	if s.ended == nil {
		return "ended"
	}
	text := fmt.Sprintf("ended with exit code %d", s.ended.ExitCode)
	if s.ended.Reason != "" {
		text += " (" + s.ended.Reason + ")"
	}
	return text
}

// podStep is what a reader does next.
type podStep int

const (
	// stepDone: there is nothing to read any more and will not be.
	stepDone podStep = iota
	// stepWait: for a container to be started.
	stepWait
	// stepBegin: another instance is there, and is the one to read from now on.
	stepBegin
	// stepFollow: the instance runs.
	stepFollow
	// stepRest: the instance has ended; read what is left of its log.
	stepRest
	// stepPrevious: likewise, and its log is now that of the previous one.
	stepPrevious
)

// podProgress is how far a reader is.
type podProgress struct {
	id string // the instance that is read; empty: none yet
	// complete: it has ended and all of its log was handed out, or what was not
	// cannot be had any more.
	complete bool
	before   string // the instance that was read before
}

// next decides what to do about a container in that state; the id is for stepBegin.
func (p podProgress) next(s podState) (podStep, string) {
	if s.gone {
		return stepDone, ""
	}
	if p.id != "" && !p.complete {
		switch {
		case p.id == s.current && s.running:
			return stepFollow, ""
		case p.id == s.current:
			return stepRest, ""
		case p.id == s.last:
			return stepPrevious, ""
		}
	}
	switch {
	case s.current != "" && s.current != p.id:
		// One that came and went meanwhile is read first.
		if p.id != "" && s.last != "" && s.last != p.id && s.last != p.before {
			return stepBegin, s.last
		}
		return stepBegin, s.current
	case s.over:
		return stepDone, ""
	}
	return stepWait, ""
}
