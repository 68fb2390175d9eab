package testenv

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// SetPod gives a pod of a Service's Revision a status, as a kubelet writes it. The pod is created if
// it is not there. Of svc only namespace, name and uid count.
func (c *Cluster) SetPod(ctx context.Context, svc *servingv1.Service, revision, name string, status corev1.PodStatus) error {
	no := false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Name: name,
			Labels: map[string]string{labelService: svc.Name, labelServiceUID: string(svc.UID), labelRevision: revision},
		},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			Containers: []corev1.Container{{Name: queueProxy, Image: queueProxy}, {Name: "app", Image: "app"}},
		},
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		err := c.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		if apierrors.IsNotFound(err) {
			err = c.Client.Create(ctx, pod)
		}
		if err != nil {
			return err
		}
		pod.Status = *status.DeepCopy()
		return c.Client.Status().Update(ctx, pod)
	})
	if err != nil {
		return fmt.Errorf("set the status of pod %s/%s: %w", svc.Namespace, name, err)
	}
	return nil
}

// DeletePod deletes a pod at once.
func (c *Cluster) DeletePod(ctx context.Context, namespace, name string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := c.Client.Delete(ctx, pod, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete pod %s/%s: %w", namespace, name, err)
	}
	return nil
}

// PodServing is the status of a pod whose containers run and are ready.
func PodServing() corev1.PodStatus {
	return corev1.PodStatus{
		Phase:      corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{
			{Name: queueProxy, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			{Name: "app", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		},
	}
}

// PodWaiting is the status of a pod whose app waits for a reason, after restarts whose last one has
// ended for another; none: empty.
func PodWaiting(reason, ended string, restarts int32) corev1.PodStatus {
	status := PodServing()
	status.Conditions[0].Status = corev1.ConditionFalse
	app := corev1.ContainerStatus{Name: "app", RestartCount: restarts, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
	if ended != "" {
		app.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: ended, ExitCode: 1}
	}
	status.ContainerStatuses[1] = app
	return status
}
