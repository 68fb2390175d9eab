package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// podsOfApp is how many pods an app has at most.
const podsOfApp = 2

// podStatuses are what may become of a pod. Restarts alone change nothing, and neither does one
// reason in place of another that means the same.
var podStatuses = []func(restarts int32) corev1.PodStatus{
	func(int32) corev1.PodStatus { return testenv.PodServing() },
	func(int32) corev1.PodStatus { return testenv.PodWaiting("ContainerCreating", "", 0) },
	func(int32) corev1.PodStatus { return testenv.PodWaiting("ErrImagePull", "", 0) },
	func(int32) corev1.PodStatus { return testenv.PodWaiting("ImagePullBackOff", "", 0) },
	func(restarts int32) corev1.PodStatus {
		return testenv.PodWaiting("CrashLoopBackOff", "Error", restarts)
	},
	func(restarts int32) corev1.PodStatus {
		return testenv.PodWaiting("CrashLoopBackOff", "OOMKilled", restarts)
	},
}

// pod changes a pod of the app's newest Revision, or deletes it. Without pod conditions there are
// none.
func (wr *writer) pod(ctx context.Context, c *testenv.Cluster, s *liveApp) error {
	if !wr.load.w.pods {
		return wr.scale(ctx, c, s)
	}
	svc := &servingv1.Service{}
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(s.app.Service()), svc); err != nil {
		return err
	}
	revision := svc.Status.LatestCreatedRevisionName
	if wr.rng.IntN(3) == 0 {
		revision = svc.Status.LatestReadyRevisionName
	}
	if revision == "" {
		return nil
	}
	name := fmt.Sprintf("%s-pod-%d", revision, wr.rng.IntN(podsOfApp))
	if wr.rng.IntN(5) == 0 {
		return c.DeletePod(ctx, svc.Namespace, name)
	}
	status := podStatuses[wr.rng.IntN(len(podStatuses))](wr.rng.Int32N(9) + 1)
	return c.SetPod(ctx, svc, revision, name, status)
}
