package pods

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// containerState is the state of a container as far as its log is concerned: the ids of its
// instances, and whether it will run again.
type containerState struct {
	gone    bool   // the pod does not exist any more
	over    bool   // the container has ended and will not restart
	running bool   // current runs
	current string // the instance whose log a request returns; empty: none has started
	last    string // the instance whose log a request for the previous one returns; empty: none
	number  int32  // how many instances came before current
	started time.Time
	ended   *corev1.ContainerStateTerminated // how current ended
	waiting string                           // the reason why none runs
}

// instance returns the id of the instance whose log a request returns, empty for none.
func (s containerState) instance(previous bool) string {
	if previous {
		return s.last
	}
	return s.current
}

// numberOf returns how many instances came before one.
func (s containerState) numberOf(id string) int32 {
	if id == s.last && id != s.current {
		return s.number - 1
	}
	return s.number
}

// stateOf returns the state of a container of the pod with that uid; pod may be nil. While a
// container waits for its restart, the kubelet returns the log of the last instance to both kinds
// of requests.
func stateOf(pod *corev1.Pod, uid types.UID, container string) containerState {
	if pod == nil || pod.UID != uid {
		return containerState{gone: true}
	}
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	s := containerState{over: finished}
	status, policy := statusOf(pod, container)
	if status == nil {
		return s
	}
	s.number = status.RestartCount
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
		s.over = finished || pod.DeletionTimestamp != nil || !restarts(policy, s.ended)
	}
	return s
}

// endedID identifies an instance that has ended, after so many restarts. It is empty for a
// container with the status ContainerStatusUnknown: it has no id, no start time and no log.
func endedID(ended *corev1.ContainerStateTerminated, restarts int32) string {
	if ended.ContainerID == "" && ended.StartedAt.IsZero() {
		return ""
	}
	return cmp.Or(ended.ContainerID, standInID(ended.StartedAt.Time, restarts))
}

// standInID identifies an instance without a container id, as virtual kubelets report it. The
// start time alone is not enough: its resolution is one second.
func standInID(started time.Time, restarts int32) string {
	return fmt.Sprintf("restart %d, started %s", restarts, started.UTC().Format(time.RFC3339))
}

// statusOf returns the status of a container, nil if it has none yet, and its restart policy.
func statusOf(pod *corev1.Pod, container string) (*corev1.ContainerStatus, corev1.RestartPolicy) {
	named := func(status corev1.ContainerStatus) bool { return status.Name == container }
	if i := slices.IndexFunc(pod.Status.ContainerStatuses, named); i >= 0 {
		return &pod.Status.ContainerStatuses[i], pod.Spec.RestartPolicy
	}
	if i := slices.IndexFunc(pod.Status.InitContainerStatuses, named); i >= 0 {
		return &pod.Status.InitContainerStatuses[i], initPolicy(pod, container)
	}
	if i := slices.IndexFunc(pod.Status.EphemeralContainerStatuses, named); i >= 0 {
		return &pod.Status.EphemeralContainerStatuses[i], corev1.RestartPolicyNever
	}
	return nil, ""
}

// initPolicy is the restart policy of an init container: it restarts until it succeeds, unless it
// is a sidecar with a policy of its own.
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

func restarts(policy corev1.RestartPolicy, ended *corev1.ContainerStateTerminated) bool {
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return ended.ExitCode != 0
	}
	return true
}

func (s containerState) endText() string {
	if s.ended == nil {
		return "ended"
	}
	text := fmt.Sprintf("ended with exit code %d", s.ended.ExitCode)
	if s.ended.Reason != "" {
		text += " (" + s.ended.Reason + ")"
	}
	return text
}

// nextStep is what a tailer does next.
type nextStep int

const (
	stepDone     nextStep = iota // the log is read to its end
	stepWait                     // the container has to start
	stepBegin                    // another instance has to be read
	stepFollow                   // the instance runs
	stepRest                     // the instance has ended; the rest of its log has to be read
	stepPrevious                 // the same, but the log is now that of the previous instance
)

// progress is how far a tailer is.
type progress struct {
	id       string // the instance that is read; empty: none yet
	complete bool   // it has ended and all of its log was read, or the rest is lost
	before   string // the instance that was read before
	number   int32  // how many instances came before id
}

// skips reports whether lines are missing when the instance id is read next: the rest of the one that was
// read, or all of others. That the query's instance is gone is noted when a log is opened.
func (p progress) skips(s containerState, id string) bool {
	unread := !p.complete && p.id != s.current && p.id != s.last
	return p.id != goneInstance && (unread || s.numberOf(id) > p.number+1)
}

// next returns what to do in a state of the container; the id is for stepBegin.
func (p progress) next(s containerState) (nextStep, string) {
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
		// An instance that started and ended in the meantime is read first.
		if p.id != "" && s.last != "" && s.last != p.id && s.last != p.before {
			return stepBegin, s.last
		}
		return stepBegin, s.current
	case s.over:
		return stepDone, ""
	}
	return stepWait, ""
}

// outage is a time in which a replica cannot be read. The zero value is none.
type outage struct {
	since    time.Time // zero: there is none
	reported bool
}

// failed records a failure and returns the time since the first one.
func (o *outage) failed() time.Duration {
	if o.since.IsZero() {
		o.since = time.Now()
	}
	return time.Since(o.since)
}

func (o *outage) end() { *o = outage{} }

// followedLog is the log that a tailer follows. Others cancel the follow when its container has
// ended: the connection to a node that is lost stays open.
type followedLog struct {
	mu      sync.Mutex
	id      string // of the instance; empty: none is followed
	cancel  context.CancelCauseFunc
	suspect bool
}

func (f *followedLog) begin(id string, cancel context.CancelCauseFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.id, f.cancel, f.suspect = id, cancel, false
}

func (f *followedLog) end() { f.begin("", nil) }

// recheck receives the state of the container from each resync. A follow whose instance has
// ended is cancelled by the second resync that finds it so.
func (f *followedLog) recheck(s containerState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.id == "" {
		return
	}
	stale := s.gone || !s.running || s.current != f.id
	if stale && f.suspect {
		f.cancel(errStale)
	}
	f.suspect = stale
}

// observe receives each change of the container. When another instance runs, the follow is
// cancelled at once: the rest of the log is that of the previous instance now.
func (f *followedLog) observe(s containerState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.id != "" && s.running && s.current != f.id {
		f.cancel(errStale)
	}
}
