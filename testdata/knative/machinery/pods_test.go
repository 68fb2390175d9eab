package machinery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"knative.dev/pkg/apis"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// create creates a Service, and deletes it when the test ends.
func create(t *testing.T, c *testenv.Cluster, svc *servingv1.Service) {
	t.Helper()
	if err := c.Client.Create(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Client.Delete(context.WithoutCancel(t.Context()), svc); err != nil {
			t.Error(err)
		}
	})
}

// failed checks that a Service says it is not ready, and why.
func failed(words ...string) func(*servingv1.Service) error {
	return func(svc *servingv1.Service) error {
		if svc.Status.GetCondition(apis.ConditionReady).IsTrue() {
			return errors.New("it is ready")
		}
		ready := svc.Status.GetCondition(servingv1.ServiceConditionConfigurationsReady)
		if !ready.IsFalse() {
			return fmt.Errorf("its condition is %+v", ready)
		}
		for _, word := range words {
			if !strings.Contains(ready.Reason+": "+ready.Message, word) {
				return fmt.Errorf("its condition is %+v, want %q in it", ready, word)
			}
		}
		return nil
	}
}

// podOf waits for the one pod of a Revision and until it satisfies a check.
func podOf(t *testing.T, c *testenv.Cluster, svc *servingv1.Service, check func(*corev1.Pod) error) *corev1.Pod {
	t.Helper()
	pods := &corev1.PodList{}
	suite.Eventually(t, limit, "the pod of "+svc.Name, func() error {
		err := c.Client.List(t.Context(), pods, client.InNamespace(svc.Namespace), client.MatchingLabels{"serving.knative.dev/service": svc.Name})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		return check(&pods.Items[0])
	})
	return &pods.Items[0]
}

// The name of an image decides what becomes of a pod, and Knative draws its conclusions.
func TestImages(t *testing.T) {
	c, _ := start(t)
	for _, test := range []struct {
		name, image string
		reason      string // why the container waits; empty: there is no pod
		last        string // how it ended before
		failed      []string
		late        bool // Knative waits for the progress deadline
	}{
		{"crash", "dev.local/crash:1", "CrashLoopBackOff", "Error", []string{"RevisionFailed", "Container failed with"}, false},
		{"oom", "dev.local/oom:1", "CrashLoopBackOff", "OOMKilled", []string{"RevisionFailed", "Container failed with"}, false},
		{"pull", "dev.local/pull:1", "ImagePullBackOff", "", []string{"RevisionFailed", "Back-off pulling image"}, true},
		{"hang", "dev.local/hang:1", "ContainerCreating", "", nil, false},
		{"digest", "127.0.0.1:1/app:1", "", "", []string{"RevisionFailed", "Unable to fetch image", "127.0.0.1:1"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			svc := newService(test.name, test.image)
			if test.late {
				svc.Spec.Template.Annotations = map[string]string{"serving.knative.dev/progress-deadline": "2s"}
			}
			create(t, c, svc)
			if test.failed != nil {
				eventually(t, c, svc, "the Service fails", failed(test.failed...))
			}
			if test.reason == "" {
				return
			}
			podOf(t, c, svc, func(pod *corev1.Pod) error {
				if len(pod.Status.ContainerStatuses) == 0 {
					return errors.New("it has no status")
				}
				status := pod.Status.ContainerStatuses[0]
				if waiting := status.State.Waiting; waiting == nil || waiting.Reason != test.reason {
					return fmt.Errorf("its container is %+v", status)
				}
				if last := status.LastTerminationState.Terminated; test.last != "" && (last == nil || last.Reason != test.last) {
					return fmt.Errorf("its container is %+v, want %s before", status, test.last)
				}
				return nil
			})
			if test.failed == nil && svc.Status.GetCondition(apis.ConditionReady).IsTrue() {
				t.Error("the Service is ready without a pod")
			}
		})
	}
}

// A rollout that fails leaves the Revision before it in place.
func TestRolloutFails(t *testing.T) {
	c, _ := start(t)
	svc := newService("rollout", "dev.local/rollout:1")
	create(t, c, svc)
	eventually(t, c, svc, "the Service becomes ready", isReady)
	first := svc.Status.LatestReadyRevisionName
	update(t, c, svc, func(svc *servingv1.Service) { svc.Spec.Template.Spec.Containers[0].Image = "dev.local/crash:2" })
	eventually(t, c, svc, "the Service fails", failed("RevisionFailed"))
	if svc.Status.LatestReadyRevisionName != first || svc.Status.LatestCreatedRevisionName == first {
		t.Errorf("created %s, ready %s, want %s ready", svc.Status.LatestCreatedRevisionName, svc.Status.LatestReadyRevisionName, first)
	}
	if len(svc.Status.Traffic) != 1 || svc.Status.Traffic[0].RevisionName != first {
		t.Errorf("traffic goes to %+v, want %s", svc.Status.Traffic, first)
	}
}

// What a test writes to a pod, the API server reads as its log; and a crash is seen by Knative.
func TestPodLog(t *testing.T) {
	c, k := start(t)
	svc := newService("logs", "dev.local/logs:1")
	create(t, c, svc)
	eventually(t, c, svc, "the Service becomes ready", isReady)
	object := podOf(t, c, svc, func(*corev1.Pod) error { return nil })
	for _, status := range object.Status.ContainerStatuses {
		if status.ContainerID != "" || !status.Ready {
			t.Errorf("container %s: id %q, ready %t", status.Name, status.ContainerID, status.Ready)
		}
	}
	pod, err := k.Pod(t.Context(), client.ObjectKeyFromObject(object))
	if err != nil {
		t.Fatal(err)
	}
	pod.Write("first line", "second line")
	if again, err := k.Pod(t.Context(), client.ObjectKeyFromObject(object)); err != nil || again != pod {
		t.Errorf("a second call returns another pod, %v", err)
	}
	clients, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := clients.CoreV1().Pods(object.Namespace).GetLogs(object.Name, &corev1.PodLogOptions{Container: "user-container"}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(stream)
	if err := errors.Join(err, stream.Close()); err != nil {
		t.Fatal(err)
	}
	if string(got) != "first line\nsecond line\n" {
		t.Errorf("the log is %q", got)
	}
	if err := pod.Crash(t.Context()); err != nil {
		t.Fatal(err)
	}
	crashed := podOf(t, c, svc, func(pod *corev1.Pod) error {
		if status := pod.Status.ContainerStatuses[0]; status.State.Waiting == nil || status.State.Waiting.Reason != "CrashLoopBackOff" {
			return fmt.Errorf("its container is %+v", status)
		}
		return nil
	})
	if crashed.Status.PodIP == "" || crashed.Status.ContainerStatuses[0].ContainerID != "" {
		t.Errorf("the crash has changed more than the container: %+v", crashed.Status)
	}
	if _, err := k.Pod(t.Context(), client.ObjectKey{Namespace: object.Namespace, Name: "nobody"}); err == nil {
		t.Error("a pod that is not there has a log")
	}
}
