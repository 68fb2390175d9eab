package kservice

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// podNow is the time of these tests, when containers have just begun to run.
var podNow = time.Unix(1_800_000_000, 0)

func podWith(ready bool, conditions []corev1.PodConditionType, containers ...corev1.ContainerStatus) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", Labels: map[string]string{LabelService: "svc", LabelServiceUID: "u1", LabelRevision: "svc-00002"}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: containers},
	}
	if ready {
		conditions = append(conditions, corev1.PodReady)
	}
	for _, c := range conditions {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue})
	}
	return pod
}

func waits(reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
}

func ended(reason string, code int32, ran time.Duration) *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{
		Reason: reason, ExitCode: code, StartedAt: metav1.NewTime(podNow.Add(-ran)), FinishedAt: metav1.NewTime(podNow),
	}
}

func ends(restarts int32, last *corev1.ContainerStateTerminated) corev1.ContainerStatus {
	return corev1.ContainerStatus{RestartCount: restarts, State: corev1.ContainerState{Terminated: last}}
}

func runs(restarts int32, last *corev1.ContainerStateTerminated) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		RestartCount: restarts, Ready: true,
		State:                corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(podNow)}},
		LastTerminationState: corev1.ContainerState{Terminated: last},
	}
}

func after(c corev1.ContainerStatus, last *corev1.ContainerStateTerminated) corev1.ContainerStatus {
	c.RestartCount, c.LastTerminationState.Terminated = c.RestartCount+1, last
	return c
}

// unstarted is the end of a container that could not be started, with containerd's times.
func unstarted() *corev1.ContainerStateTerminated {
	never := metav1.NewTime(time.Unix(0, 0))
	return &corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128, StartedAt: never, FinishedAt: metav1.NewTime(podNow)}
}

// lost is the end of a container that a kubelet no longer finds. It has no times.
func lost() *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown", ExitCode: 137}
}

func withoutStart(c corev1.ContainerStatus) corev1.ContainerStatus {
	c.State.Running.StartedAt = metav1.Time{}
	return c
}

func TestPodStateOf(t *testing.T) {
	const (
		none     = appv1.Status_SUBSTATE_UNSPECIFIED
		pulling  = appv1.Status_PULLING_IMAGE
		starting = appv1.Status_INITIALIZING
		secret   = appv1.Status_SECRET_MOUNT_ERROR
		image    = appv1.Status_IMAGE_PULL_ERROR
		loop     = appv1.Status_CRASH_LOOP
		oom      = appv1.Status_OOM_KILLED
	)
	sandbox := []corev1.PodConditionType{corev1.PodReadyToStartContainers}
	proxy := runs(0, nil)
	crashed, killed := ended("Error", 1, time.Second), ended("OOMKilled", 137, time.Hour)
	for _, test := range []struct {
		name string
		pod  *corev1.Pod
		want appv1.Status_Substate
		then appv1.Status_Substate // once the containers have run for SettleTime
	}{
		{"serves", podWith(true, sandbox, runs(0, nil), proxy), none, none},
		{"has no node", podWith(false, nil), none, none},
		{"volumes and sandbox are made", podWith(false, nil, waits("ContainerCreating", ""), waits("ContainerCreating", "")), starting, starting},
		{"images are pulled", podWith(false, sandbox, waits("ContainerCreating", ""), proxy), pulling, pulling},
		{"waits for init containers", podWith(false, sandbox, waits("PodInitializing", "")), starting, starting},
		{"runs and is not ready", podWith(false, sandbox, runs(0, nil), proxy), starting, starting},

		{"no image", podWith(false, sandbox, waits("ErrImagePull", "")), image, image},
		{"no image, again", podWith(false, sandbox, waits("ImagePullBackOff", "")), image, image},
		{"no image for ever", podWith(false, sandbox, waits("InvalidImageName", "")), image, image},
		{"no image of the queue-proxy", podWith(false, sandbox, runs(0, nil), waits("ImagePullBackOff", "")), image, image},
		{"no Secret", podWith(false, sandbox, waits("CreateContainerConfigError", `secret "token" not found`)), secret, secret},
		{"no key in a Secret", podWith(false, sandbox, waits("CreateContainerConfigError", "couldn't find key a in Secret flyte/token")), secret, secret},
		{"no Secret, of a kubelet without a cache", podWith(false, sandbox, waits("CreateContainerConfigError", `secrets "token" not found`)), secret, secret},
		{"no ConfigMap", podWith(false, sandbox, waits("CreateContainerConfigError", `configmap "app-secrets" not found`)), starting, starting},
		{"no key in a ConfigMap", podWith(false, sandbox, waits("CreateContainerConfigError", "couldn't find key client_secret in ConfigMap flyte/settings")), starting, starting},
		{"no variable in a file", podWith(false, sandbox, waits("CreateContainerConfigError", `environment variable key "a" not found in file "made in Secret b"`)), starting, starting},

		{"first crash", podWith(false, sandbox, ends(0, crashed), proxy), starting, starting},
		{"runs again after the first crash", podWith(true, sandbox, runs(1, crashed), proxy), none, none},
		{"second crash", podWith(false, sandbox, ends(1, crashed), proxy), loop, loop},
		{"waits after the second crash", podWith(false, sandbox, after(waits("CrashLoopBackOff", ""), crashed), proxy), loop, loop},
		{"runs again after the second crash, ready", podWith(true, sandbox, runs(2, crashed), proxy), loop, none},
		{"runs again after the second crash, not ready", podWith(false, sandbox, runs(2, crashed), proxy), loop, starting},
		{"a crash after a long run", podWith(false, sandbox, ends(9, ended("Error", 1, SettleTime)), proxy), starting, starting},
		{"runs again after a long run", podWith(true, sandbox, runs(9, ended("Error", 1, SettleTime)), proxy), none, none},
		{"ends without an error, again and again", podWith(false, sandbox, ends(4, ended("Completed", 0, time.Second))), loop, loop},
		{"cannot be started", podWith(false, sandbox, waits("RunContainerError", "")), loop, loop},
		{"a hook before its creation fails", podWith(false, sandbox, waits("PreCreateHookError", "")), loop, loop},
		{"a hook before its start fails", podWith(false, sandbox, waits("PreStartHookError", "")), loop, loop},
		{"could not be started twice", podWith(false, sandbox, ends(1, unstarted()), proxy), loop, loop},
		{"runs after starts that failed", podWith(true, sandbox, runs(2, unstarted()), proxy), loop, none},
		{"is lost for the second time", podWith(false, sandbox, ends(2, lost()), proxy), starting, starting},
		{"runs again after it was lost", podWith(true, sandbox, runs(2, lost()), proxy), none, none},
		{"runs again, nobody knows since when", podWith(true, sandbox, withoutStart(runs(2, crashed)), proxy), none, none},

		{"waits for a kubelet that starts", podWith(false, sandbox, after(after(waits("ContainerCreating", ""), crashed), crashed), proxy), loop, loop},
		{"is created again", podWith(false, sandbox, after(after(waits("", ""), crashed), crashed), proxy), loop, loop},
		{"is created again after one crash", podWith(false, sandbox, after(waits("", ""), crashed), proxy), starting, starting},
		{"waits after it was killed for memory", podWith(false, sandbox, after(waits("PodInitializing", ""), killed), proxy), oom, oom},
		{"its image is gone", podWith(false, sandbox, after(after(waits("ImagePullBackOff", ""), crashed), crashed)), image, image},

		{"killed for memory", podWith(false, sandbox, ends(0, killed), proxy), oom, oom},
		{"waits after that", podWith(false, sandbox, after(waits("CrashLoopBackOff", ""), killed), proxy), oom, oom},
		{"runs again after that", podWith(true, sandbox, runs(1, killed), proxy), oom, none},
		{"of two containers the worse", podWith(false, sandbox, waits("ImagePullBackOff", ""), runs(3, killed)), oom, image},
		{"one recovers, one does not", podWith(false, sandbox, after(waits("CrashLoopBackOff", ""), crashed), runs(3, crashed)), loop, loop},

		{"scaled down", func() *corev1.Pod {
			p := podWith(false, sandbox, ends(3, crashed))
			p.DeletionTimestamp = &metav1.Time{Time: podNow}
			return p
		}(), none, none},
		{"evicted", func() *corev1.Pod {
			p := podWith(false, sandbox, ends(3, killed))
			p.Status.Phase = corev1.PodFailed
			return p
		}(), none, none},
		{"an init container is done", func() *corev1.Pod {
			p := podWith(true, sandbox, runs(0, nil))
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{ends(2, ended("Completed", 0, time.Second))}
			return p
		}(), none, none},
		{"an init container crashes", func() *corev1.Pod {
			p := podWith(false, sandbox, waits("PodInitializing", ""))
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{after(waits("CrashLoopBackOff", ""), crashed)}
			return p
		}(), loop, loop},
	} {
		t.Run(test.name, func(t *testing.T) {
			state := PodStateOf(test.pod)
			if state.Service != "svc" || state.ServiceUID != "u1" || state.Revision != "svc-00002" {
				t.Errorf("it is a pod of %+v", state)
			}
			if got := state.At(podNow.Add(SettleTime - time.Second)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if got := state.At(podNow.Add(SettleTime)); got != test.then {
				t.Errorf("later got %s, want %s", got, test.then)
			}
			if (state.Settles != 0) != (test.want != test.then) {
				t.Errorf("it settles at %d", state.Settles)
			}
		})
	}
}

// A container that starts, serves and crashes, again and again, has one condition from its second
// crash on. A kubelet forgets its back-off after a run of more than ten minutes.
func TestCrashLoopIsOneCondition(t *testing.T) {
	for _, ran := range []time.Duration{30 * time.Second, 6 * time.Minute, SettleTime - time.Second} {
		var got []appv1.Status_Substate
		note := func(pod *corev1.Pod, after time.Duration) {
			if s := PodStateOf(pod).At(podNow.Add(after)); len(got) == 0 || got[len(got)-1] != s {
				got = append(got, s)
			}
		}
		crashed := ended("Error", 1, ran)
		for n := range int32(8) {
			var last *corev1.ContainerStateTerminated
			if n > 0 {
				last = crashed
				note(podWith(false, nil, after(waits("CrashLoopBackOff", ""), crashed), runs(0, nil)), 0)
			}
			if n < 2 { // a kubelet restarts without a pause at first
				got = got[:0]
			}
			note(podWith(false, nil, runs(n, last)), 0)
			note(podWith(true, nil, runs(n, last)), 0)
			note(podWith(true, nil, runs(n, last)), ran)
			note(podWith(false, nil, ends(n, crashed)), ran)
		}
		if want := []appv1.Status_Substate{appv1.Status_INITIALIZING, appv1.Status_SUBSTATE_UNSPECIFIED, appv1.Status_CRASH_LOOP}; !slices.Equal(got, want) {
			t.Errorf("runs of %s: got %v, want %v", ran, got, want)
		}
	}
}

func TestConditionOf(t *testing.T) {
	at := podNow.Unix()
	pod := func(revision string, ready bool, s appv1.Status_Substate) PodState {
		return PodState{Revision: revision, Ready: ready, Substate: s}
	}
	recovering := PodState{Revision: "new", Ready: true, Substate: appv1.Status_OOM_KILLED, Settles: at + 60}
	for _, test := range []struct {
		name           string
		created, ready string
		pods           []PodState
		want           PodCondition
		next           int64
	}{
		{"no pods", "new", "new", nil, PodCondition{}, 0},
		{"all serve", "new", "new", []PodState{pod("new", true, 0)}, PodCondition{}, 0},
		{"nobody's pod", "new", "", []PodState{pod("", false, appv1.Status_CRASH_LOOP), pod("old", false, appv1.Status_CRASH_LOOP)}, PodCondition{}, 0},
		{"a start", "new", "new", []PodState{pod("new", false, appv1.Status_INITIALIZING)}, PodCondition{appv1.Status_INITIALIZING, "new"}, 0},
		{"one more starts", "new", "new", []PodState{pod("new", true, 0), pod("new", false, appv1.Status_PULLING_IMAGE)}, PodCondition{}, 0},
		{"one of several fails", "new", "new", []PodState{pod("new", true, 0), pod("new", false, appv1.Status_IMAGE_PULL_ERROR)}, PodCondition{appv1.Status_IMAGE_PULL_ERROR, "new"}, 0},
		{"the worst of several", "new", "new", []PodState{
			pod("new", false, appv1.Status_INITIALIZING), pod("new", false, appv1.Status_CRASH_LOOP), pod("new", false, appv1.Status_IMAGE_PULL_ERROR),
		}, PodCondition{appv1.Status_CRASH_LOOP, "new"}, 0},
		{"a rollout crashes while the Revision before it serves", "new", "old", []PodState{pod("old", true, 0), pod("new", false, appv1.Status_CRASH_LOOP)}, PodCondition{appv1.Status_CRASH_LOOP, "new"}, 0},
		{"what serves crashes during a rollout", "new", "old", []PodState{pod("old", false, appv1.Status_CRASH_LOOP), pod("new", false, appv1.Status_INITIALIZING)}, PodCondition{appv1.Status_CRASH_LOOP, "old"}, 0},
		{"both crash", "new", "old", []PodState{pod("old", false, appv1.Status_CRASH_LOOP), pod("new", false, appv1.Status_CRASH_LOOP)}, PodCondition{appv1.Status_CRASH_LOOP, "new"}, 0},
		{"a rollout starts while the Revision before it serves", "new", "old", []PodState{pod("old", true, 0), pod("new", false, appv1.Status_INITIALIZING)}, PodCondition{appv1.Status_INITIALIZING, "new"}, 0},
		{"recovers", "new", "new", []PodState{recovering}, PodCondition{appv1.Status_OOM_KILLED, "new"}, at + 60},
		{"has recovered", "new", "new", []PodState{{Revision: "new", Ready: true, Substate: appv1.Status_OOM_KILLED, Settles: at}}, PodCondition{}, 0},
		{"the first to recover", "new", "new", []PodState{recovering, {Revision: "new", Substate: appv1.Status_CRASH_LOOP, Settles: at + 30}}, PodCondition{appv1.Status_OOM_KILLED, "new"}, at + 30},
	} {
		t.Run(test.name, func(t *testing.T) {
			for range 2 {
				if got, next := ConditionOf(test.created, test.ready, slices.Values(test.pods), podNow); got != test.want || next != test.next {
					t.Errorf("got %v until %d, want %v until %d", got, next, test.want, test.next)
				}
				slices.Reverse(test.pods) // pods have no order
			}
		})
	}
}

// The words of the contract are those of the messages, in the order of their severity.
func TestReasons(t *testing.T) {
	words := []subjects.Reason{
		subjects.ReasonOOMKilled, subjects.ReasonCrashLoop, subjects.ReasonSecretMountError, subjects.ReasonImagePullError,
		subjects.ReasonPullingImage, subjects.ReasonInitializing, "",
	}
	for i, s := range severity {
		reason := subjects.Reason(PodCondition{Substate: s, Revision: "r"}.Reason())
		if reason != words[i] || reason.IsFailure() == (isStart(s) || s == 0) {
			t.Errorf("%v is %q, a failure: %t; want %q", s, reason, reason.IsFailure(), words[i])
		}
	}
}

// A PodCondition belongs to one condition of the App.
func TestReadyIndex(t *testing.T) {
	for _, test := range []struct {
		name       string
		conditions []Condition
		stopped    bool
		want       int
	}{
		{"first", []Condition{{Type: "Ready", Status: "True"}, {Type: "RoutesReady", Status: "True"}}, false, 0},
		{"behind others", []Condition{{Type: "ConfigurationsReady", Status: "True"}, {Type: "Ready", Status: "Unknown"}, {Type: "Ready", Status: "True"}}, false, 1},
		{"behind one that the App lacks", []Condition{{Type: "RoutesReady", Status: "Unknown"}, {Type: "Ready", Status: "False"}}, false, 0},
		{"none", []Condition{{Type: "ConfigurationsReady", Status: "True"}}, false, -1},
		{"stopped", []Condition{{Type: "Ready", Status: "True"}}, true, -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			svc := &Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationAppID: "p/d/n"}}, Status: ServiceStatus{Conditions: test.conditions}}
			if test.stopped {
				svc.Labels = map[string]string{LabelStopped: "true"}
			}
			app, err := Convert(svc, nil, Config{})
			if err != nil {
				t.Fatal(err)
			}
			got := ReadyIndex(svc)
			if got != test.want {
				t.Fatalf("got %d, want %d", got, test.want)
			}
			if got < 0 {
				return
			}
			if got, want := app.GetStatus().GetConditions()[got].GetMessage(), "Service is ready"; got != want {
				t.Errorf("it is the condition with the message %q, want %q", got, want)
			}
		})
	}
}
