package testenv_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A pod that another program created gets a log, and keeps its status until the test changes it.
func TestKubeletAttach(t *testing.T) {
	e := startLogs(t, shared.Get(t))
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace(t, e.cluster), Name: "other"},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{
			{Name: "queue-proxy", Image: "q"}, {Name: "user-container", Image: "u"},
		}},
	}
	done(t, e.cluster.Client.Create(t.Context(), object))
	p, err := e.kubelet.Attach(object)
	done(t, err)
	again, err := e.kubelet.Attach(object)
	done(t, err)
	if again != p {
		t.Error("a second Attach makes another pod")
	}
	p.Write("one line")
	equal(t, e.read(t, p, corev1.PodLogOptions{Container: "user-container"}), "one line\n")

	found := &corev1.Pod{}
	done(t, e.cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(object), found))
	equal(t, len(found.Status.ContainerStatuses), 0)
	done(t, p.Crash(t.Context()))
	done(t, e.cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(object), found))
	equal(t, len(found.Status.ContainerStatuses), 2)
	app := found.Status.ContainerStatuses[1]
	equal(t, app.State.Waiting.Reason, "CrashLoopBackOff")
	equal(t, app.ContainerID+app.LastTerminationState.Terminated.ContainerID, "")

	object.Name, object.Spec.Containers = "sidecar-alone", object.Spec.Containers[:1]
	if _, err := e.kubelet.Attach(object); err == nil {
		t.Error("a pod without an app gets a log")
	}
}
