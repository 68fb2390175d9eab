package watch

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
)

func container(ready bool, state corev1.ContainerState) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: "app", Image: "registry.example.com/hello:1", ContainerID: "containerd://1", RestartCount: 3, Ready: ready, State: state,
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Before"}},
	}
}

// A pod in the cache gives the replica that the whole pod gives, and is little more.
func TestTrimPod(t *testing.T) {
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "long"}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	terminated := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled", Message: "long", ExitCode: 137}}
	for _, test := range []struct {
		name       string
		status     corev1.PodStatus
		want, why  string
		containers []corev1.ContainerStatus
	}{
		{"nothing known", corev1.PodStatus{}, "PENDING", "", nil},
		{"waits", corev1.PodStatus{Phase: corev1.PodPending}, "PENDING", "ImagePullBackOff", []corev1.ContainerStatus{container(false, running), container(false, waiting)}},
		{"runs", corev1.PodStatus{Phase: corev1.PodRunning}, "ACTIVE", "", []corev1.ContainerStatus{container(true, running), container(true, running)}},
		{"one is not ready", corev1.PodStatus{Phase: corev1.PodRunning}, "DEPLOYING", "container not ready", []corev1.ContainerStatus{container(true, running), container(false, running)}},
		{"one waits again", corev1.PodStatus{Phase: corev1.PodRunning}, "DEPLOYING", "ImagePullBackOff", []corev1.ContainerStatus{container(true, running), container(false, waiting)}},
		{"evicted", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "long"}, "FAILED", "Evicted", []corev1.ContainerStatus{container(false, terminated)}},
		{"killed", corev1.PodStatus{Phase: corev1.PodFailed}, "FAILED", "OOMKilled", []corev1.ContainerStatus{container(false, terminated)}},
		{"done", corev1.PodStatus{Phase: corev1.PodSucceeded}, "STOPPED", "pod completed", []corev1.ContainerStatus{container(false, terminated)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := &appv1.Identifier{Project: watchedID.Project, Domain: watchedID.Domain, Name: watchedID.Name}
			service := kservice.Name(watchedID)
			pod := &corev1.Pod{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "flyte", Name: "one", UID: "u1", ResourceVersion: "7",
					Labels:        map[string]string{kservice.LabelService: service, kservice.LabelServiceUID: "s1", kservice.LabelRevision: "r1", "other": "label"},
					Annotations:   map[string]string{"some": "note"},
					ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
				},
				Spec:   corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "app"}}},
				Status: test.status,
			}
			pod.Status.ContainerStatuses = test.containers
			pod.Status.PodIP = "10.0.0.1"
			before := pod.DeepCopy()
			got := trimPod(pod, false)
			if !reflect.DeepEqual(pod, before) {
				t.Error("what was given has changed")
			}
			if again := trimPod(got, false); again != got {
				t.Errorf("a second time it is %v, want %v", again, got)
			}
			kept := got.(*cachedPod)
			if kept.state != (kservice.PodState{}) {
				t.Errorf("without conditions it keeps %v", kept.state)
			}
			if said := trimPod(pod, true).(*cachedPod); said.state != kservice.PodStateOf(pod) || said.state.Revision != "r1" {
				t.Errorf("with conditions it keeps %v, want %v", said.state, kservice.PodStateOf(pod))
			}
			trimmed := &corev1.Pod{ObjectMeta: kept.ObjectMeta, Status: kept.status}
			svc := &kservice.Service{ObjectMeta: metav1.ObjectMeta{Name: service, UID: "s1"}, Status: kservice.ServiceStatus{LatestReadyRevisionName: "r1"}}
			replicas, whole := kservice.Replicas(id, svc, []corev1.Pod{*trimmed}), kservice.Replicas(id, svc, []corev1.Pod{*pod})
			if len(replicas) != 1 || !proto.Equal(replicas[0], whole[0]) {
				t.Fatalf("got the replica %v, want %v", replicas, whole)
			}
			if status := replicas[0].GetStatus(); status.GetDeploymentStatus() != test.want || status.GetReason() != test.why {
				t.Errorf("got %v, want %s %q", status, test.want, test.why)
			}
			if got, want := string(trimmed.UID)+"@"+trimmed.ResourceVersion, "u1@7"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if len(trimmed.Labels) != 3 || trimmed.Annotations != nil || trimmed.ManagedFields != nil || !reflect.DeepEqual(trimmed.Spec, corev1.PodSpec{}) || trimmed.Status.PodIP != "" {
				t.Errorf("more than needed is kept: %v", trimmed)
			}
			for _, c := range trimmed.Status.ContainerStatuses {
				if c.Image != "" || c.LastTerminationState.Terminated != nil || c.State.Running != nil {
					t.Errorf("more than needed is kept of a container: %v", c)
				}
			}
		})
	}
	tombstone := toolscache.DeletedFinalStateUnknown{Key: "flyte/one"}
	if got := trimPod(tombstone, true); got != tombstone {
		t.Errorf("got %v, want the tombstone", got)
	}
}

// inSync is an informer that has once been in sync, or not.
type inSync struct {
	toolscache.SharedIndexInformer
	synced bool
}

func (i inSync) HasSynced() bool { return i.synced }

// What is said of pods that are not known, after the requests that were answered
// or not.
func TestPodsUnknown(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	forbidden := apierrors.NewForbidden(pods, "", errors.New("no"))
	away := errors.New("connection refused")
	expired := apierrors.NewResourceExpired("too old")
	type outcome struct {
		verb string
		err  error
	}
	const (
		noRights = "the rights list and watch on pods in namespace flyte are missing: grant them by RBAC"
		noList   = "the right list on pods in namespace flyte is missing: grant it by RBAC"
		noWatch  = "the right watch on pods in namespace flyte is missing: grant it by RBAC"
		notYet   = "the pods in namespace flyte are not known yet"
		unknown  = "the pods of apps are unknown"
		known    = "the pods of apps are known again"
	)
	for _, test := range []struct {
		name     string
		synced   bool
		outcomes []outcome
		want     string
		logs     []string
	}{
		{"nothing was answered yet", false, nil, notYet, nil},
		{"the API server is away from the start", false, []outcome{{"watch", away}}, notYet + ": connection refused", nil},
		{"in sync", true, []outcome{{"watch", nil}}, "", nil},
		{"away since", true, []outcome{{"watch", nil}, {"watch", away}}, "", nil},
		{"a watch that was too old", true, []outcome{{"watch", expired}}, "", nil},
		{"no rights", false, []outcome{{"watch", forbidden}, {"list", forbidden}, {"watch", forbidden}}, noRights, []string{unknown, unknown}},
		{"no right to list", false, []outcome{{"watch", expired}, {"list", forbidden}}, noList, []string{unknown}},
		{"no right to watch", true, []outcome{{"watch", forbidden}, {"list", nil}}, noWatch, []string{unknown}},
		{"rights taken away", true, []outcome{{"watch", nil}, {"watch", forbidden}, {"list", forbidden}}, noRights, []string{unknown, unknown}},
		{"rights given", true, []outcome{{"watch", forbidden}, {"list", forbidden}, {"watch", nil}}, "", []string{unknown, unknown, known}},
		{"credentials refused", true, []outcome{{"watch", apierrors.NewUnauthorized("who")}}, "the credentials of --kubeconfig are not accepted", []string{unknown}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, _, logs := unreachablePods(t, false)
			i := p.informers["flyte"]
			i.informer = inSync{i.informer, test.synced}
			for _, o := range test.outcomes {
				if o.verb == "list" {
					i.listed(o.err)
				} else {
					i.watched(o.err)
				}
			}
			got := ""
			if _, err := p.Of("flyte", "one"); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			var said []string
			for _, entry := range logs.All() {
				said = append(said, entry.Message)
			}
			if !slices.Equal(said, test.logs) {
				t.Errorf("it logged %q, want %q", said, test.logs)
			}
		})
	}
}

// unreachablePods are the pods of an API server that refuses connections, their metrics and logs.
func unreachablePods(t *testing.T, conditions bool) (*Pods, *Metrics, *observer.ObservedLogs) {
	t.Helper()
	keeper := encodertest.Keeper
	keeper.PodConditions = conditions
	core, logs := observer.New(zap.InfoLevel)
	m := NewMetrics(prometheus.NewRegistry())
	p, err := NewPods(&rest.Config{Host: "https://127.0.0.1:1"}, []string{"flyte"}, NewSource(zap.NewNop(), keeper, func(string) {}),
		NewConnection(NewGroup(Limits{}, zap.NewNop()), zap.NewNop(), m), zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	return p, m, logs
}

// With pod conditions the failures of their informers are counted as those of all others.
func TestPodsCount(t *testing.T) {
	p, m, _ := unreachablePods(t, true)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	failures := &dto.Metric{}
	deadline, tick := time.After(time.Minute), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for failures.GetCounter().GetValue() == 0 && !t.Failed() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Error("no failure is counted")
		}
		if err := m.watchErrors.Write(failures); err != nil {
			t.Error(err)
		}
	}
	cancel()
	<-ended
}
