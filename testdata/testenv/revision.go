package testenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What Knative labels a Revision with.
const (
	labelService       = "serving.knative.dev/service"
	labelConfiguration = "serving.knative.dev/configuration"
)

// Scale writes the actual replicas of the latest ready Revision, as Knative's
// autoscaler does. The Service itself does not change.
func (c *Cluster) Scale(ctx context.Context, svc *servingv1.Service, replicas int32) (*servingv1.Revision, error) {
	rev := &servingv1.Revision{}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		current := &servingv1.Service{}
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(svc), current); err != nil {
			return err
		}
		if current.Status.LatestReadyRevisionName == "" {
			return errors.New("no Revision is ready")
		}
		key := client.ObjectKey{Namespace: svc.Namespace, Name: current.Status.LatestReadyRevisionName}
		if err := c.Client.Get(ctx, key, rev); err != nil {
			return err
		}
		setReplicas(rev, replicas)
		return c.Client.Status().Update(ctx, rev)
	})
	if err != nil {
		return nil, fmt.Errorf("scale %s to %d: %w", client.ObjectKeyFromObject(svc), replicas, err)
	}
	return rev, nil
}

// DeleteRevision deletes the Revision that the given state of a Service names
// as its latest ready one, if there is one.
func (c *Cluster) DeleteRevision(ctx context.Context, svc *servingv1.Service) error {
	rev := &servingv1.Revision{}
	rev.Namespace, rev.Name = svc.Namespace, svc.Status.LatestReadyRevisionName
	if rev.Name == "" {
		return nil
	}
	if err := c.Client.Delete(ctx, rev); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Revision %s: %w", client.ObjectKeyFromObject(rev), err)
	}
	return nil
}

// ensureRevision creates the Revision that a Service is about to name ready, or
// gives an existing one the number of replicas.
func (c *Cluster) ensureRevision(ctx context.Context, svc *servingv1.Service, name string, replicas int32) error {
	current := &servingv1.Service{}
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(svc), current); err != nil {
		return fmt.Errorf("read %s: %w", client.ObjectKeyFromObject(svc), err)
	}
	controller := true
	rev := &servingv1.Revision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace,
			Name:      revisionName(current, name),
			Labels: map[string]string{
				labelService:       current.Name,
				labelConfiguration: current.Name,
				labelServiceUID:    string(current.UID),
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: serviceKind.GroupVersion().String(), Kind: serviceKind.Kind,
				Name: current.Name, UID: current.UID, Controller: &controller,
			}},
		},
		Spec: *current.Spec.Template.Spec.DeepCopy(),
	}
	key := client.ObjectKeyFromObject(rev)
	if err := c.Client.Create(ctx, rev); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Revision %s: %w", key, err)
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := c.Client.Get(ctx, key, rev); err != nil {
			return err
		}
		setReplicas(rev, replicas)
		return c.Client.Status().Update(ctx, rev)
	})
	if err != nil {
		return fmt.Errorf("write the status of Revision %s: %w", key, err)
	}
	return nil
}

func setReplicas(rev *servingv1.Revision, replicas int32) {
	rev.Status.ObservedGeneration = rev.Generation
	rev.Status.InitializeConditions()
	rev.Status.MarkResourcesAvailableTrue()
	rev.Status.MarkContainerHealthyTrue()
	if replicas == 0 {
		rev.Status.MarkActiveFalse("NoTraffic", "The target is not receiving traffic.")
	} else {
		rev.Status.MarkActiveTrue()
	}
	rev.Status.ActualReplicas, rev.Status.DesiredReplicas = &replicas, &replicas
}

// revisionName is the name asked for, else the one Knative would choose for the
// Service's generation.
func revisionName(svc *servingv1.Service, name string) string {
	return cmp.Or(name, fmt.Sprintf("%s-%05d", svc.Name, svc.Generation))
}
