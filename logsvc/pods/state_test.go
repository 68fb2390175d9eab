package pods

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func ended(id string, code int32) *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{ContainerID: id, ExitCode: code, Reason: "Error"}
}

func podOf(change func(pod *corev1.Pod, status *corev1.ContainerStatus)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "uid"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "queue-proxy"}, {Name: "app"}}},
	}
	change(pod, &pod.Status.ContainerStatuses[1])
	return pod
}

func TestStateOf(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	tests := []struct {
		name   string
		change func(pod *corev1.Pod, s *corev1.ContainerStatus)
		want   containerState // without ended, started and number
	}{
		{"runs", func(_ *corev1.Pod, s *corev1.ContainerStatus) { s.State, s.ContainerID = running, "c1" }, containerState{running: true, current: "c1"}},
		{"runs without an id", func(_ *corev1.Pod, s *corev1.ContainerStatus) { s.State, s.RestartCount = running, 2 }, containerState{
			running: true, current: "restart 2, started 0001-01-01T00:00:00Z",
		}},
		{"runs again without an id", func(_ *corev1.Pod, s *corev1.ContainerStatus) {
			s.State, s.RestartCount = running, 2
			s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{StartedAt: metav1.NewTime(epoch)}
		}, containerState{
			running: true, current: "restart 2, started 0001-01-01T00:00:00Z", last: "restart 1, started 2026-03-14T09:26:53Z",
		}},
		{"waits between two without an id", func(_ *corev1.Pod, s *corev1.ContainerStatus) {
			s.State, s.RestartCount = waiting, 1
			s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{StartedAt: metav1.NewTime(epoch)}
		}, containerState{
			current: "restart 1, started 2026-03-14T09:26:53Z", last: "restart 1, started 2026-03-14T09:26:53Z", waiting: "CrashLoopBackOff",
		}},
		{"ended out of sight of the kubelet", func(pod *corev1.Pod, s *corev1.ContainerStatus) {
			pod.Status.Phase = corev1.PodFailed
			s.State.Terminated = &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown", ExitCode: 137}
		}, containerState{over: true}},
		{"runs again", func(_ *corev1.Pod, s *corev1.ContainerStatus) {
			s.State, s.ContainerID, s.LastTerminationState.Terminated = running, "c2", ended("c1", 1)
		}, containerState{running: true, current: "c2", last: "c1"}},
		{"another pod of the name", func(pod *corev1.Pod, s *corev1.ContainerStatus) {
			pod.UID, s.State, s.ContainerID = "other", running, "c1"
		}, containerState{gone: true}},
		{"not started", func(_ *corev1.Pod, s *corev1.ContainerStatus) {
			s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
		}, containerState{waiting: "ContainerCreating"}},
		{"no status yet", func(pod *corev1.Pod, _ *corev1.ContainerStatus) { pod.Status.ContainerStatuses = nil }, containerState{}},
		{"evicted before it started", func(pod *corev1.Pod, _ *corev1.ContainerStatus) {
			pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodFailed, nil
		}, containerState{over: true}},
		{"waits between two", func(_ *corev1.Pod, s *corev1.ContainerStatus) {
			s.State, s.LastTerminationState.Terminated = waiting, ended("c1", 1)
		}, containerState{current: "c1", last: "c1", waiting: "CrashLoopBackOff"}},
		{"ended, will start again", func(_ *corev1.Pod, s *corev1.ContainerStatus) {
			s.State.Terminated, s.LastTerminationState.Terminated = ended("c2", 0), ended("c1", 1)
		}, containerState{current: "c2", last: "c1"}},
		{"ended in a pod that is deleted", func(pod *corev1.Pod, s *corev1.ContainerStatus) {
			pod.DeletionTimestamp, s.State.Terminated = new(metav1.Time), ended("c1", 0)
		}, containerState{current: "c1", over: true}},
		{"runs in a pod that is deleted", func(pod *corev1.Pod, s *corev1.ContainerStatus) {
			pod.DeletionTimestamp, s.State, s.ContainerID = new(metav1.Time), running, "c1"
		}, containerState{current: "c1", running: true}},
		{"finished", func(pod *corev1.Pod, s *corev1.ContainerStatus) {
			pod.Status.Phase, s.State.Terminated = corev1.PodSucceeded, ended("c1", 0)
		}, containerState{current: "c1", over: true}},
		{"never again", func(pod *corev1.Pod, s *corev1.ContainerStatus) {
			pod.Spec.RestartPolicy, s.State.Terminated = corev1.RestartPolicyNever, ended("c1", 1)
		}, containerState{current: "c1", over: true}},
		{"again after a failure", func(pod *corev1.Pod, s *corev1.ContainerStatus) {
			pod.Spec.RestartPolicy, s.State.Terminated = corev1.RestartPolicyOnFailure, ended("c1", 1)
		}, containerState{current: "c1"}},
		{"an init container that is through", func(pod *corev1.Pod, s *corev1.ContainerStatus) {
			s.State.Terminated = ended("c1", 0)
			pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = pod.Status.ContainerStatuses, nil
		}, containerState{current: "c1", over: true}},
		{"an init container that goes on", func(pod *corev1.Pod, s *corev1.ContainerStatus) {
			always := corev1.ContainerRestartPolicyAlways
			pod.Spec.InitContainers = []corev1.Container{{Name: "app", RestartPolicy: &always}}
			s.State.Terminated = ended("c1", 0)
			pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = pod.Status.ContainerStatuses, nil
		}, containerState{current: "c1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := stateOf(podOf(tt.change), "uid", "app")
			got.ended, got.started, got.number = nil, time.Time{}, 0
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
	if got := stateOf(nil, "uid", "app"); !got.gone {
		t.Errorf("no pod: got %+v", got)
	}
}

func TestNextStep(t *testing.T) {
	running := func(current, last string) containerState {
		return containerState{running: true, current: current, last: last}
	}
	tests := []struct {
		name     string
		progress progress
		state    containerState
		step     nextStep
		id       string
	}{
		{"gone", progress{id: "c1"}, containerState{gone: true}, stepDone, ""},
		{"not started", progress{}, containerState{}, stepWait, ""},
		{"never started", progress{}, containerState{over: true}, stepDone, ""},
		{"started", progress{}, running("c1", ""), stepBegin, "c1"},
		{"started before", progress{}, running("c2", "c1"), stepBegin, "c2"},
		{"waits at first", progress{}, containerState{current: "c1", last: "c1"}, stepBegin, "c1"},
		{"runs", progress{id: "c1"}, running("c1", ""), stepFollow, ""},
		{"ended", progress{id: "c1"}, containerState{current: "c1"}, stepRest, ""},
		{"waits", progress{id: "c1"}, containerState{current: "c1", last: "c1"}, stepRest, ""},
		{"waits and is read", progress{id: "c1", complete: true}, containerState{current: "c1", last: "c1"}, stepWait, ""},
		{"over", progress{id: "c1"}, containerState{current: "c1", over: true}, stepRest, ""},
		{"over and is read", progress{id: "c1", complete: true}, containerState{current: "c1", over: true}, stepDone, ""},
		{"started again, unread", progress{id: "c1"}, running("c2", "c1"), stepPrevious, ""},
		{"started again", progress{id: "c1", complete: true}, running("c2", "c1"), stepBegin, "c2"},
		{"started twice", progress{id: "c1", complete: true}, running("c3", "c2"), stepBegin, "c2"},
		{"started twice, unread", progress{id: "c1"}, running("c3", "c2"), stepBegin, "c2"},
		{"started twice, second one", progress{id: "c2", before: "c1"}, running("c3", "c2"), stepPrevious, ""},
		{"a report that is behind", progress{id: "c2", before: "c1", complete: true}, running("c3", "c1"), stepBegin, "c3"},
		{"crashed twice", progress{id: "c1", complete: true}, containerState{current: "c2", last: "c2"}, stepBegin, "c2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			step, id := tt.progress.next(tt.state)
			if step != tt.step || id != tt.id {
				t.Errorf("got %d %q, want %d %q", step, id, tt.step, tt.id)
			}
		})
	}
}

// An instance whose log nobody can read any more is noticed.
func TestSkips(t *testing.T) {
	read := func(id string, number int32) progress { return progress{id: id, number: number, complete: true} }
	runs := func(restarts int32) containerState {
		return containerState{running: true, number: restarts, current: fmt.Sprint("c", restarts), last: fmt.Sprint("c", restarts-1)}
	}
	waits := func(restarts int32) containerState {
		return containerState{number: restarts, current: fmt.Sprint("c", restarts), last: fmt.Sprint("c", restarts)}
	}
	for _, tt := range []struct {
		name     string
		progress progress
		state    containerState
		next     string
		want     bool
	}{
		{"the next one runs", read("c1", 1), runs(2), "c2", false},
		{"the next one has ended", read("c1", 1), waits(2), "c2", false},
		{"the last of two", read("c1", 1), runs(3), "c2", false},
		{"the last of three", read("c1", 1), runs(4), "c3", true},
		{"the second of two has ended", read("c1", 1), waits(3), "c3", true},
		{"unread", progress{id: "c1", number: 1}, runs(3), "c2", true},
		{"unread, without restart counts", progress{id: "c1"}, containerState{running: true, current: "c3", last: "c2"}, "c2", true},
		{"without restart counts", read("c1", 0), containerState{running: true, current: "c3", last: "c2"}, "c2", false},
		{"noted when the log was opened", progress{id: goneInstance, number: 3}, runs(3), "c2", false},
	} {
		if got := tt.progress.skips(tt.state, tt.next); got != tt.want {
			t.Errorf("%s: got %t", tt.name, got)
		}
	}
}
