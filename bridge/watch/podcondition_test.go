package watch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// podSource is a source with pod conditions, a clock and timers that a test moves, and a sink that
// records the changes.
type podSource struct {
	*Source
	timers *timers
	now    time.Time
	log    []string
}

func newPodSource() *podSource {
	keeper := encodertest.Keeper
	keeper.PodConditions = true
	p := &podSource{Source: NewSource(zap.NewNop(), keeper, func(string) {}), timers: &timers{}, now: time.Unix(1_800_000_000, 0)}
	p.SetAfter(p.timers.after)
	p.Source.now = func() time.Time { return p.now }
	p.Revisions().OnAdd(watchedRevision("1", 0), true)
	p.Connect(func(View) Sink {
		return func(_ subjects.AppID, c *app.Change) {
			switch {
			case c.Remove:
				p.log = append(p.log, "gone")
			case c.Synthesized:
				p.log = append(p.log, fmt.Sprintf("@%s %s %s listed", c.State.Service.ResourceVersion, c.State.Pods.Reason(), c.State.Pods.Revision))
			default:
				p.log = append(p.log, fmt.Sprintf("@%s %s %s", c.State.Service.ResourceVersion, c.State.Pods.Reason(), c.State.Pods.Revision))
			}
		}
	}, nil)
	return p
}

// taken returns the changes since the last call.
func (p *podSource) taken() []string {
	taken := p.log
	p.log = nil
	return taken
}

func (p *podSource) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	if got := p.taken(); !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// created is a version of watchedService whose newest Revision has a name.
func created(version, revision string) *kservice.Service {
	svc := watchedService("u1", version, "True")
	svc.Status.LatestCreatedRevisionName = revision
	return svc
}

// aPod is a version of a pod of watchedService.
func aPod(name, version, revision string, change func(*corev1.Pod)) any {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "flyte", Name: name, UID: types.UID("of " + name), ResourceVersion: version,
			Labels: map[string]string{kservice.LabelService: watchedService("", "", "").Name, kservice.LabelServiceUID: "u1", kservice.LabelRevision: revision},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "app"}}},
	}
	change(pod)
	return trimPod(pod, true)
}

func serves(pod *corev1.Pod) {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func waitsFor(reason string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{Reason: reason}
	}
}

// recovers is a pod that was killed for its memory and runs again since a time.
func recovers(since time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		serves(pod)
		pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{
			RestartCount: 1, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(since)}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled"}},
		}
	}
}

// One change of the condition is one change of the app; all other changes of pods are none.
func TestPodConditions(t *testing.T) {
	p := newPodSource()
	services, pods := p.Services(), p.Pods()
	pods.OnAdd(aPod("early", "5", "rev-1", waitsFor("ImagePullBackOff")), true)
	p.expect(t, "a pod of nobody yet")
	services.OnAdd(created("10", "rev-1"), true)
	p.expect(t, "the Service follows", "@10 IMAGE_PULL_ERROR rev-1")
	pods.OnUpdate(nil, aPod("early", "11", "rev-1", waitsFor("ErrImagePull")))
	p.expect(t, "it is tried again")
	pods.OnUpdate(nil, aPod("early", "12", "rev-1", serves))
	p.expect(t, "it serves", "@10  ")
	for i := range 5 { // a crash loop
		pods.OnUpdate(nil, aPod("early", fmt.Sprint(20+i), "rev-1", func(pod *corev1.Pod) {
			waitsFor("CrashLoopBackOff")(pod)
			pod.Status.ContainerStatuses[0].RestartCount = int32(i)
		}))
	}
	p.expect(t, "a loop", "@10 CRASH_LOOP rev-1")
	pods.OnAdd(aPod("second", "30", "rev-1", serves), false)
	p.expect(t, "another pod serves")
	services.OnUpdate(nil, created("31", "rev-1"))
	p.expect(t, "another version of the Service", "@31 CRASH_LOOP rev-1")
	pods.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: aPod("early", "24", "rev-1", waitsFor("CrashLoopBackOff"))})
	p.expect(t, "the pod is gone, as a list shows", "@31   listed")

	// A rollout that fails while the Revision before it serves.
	services.OnUpdate(nil, created("40", "rev-2"))
	p.taken()
	pods.OnAdd(aPod("third", "41", "rev-2", waitsFor("CreateContainerError")), false)
	p.expect(t, "a pod of the rollout crashes", "@40 CRASH_LOOP rev-2")
	pods.OnUpdate(nil, aPod("second", "42", "rev-1", waitsFor("CrashLoopBackOff")))
	p.expect(t, "what served crashes too")
	pods.OnDelete(aPod("third", "43", "rev-2", waitsFor("CreateContainerError")))
	p.expect(t, "the rollout is given up", "@40 CRASH_LOOP rev-1")

	stopped := created("50", "rev-2")
	stopped.Labels[kservice.LabelStopped] = "true"
	services.OnUpdate(nil, stopped)
	p.expect(t, "stopped", "@50  ")
	unready := created("51", "rev-2")
	unready.Status.Conditions[0].Type = "RoutesReady"
	services.OnUpdate(nil, unready)
	p.expect(t, "without the condition", "@51  ")
	other := created("60", "rev-1")
	other.UID = "u2"
	services.OnUpdate(nil, other)
	p.expect(t, "the pods are those of the Service before", "gone", "@60  ")
	services.OnDelete(other)
	pods.OnDelete(aPod("second", "70", "rev-1", waitsFor("CrashLoopBackOff")))
	p.expect(t, "the end", "gone")
	if len(p.Shown.pods) > 0 || len(p.Shown.podsOf) > 0 {
		t.Errorf("what is left: %v, %v", p.Shown.pods, p.Shown.podsOf)
	}
}

// A pod that runs again after a crash has recovered after a time, although no object changes.
func TestPodsRecover(t *testing.T) {
	p := newPodSource()
	services, pods := p.Services(), p.Pods()
	services.OnAdd(created("10", "rev-1"), true)
	pods.OnAdd(aPod("pod", "11", "rev-1", recovers(p.now)), false)
	p.expect(t, "it was killed", "@10  ", "@10 OOM_KILLED rev-1")
	if got := p.timers.waiting[0].after; len(p.timers.waiting) != 1 || got != kservice.SettleTime {
		t.Fatalf("the first of %d timers takes %s", len(p.timers.waiting), got)
	}
	services.OnUpdate(nil, created("12", "rev-1"))
	p.expect(t, "a version of the Service", "@12 OOM_KILLED rev-1")
	if len(p.timers.waiting) != 1 {
		t.Errorf("the same wait has %d timers", len(p.timers.waiting))
	}

	// Killed again just before: the time starts again.
	p.now = p.now.Add(kservice.SettleTime - time.Second)
	pods.OnUpdate(nil, aPod("pod", "13", "rev-1", recovers(p.now)))
	p.expect(t, "killed again")
	if fired := p.timers.pass(); fired != 1 {
		t.Errorf("%d timers were left", fired)
	}
	p.expect(t, "a timer that comes early")
	p.now = p.now.Add(kservice.SettleTime)
	if fired := p.timers.pass(); fired != 1 {
		t.Errorf("%d timers were left", fired)
	}
	p.expect(t, "it has recovered", "@12  ")
	for _, test := range []struct {
		after time.Duration // the recovery
		want  int
	}{{-time.Minute, 1}, {0, 1}, {clockSkew - time.Second, 1}, {clockSkew, 0}} {
		then := p.now
		p.now = then.Add(test.after)
		if got := len(p.recovering()); got != test.want {
			t.Errorf("%s after the recovery %d apps recover, want %d", test.after, got, test.want)
		}
		p.now = then
	}
	if fired := p.timers.pass(); fired != 0 {
		t.Errorf("%d timers are left", fired)
	}

	// What a source finds that starts later.
	late := newPodSource()
	late.now = p.now
	late.Pods().OnAdd(aPod("pod", "13", "rev-1", recovers(p.now.Add(-kservice.SettleTime))), true)
	late.Services().OnAdd(created("12", "rev-1"), true)
	late.expect(t, "after that time", "@12  ")

	pods.OnUpdate(nil, aPod("pod", "14", "rev-1", recovers(p.now)))
	p.Close()
	if fired := p.timers.pass(); fired != 0 {
		t.Errorf("%d timers outlive the source", fired)
	}
	services.OnDelete(created("15", "rev-1"))
	if len(p.settling.apps) != 0 {
		t.Errorf("apps are left: %v", p.settling.apps)
	}
}

// Without the option pods change nothing.
func TestNoPodConditions(t *testing.T) {
	s, got := observedSource()
	s.Services().OnAdd(created("10", "rev-1"), true)
	s.Pods().OnAdd(trimPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "flyte", Name: "pod"}}, false), false)
	s.Read(func(v View) {
		for _, st := range v.States() {
			if st.Pods != (kservice.PodCondition{}) || st.Service.LatestCreatedRevisionName != "" {
				t.Errorf("the state has %v of Revision %q", st.Pods, st.Service.LatestCreatedRevisionName)
			}
		}
	})
	if want := []string{"new u1@10 stream.lit"}; !slices.Equal(*got, want) {
		t.Errorf("got %q, want %q", *got, want)
	}
}

// The App and the headers of an event have what the pods say.
func TestPodConditionInApp(t *testing.T) {
	p := newPodSource()
	p.Pods().OnAdd(aPod("pod", "5", "rev-2", waitsFor("CrashLoopBackOff")), true)
	p.Services().OnAdd(created("10", "rev-2"), true)
	encoded, err := p.State(watchedID).App()
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := encoded.App()
	if err != nil {
		t.Fatal(err)
	}
	ready := decoded.GetStatus().GetConditions()[0]
	if ready.GetSubstate() != appv1.Status_CRASH_LOOP {
		t.Errorf("the condition is %v", ready)
	}
}
