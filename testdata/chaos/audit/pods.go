package audit

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// KindPod is the kind of Input.Pods.
const KindPod = "Pod"

// PodState is the state of a pod as a bridge has it. The zero value is that of one that cannot be
// read.
func PodState(c Change) kservice.PodState {
	pod := &corev1.Pod{}
	if c.Object == nil || runtime.DefaultUnstructuredConverter.FromUnstructured(c.Object.Object, pod) != nil {
		return kservice.PodState{}
	}
	return kservice.PodStateOf(pod)
}

// PodConditionOf is what pods, by name, say of a Service. None of them recovers by time here.
func PodConditionOf(svc *kservice.Service, pods map[string]kservice.PodState) kservice.PodCondition {
	if kservice.ReadyIndex(svc) < 0 {
		return kservice.PodCondition{}
	}
	said, _ := kservice.ConditionOf(svc.Status.LatestCreatedRevisionName, svc.Status.LatestReadyRevisionName, func(yield func(kservice.PodState) bool) {
		for _, p := range pods {
			if p.Service == svc.Name && (p.ServiceUID == "" || p.ServiceUID == svc.UID) && !yield(p) {
				return
			}
		}
	}, time.Unix(0, 0))
	return said
}

// SetPodCondition makes what the pods of a Service say a part of its App, if the App has the condition
// that it belongs to.
func SetPodCondition(app *appv1.App, svc *kservice.Service, said kservice.PodCondition) {
	if at := kservice.ReadyIndex(svc); at >= 0 {
		app.GetStatus().GetConditions()[at].Substate = said.Substate
	}
}

// podStep is what the pods of a Service were after one of their changes.
type podStep struct {
	pods map[string]kservice.PodState
	at   time.Time
}

// takePods sorts the versions of pods by their Services.
func (t *truth) takePods(changes []Change) {
	t.pods = map[string][]podStep{}
	for i := range changes {
		c := &changes[i]
		state := PodState(*c)
		if state.Service == "" {
			continue
		}
		steps := t.pods[state.Service]
		now := map[string]kservice.PodState{}
		if len(steps) > 0 {
			now = maps.Clone(steps[len(steps)-1].pods)
		}
		if delete(now, c.Name); !c.Deleted {
			now[c.Name] = state
		}
		t.pods[state.Service] = append(steps, podStep{now, c.At})
	}
}

// claim is what an event says of pods.
func claim(e *event) kservice.PodCondition {
	word := e.get(subjects.HeaderReason)
	return kservice.PodCondition{Substate: appv1.Status_Substate(appv1.Status_Substate_value[word]), Revision: e.get(subjects.HeaderReasonRevision)}
}

// says checks that the pods of a Service did say what an event claims, not before what they said in
// the event before, and makes that a part of the App that the event has to have.
func (w *walk) says(e *event, svc *kservice.Service, want *appv1.App) {
	claimed := claim(e)
	SetPodCondition(want, svc, claimed)
	if !w.in.PodConditions {
		if claimed != (kservice.PodCondition{}) {
			w.drift(e, "it has a reason, although the bridge does not watch pods")
		}
		return
	}
	steps := w.truth.pods[svc.Name]
	if PodConditionOf(svc, w.podsAt(svc, w.podStep)) == claimed {
		return
	}
	for step := w.podStep + 1; step <= len(steps) && !steps[step-1].at.After(e.Stored.Add(patience)); step++ {
		if PodConditionOf(svc, w.podsAt(svc, step)) == claimed {
			w.podStep = step
			return
		}
	}
	for step := range w.podStep {
		if PodConditionOf(svc, w.podsAt(svc, step)) == claimed {
			w.reordered(e, "the pods said %v before what the event before says of them", claimed)
			return
		}
	}
	w.drift(e, "no pods ever said %v", claimed)
}

// podsAt are the pods of a Service after so many of their changes.
func (w *walk) podsAt(svc *kservice.Service, step int) map[string]kservice.PodState {
	if steps := w.truth.pods[svc.Name]; step > 0 && step <= len(steps) {
		return steps[step-1].pods
	}
	return nil
}

// allPodChanges counts the changes of an app's pods.
func (w *walk) allPodChanges() int {
	services := map[string]bool{}
	for i := range w.states {
		if o := w.states[i].object; o != nil {
			services[o.GetName()] = true
		}
	}
	changes := 0
	for name := range services {
		changes += len(w.truth.pods[name])
	}
	return changes
}

// withoutPods takes what pods say out of an App, which it changes.
func withoutPods(app *appv1.App) {
	for _, c := range app.GetStatus().GetConditions() {
		c.Substate = 0
	}
}
