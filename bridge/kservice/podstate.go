package kservice

import (
	"iter"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/subjects/appv1"
)

// SettleTime is how long a container must have run after a restart before its crashes are over. After
// so long a run a kubelet forgets its back-off: twice its longest pause between two restarts. A loop
// whose runs are shorter does not end and begin with each of them.
const SettleTime = 10 * time.Minute

// PodState is what one pod says about its Revision. It is comparable. The zero value says nothing.
type PodState struct {
	Service    string    // name of the Knative Service
	ServiceUID types.UID // its uid, empty if Knative did not label the pod with it
	Revision   string

	Ready    bool
	Substate appv1.Status_Substate // what keeps the pod from serving; unspecified: nothing
	// Settles is when Substate gives way to Then, in seconds since 1970, unless the pod changes
	// before. 0: Substate lasts.
	Settles int64
	Then    appv1.Status_Substate
}

// At is the substate at a time.
func (p PodState) At(now time.Time) appv1.Status_Substate {
	if p.Settles != 0 && now.Unix() >= p.Settles {
		return p.Then
	}
	return p.Substate
}

// PodCondition is what the pods of an app say: a substate and the Revision whose pods say so. It is
// comparable. The zero value is no condition.
type PodCondition struct {
	Substate appv1.Status_Substate
	Revision string
}

// Reason is the substate in one word, empty without one.
func (c PodCondition) Reason() string {
	if c.Substate == appv1.Status_SUBSTATE_UNSPECIFIED {
		return ""
	}
	return c.Substate.String()
}

// severity has the substates that pods can have, the most severe first.
var severity = []appv1.Status_Substate{
	appv1.Status_OOM_KILLED,
	appv1.Status_CRASH_LOOP,
	appv1.Status_SECRET_MOUNT_ERROR,
	appv1.Status_IMAGE_PULL_ERROR,
	appv1.Status_PULLING_IMAGE,
	appv1.Status_INITIALIZING,
	appv1.Status_SUBSTATE_UNSPECIFIED,
}

// worse is the more severe of two substates.
func worse(a, b appv1.Status_Substate) appv1.Status_Substate {
	if slices.Index(severity, b) < slices.Index(severity, a) {
		return b
	}
	return a
}

// isStart reports whether a substate is a step of a start, not a failure.
func isStart(s appv1.Status_Substate) bool {
	return s == appv1.Status_PULLING_IMAGE || s == appv1.Status_INITIALIZING
}

// ConditionOf is what pods say at a time about the Revisions that a Service names as the latest
// created and the latest ready one. Other pods do not count.
//
// Of several substates the most severe counts, of equal ones that of the latest created Revision. A
// start counts only while no pod of its Revision is ready. next is when the result may change
// although no pod does, in seconds since 1970, 0: never.
func ConditionOf(created, ready string, pods iter.Seq[PodState], now time.Time) (found PodCondition, next int64) {
	revisions := [...]struct {
		name           string
		serves         bool
		failure, start appv1.Status_Substate
	}{{name: created}, {name: ready}}
	for p := range pods {
		for i := range revisions {
			r := &revisions[i]
			if r.name == "" || r.name != p.Revision {
				continue
			}
			r.serves = r.serves || p.Ready
			if s := p.At(now); isStart(s) {
				r.start = worse(r.start, s)
			} else {
				r.failure = worse(r.failure, s)
			}
			if p.Settles > now.Unix() && (next == 0 || p.Settles < next) {
				next = p.Settles
			}
		}
	}
	for _, r := range revisions {
		substate := r.failure
		if !r.serves {
			substate = worse(substate, r.start)
		}
		if worse(found.Substate, substate) != found.Substate {
			found = PodCondition{substate, r.name}
		}
	}
	return found, next
}

// PodStateOf is the state of a pod. One that ends, or has ended, says nothing: it was scaled down,
// replaced or evicted. Neither does one without a node: Knative's own conditions say so.
func PodStateOf(pod *corev1.Pod) PodState {
	state := PodState{
		Service: pod.Labels[LabelService], ServiceUID: types.UID(pod.Labels[LabelServiceUID]), Revision: pod.Labels[LabelRevision],
	}
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return state
	}
	state.Ready = hasCondition(pod, corev1.PodReady)
	lasting := appv1.Status_SUBSTATE_UNSPECIFIED
	if !state.Ready {
		lasting = startOf(pod)
	}
	passing := appv1.Status_SUBSTATE_UNSPECIFIED
	for part, containers := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range containers {
			c := &containers[i]
			if ended := c.State.Terminated; part == 0 && ended != nil && ended.ExitCode == 0 {
				continue // an init container that is done
			}
			substate, settles := containerState(c)
			if settles == 0 {
				lasting = worse(lasting, substate)
				continue
			}
			passing, state.Settles = worse(passing, substate), max(state.Settles, settles)
		}
	}
	state.Substate, state.Then = worse(lasting, passing), lasting
	if state.Substate == lasting {
		state.Settles, state.Then = 0, appv1.Status_SUBSTATE_UNSPECIFIED
	}
	return state
}

func hasCondition(pod *corev1.Pod, of corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == of && c.Status == corev1.ConditionTrue
	})
}

// startOf is the step of the start of a pod that is not ready. A kubelet pulls the images when the
// sandbox and the volumes are there.
func startOf(pod *corev1.Pod) appv1.Status_Substate {
	if len(pod.Status.ContainerStatuses) == 0 {
		return appv1.Status_SUBSTATE_UNSPECIFIED // no kubelet has it yet
	}
	if hasCondition(pod, corev1.PodReadyToStartContainers) {
		for i := range pod.Status.ContainerStatuses {
			if waiting := pod.Status.ContainerStatuses[i].State.Waiting; waiting != nil && waiting.Reason == "ContainerCreating" {
				return appv1.Status_PULLING_IMAGE
			}
		}
	}
	return appv1.Status_INITIALIZING
}

// containerState is what a container says about its failure, and when that is over, 0: not by
// itself. A container that is to run for ever fails also if it ends with code 0.
func containerState(c *corev1.ContainerStatus) (substate appv1.Status_Substate, settles int64) {
	if c.State.Terminated != nil {
		return crash(c.State.Terminated, c.RestartCount+1), 0
	}
	last := c.LastTerminationState.Terminated
	if c.State.Waiting != nil {
		substate = waitingState(c.State.Waiting, last)
	}
	if substate != appv1.Status_SUBSTATE_UNSPECIFIED || last == nil || c.RestartCount == 0 {
		return substate, 0
	}
	switch {
	case c.State.Waiting != nil: // a kubelet that has just started gives no reason, or that of a first start
		return crash(last, c.RestartCount), 0
	case c.State.Running != nil && isKnown(c.State.Running.StartedAt): // else nothing would end the crash
		if substate = crash(last, c.RestartCount); substate != appv1.Status_SUBSTATE_UNSPECIFIED {
			settles = c.State.Running.StartedAt.Add(SettleTime).Unix()
		}
	}
	return substate, settles
}

// waitingState is what the reason of a waiting container means. These are the reasons of kubelets.
func waitingState(waiting *corev1.ContainerStateWaiting, last *corev1.ContainerStateTerminated) appv1.Status_Substate {
	switch waiting.Reason {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
		return appv1.Status_IMAGE_PULL_ERROR
	case "CreateContainerConfigError":
		// Also of a ConfigMap or a user, of which Flyte has no word.
		if lacksSecret(waiting.Message) {
			return appv1.Status_SECRET_MOUNT_ERROR
		}
	case "CrashLoopBackOff", "RunContainerError", "CreateContainerError", "PreCreateHookError", "PreStartHookError", "PostStartHookError":
		if last != nil && last.Reason == reasonOOMKilled {
			return appv1.Status_OOM_KILLED
		}
		return appv1.Status_CRASH_LOOP
	}
	return appv1.Status_SUBSTATE_UNSPECIFIED
}

// lacksSecret reports whether a kubelet's message is about a missing Secret or a key of one. The
// plural is that of kubelets that ask the API server for each Secret.
func lacksSecret(message string) bool {
	return strings.HasPrefix(message, `secret "`) || strings.HasPrefix(message, `secrets "`) ||
		strings.HasPrefix(message, "couldn't find key ") && strings.Contains(message, " in Secret ")
}

const reasonOOMKilled = "OOMKilled"

// crash is what the end of a container's run means, if the container has ended so many times. One
// end is no loop, and neither is one after a long run.
func crash(ended *corev1.ContainerStateTerminated, times int32) appv1.Status_Substate {
	switch {
	case ended.Reason == reasonOOMKilled:
		return appv1.Status_OOM_KILLED
	case times < 2 || !endedEarly(ended):
		return appv1.Status_SUBSTATE_UNSPECIFIED
	default:
		return appv1.Status_CRASH_LOOP
	}
}

// endedEarly reports whether a container did not start, or ended before it had run for SettleTime.
func endedEarly(ended *corev1.ContainerStateTerminated) bool {
	switch {
	case !isKnown(ended.FinishedAt): // the kubelet has lost the container (ContainerStatusUnknown)
		return false
	case !isKnown(ended.StartedAt): // it could not be started (StartError of containerd)
		return true
	default:
		return ended.FinishedAt.Sub(ended.StartedAt.Time) < SettleTime
	}
}

// isKnown reports whether a time is set. A container runtime has 0 nanoseconds since 1970 for none.
func isKnown(t metav1.Time) bool { return t.Unix() > 0 }
