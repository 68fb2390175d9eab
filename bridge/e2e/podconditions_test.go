package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// podWorld has an app whose Revision is ready, and a configuration with pod conditions.
type podWorld struct {
	*world
	cfg      bridge.Config
	svc      *servingv1.Service
	revision string
}

func newPodWorld(w *world) *podWorld {
	w.t.Helper()
	p := &podWorld{world: w, cfg: w.config()}
	p.cfg.PodConditions = true
	p.svc = must[*servingv1.Service](w.t)(w.Ready(w.t.Context(), w.create(w.app("one")), "", 1))
	p.revision = p.svc.Status.LatestReadyRevisionName
	p.set("first", p.revision, testenv.PodServing())
	return p
}

func (w *podWorld) set(name, revision string, status corev1.PodStatus) {
	w.t.Helper()
	must[any](w.t)(nil, w.SetPod(w.t.Context(), w.svc, revision, name, status))
}

// reasons waits until the events of the app after a sequence have exactly these reasons, each as
// "REASON Revision" and with "found" if a resync found it. It returns the last sequence.
func (w *podWorld) reasons(after uint64, want ...string) uint64 {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("the events say %q", want), func() error {
		got := []string{}
		for _, e := range w.events(after) {
			text := e.header(subjects.HeaderReason) + " " + strings.TrimPrefix(e.header(subjects.HeaderReasonRevision), w.svc.Name)
			if e.header(subjects.HeaderSynthesized) != "" {
				text += " found"
			}
			got = append(got, text)
		}
		if slices.Equal(got, want) {
			return nil
		}
		err := fmt.Errorf("they say %q", got)
		if len(got) > len(want) {
			return fmt.Errorf("%w: %w", errFatal, err)
		}
		return err
	})
	w.entriesSay()
	return w.lastSequence()
}

// entriesSay fails unless the bucket's entries say in headers and App what their events say.
func (w *podWorld) entriesSay() {
	w.t.Helper()
	all := w.events(0)
	w.checkHeaders(all)
	last := all[len(all)-1]
	eventually(w.t, "the entry follows", func() error {
		entry := w.entries()[last.id]
		if entry == nil || entry.Header.Get(subjects.HeaderMsgID) != "" || entry.Header.Get(subjects.CEID) != last.header(subjects.CEID) {
			return fmt.Errorf("it is another one")
		}
		for _, name := range []string{subjects.HeaderReason, subjects.HeaderReasonRevision} {
			if got, want := entry.Header.Get(name), last.header(name); got != want {
				return fmt.Errorf("%w: header %s is %q, want %q", errFatal, name, got, want)
			}
		}
		return nil
	})
	var said []string
	for _, c := range last.app().GetStatus().GetConditions() {
		if c.GetSubstate() != 0 {
			said = append(said, c.GetSubstate().String())
		}
	}
	want := slices.DeleteFunc([]string{last.header(subjects.HeaderReason)}, func(reason string) bool { return reason == "" })
	if !slices.Equal(said, want) {
		w.t.Errorf("the conditions of the App say %q, the headers %q", said, want)
	}
}

// Each change of what the pods say is one event: live, found after a gap, and when the option is
// turned on and off. Nothing else is.
func TestPodConditions(t *testing.T) {
	t.Parallel()
	w := newPodWorld(newWorld(t))
	ctx := t.Context()
	r := w.start(w.cfg)
	at := w.reasons(0, "  found")

	// A loop. Its restarts are no events: the next one says something else.
	for restarts := range int32(6) {
		w.set("first", w.revision, testenv.PodWaiting("CrashLoopBackOff", "Error", restarts+1))
	}
	at = w.reasons(at, "CRASH_LOOP -00001")
	w.findsNothing(w.cfg, 0)
	w.set("first", w.revision, testenv.PodWaiting("CrashLoopBackOff", "OOMKilled", 7))
	at = w.reasons(at, "OOM_KILLED -00001")
	w.set("first", w.revision, testenv.PodServing())
	at = w.reasons(at, " ")

	// A rollout that fails while the Revision before it serves.
	next := w.app("one")
	next.Image = "registry.example.com/other:2"
	w.svc = must[*servingv1.Service](t)(w.Redeploy(ctx, next))
	w.svc = must[*servingv1.Service](t)(w.Progressing(ctx, w.svc))
	second := w.svc.Status.LatestCreatedRevisionName
	if second == w.revision {
		t.Fatalf("there is no second Revision, only %s", second)
	}
	at = w.reasons(at, " ", " ")
	w.set("second", second, testenv.PodWaiting("ImagePullBackOff", "", 0))
	at = w.reasons(at, "IMAGE_PULL_ERROR -00002")
	events := w.events(0)
	if got := events[len(events)-1].header(subjects.HeaderRevision); got != w.revision {
		t.Errorf("the replicas are those of %q, want %s", got, w.revision)
	}
	must[any](t)(nil, r.stop())

	// Nothing changes without a bridge, and then the pods alone.
	must[any](t)(nil, w.start(w.cfg).stop())
	w.reasons(at)
	w.findsNothing(w.cfg, 0)
	w.set("second", second, testenv.PodWaiting("CrashLoopBackOff", "Error", 3))
	w.finds(w.cfg, "one other_app")
	must[any](t)(nil, w.start(w.cfg).stop())
	at = w.reasons(at, "CRASH_LOOP -00002 found")

	// The option turned off and on.
	off := w.cfg
	off.PodConditions = false
	w.finds(off, "other_shape")
	must[any](t)(nil, w.start(off).stop())
	at = w.reasons(at, "  found")
	w.findsNothing(off, 0)
	w.set("second", second, testenv.PodServing())
	must[any](t)(nil, w.start(off).stop())
	must[any](t)(nil, w.start(w.cfg).stop())
	w.reasons(at)
	w.set("second", second, testenv.PodWaiting("CrashLoopBackOff", "Error", 4))
	if got := w.repair(w.cfg, "vision.development.one"); !slices.Equal(got, []string{"updated one"}) {
		t.Errorf("the repair published %q", got)
	}
	at = w.reasons(at, "CRASH_LOOP -00002 found")

	// A stopped app has no reason, and a deleted one no more events.
	r = w.start(w.cfg)
	w.svc = must[*servingv1.Service](t)(w.MarkStopped(ctx, w.svc))
	at = w.reasons(at, " ")
	must[any](t)(nil, w.DeletePod(ctx, w.namespace, "second"))
	must[any](t)(nil, w.Client.Delete(ctx, w.svc))
	must[any](t)(nil, w.DeletePod(ctx, w.namespace, "first"))
	w.create(w.app("last"))
	w.waitFor(at, "deleted one", "created last")
	must[any](t)(nil, r.stop())
}

// A container that runs again after a crash has recovered after a time, without any change of an
// object. A pod that recovered long ago was never seen to crash. The recovery is far enough for a slow
// bridge to see the crash before.
func TestPodRecovers(t *testing.T) {
	t.Parallel()
	w := newPodWorld(newWorld(t))
	running := func(since time.Time) corev1.PodStatus {
		status := testenv.PodServing()
		app := &status.ContainerStatuses[1]
		app.RestartCount = 4
		app.State.Running.StartedAt = metav1.NewTime(since)
		app.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137}
		return status
	}
	w.set("first", w.revision, running(time.Now().Add(-kservice.SettleTime)))
	r := w.start(w.cfg)
	at := w.reasons(0, "  found")
	w.set("first", w.revision, running(time.Now().Add(15*time.Second-kservice.SettleTime)))
	at = w.reasons(at, "OOM_KILLED -00001", " ")
	w.findsNothing(w.cfg, 0)
	must[any](t)(nil, r.stop())
	must[any](t)(nil, w.start(w.cfg).stop())
	w.reasons(at)
}

// A standby has seen the pods too: it takes over without an event, and goes on.
func TestPodConditionsOfTwoBridges(t *testing.T) {
	t.Parallel()
	w := newPodWorld(newWorld(t))
	elect := func(identity string) bridge.Config {
		cfg := w.elected(identity)
		cfg.PodConditions = true
		return cfg
	}
	first := w.start(elect("first"))
	second := w.start(elect("second"))
	w.set("first", w.revision, testenv.PodWaiting("CrashLoopBackOff", "Error", 3))
	at := w.reasons(0, "  found", "CRASH_LOOP -00001")
	must[any](t)(nil, first.stop())
	eventually(t, "the second one leads", func() error {
		if second.metric("appbridge_leader") != 1 {
			return fmt.Errorf("it does not")
		}
		return second.bridge.Ready()
	})
	w.set("first", w.revision, testenv.PodServing())
	w.reasons(at, " ")
}

// A watch of pods that shows nothing is opened again, as any other is.
func TestPodConditionsBehindFrozenWatches(t *testing.T) {
	t.Parallel()
	m := newMute(t, testenv.APIProxyOptions{})
	w := newPodWorld(m.world)
	w.cfg.WatchLimits = watch.Limits{NoBookmark: 1500 * time.Millisecond}
	r := w.launch(w.cfg, m.proxy.Config())
	r.waitReady()
	at := w.reasons(0, "  found")
	m.proxy.FreezeOpenWatches()
	w.set("first", w.revision, testenv.PodWaiting("CrashLoopBackOff", "Error", 3))
	eventually(t, "the crash is published", func() error {
		// A slow list in place of a watch finds it, too.
		events := w.events(at)
		if len(events) != 1 || events[0].header(subjects.HeaderReason) != "CRASH_LOOP" {
			return fmt.Errorf("there are %d events", len(events))
		}
		return nil
	})
	w.entriesSay()
}

// With the option a bridge needs the rights on pods, and says which one it lacks.
func TestPodConditionsWithoutRights(t *testing.T) {
	t.Parallel()
	w := newPodWorld(newWorld(t))
	user := w.namespace + "-podless"
	w.allow(user, metav1.NamespaceSystem, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}})
	w.allow(user, w.namespace,
		rbacv1.PolicyRule{APIGroups: []string{"serving.knative.dev"}, Resources: []string{"services", "revisions"}, Verbs: []string{"list", "watch"}},
		podsRule("list"))
	err := w.launch(w.cfg, must[*rest.Config](t)(w.User(user))).ended()
	if want := "watch on pods in namespace " + w.namespace; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("it ended with %v, want %q", err, want)
	}
}
