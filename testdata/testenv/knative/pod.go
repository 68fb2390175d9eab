package knative

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// Pod is the log of a pod of Knative's, for a test to write: what the API server answers to a
// request for the log of its app's container. The status is kwok's, without container ids, until
// one of the pod's own methods changes it, such as Crash. A second call returns the same.
func (k *Knative) Pod(ctx context.Context, key client.ObjectKey) (*testenv.Pod, error) {
	object := &corev1.Pod{}
	if err := k.client.Get(ctx, key, object); err != nil {
		return nil, fmt.Errorf("read a pod of Knative's: %w", err)
	}
	return k.kubelet.Attach(object)
}
