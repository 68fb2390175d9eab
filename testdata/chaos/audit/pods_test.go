package audit_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// podOf is a version of the one pod of an app, which waits for a reason; none: it serves.
func podOf(t *testing.T, a *app, version, reason string) audit.Change {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "flyte", Name: "pod", ResourceVersion: version,
			Labels: map[string]string{kservice.LabelService: a.name, kservice.LabelServiceUID: a.uid, kservice.LabelRevision: a.ready},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	if reason != "" {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		t.Fatal(err)
	}
	return audit.Change{
		Kind: audit.KindPod, Namespace: "flyte", Name: "pod", UID: types.UID("pod"), ResourceVersion: version,
		Object: &unstructured.Unstructured{Object: content},
	}
}

// The judge finds an event that says of pods what these did not say, what they said before, or not
// what they say last.
func TestPods(t *testing.T) {
	const crash, pull = appv1.Status_CRASH_LOOP, appv1.Status_IMAGE_PULL_ERROR
	for _, test := range []struct {
		name    string
		off     bool                    // the bridge does not watch pods
		reasons []string                // of the pod, one after the other
		says    []appv1.Status_Substate // the last events
		want    []string
	}{
		{"nothing to say", false, nil, []appv1.Status_Substate{0, 0}, nil},
		{"it crashes", false, []string{"CrashLoopBackOff"}, []appv1.Status_Substate{0, crash}, nil},
		{"it crashes and recovers", false, []string{"CrashLoopBackOff", ""}, []appv1.Status_Substate{crash, 0}, nil},
		{"not what it says last", false, []string{"CrashLoopBackOff", "ErrImagePull"}, []appv1.Status_Substate{0, crash}, []string{"drift"}},
		{"never said", false, []string{"CrashLoopBackOff"}, []appv1.Status_Substate{pull, crash}, []string{"drift"}},
		{"out of order", false, []string{"CrashLoopBackOff", "ErrImagePull", ""}, []appv1.Status_Substate{pull, crash}, []string{"reordered", "drift"}},
		{"nothing is said", false, []string{"CrashLoopBackOff"}, []appv1.Status_Substate{0, 0}, []string{"drift"}},
		{"without the option", true, []string{"CrashLoopBackOff"}, []appv1.Status_Substate{0, 0}, nil},
		{"said without the option", true, []string{"CrashLoopBackOff"}, []appv1.Status_Substate{0, crash}, []string{"drift"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			a := w.app("checkout")
			a.create()
			a.roll(1)
			a.edit()
			a.edit()
			in := w.render()
			in.PodConditions = !test.off
			for i, reason := range test.reasons {
				in.Pods = append(in.Pods, podOf(t, a, string(rune('1'+i)), reason))
			}
			var before *appv1.App
			first := len(in.Events) - len(test.says)
			for i, says := range test.says {
				m := &in.Events[first+i]
				payload := w.decode(m.Data)
				updated := payload.GetUpdateEvent().GetUpdatedApp()
				updated.Status.Conditions[0].Substate = says
				if before != nil {
					payload.GetUpdateEvent().OldApp = before
				}
				before = updated
				m.Data = w.encode(payload)
				entry := entryOf(&in, "checkout")
				for _, of := range []*audit.Message{m, entry} {
					of.Header.Del(subjects.HeaderReason)
					of.Header.Del(subjects.HeaderReasonRevision)
					if says != 0 {
						of.Header.Set(subjects.HeaderReason, says.String())
						of.Header.Set(subjects.HeaderReasonRevision, a.ready)
					}
				}
				entry.Data = w.encode(updated)
			}
			w.wants(t, audit.Check(in), test.want...)
		})
	}
}
