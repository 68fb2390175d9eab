package bridge

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// deniedError is a right that this program lacks.
type deniedError struct{ right string }

func (e *deniedError) Error() string {
	return fmt.Sprintf("kubernetes forbids what appbridge needs, %s: grant it by RBAC", e.right)
}

// may asks for a right that a probe cannot simply try out.
func (k *kube) may(ctx context.Context, namespace string, resource schema.GroupResource, name, verb string) error {
	review, err := k.clientset.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: resource.Group, Resource: resource.Resource, Name: name,
		}},
	}, metav1.CreateOptions{})
	if apierrors.IsForbidden(err) {
		return nil // a cluster that does not let one ask: the watch itself will tell
	}
	if err != nil {
		return explain(err, "asking for rights")
	}
	if !review.Status.Allowed {
		return &deniedError{fmt.Sprintf("%s on %s in %s", verb, resource, namespaceText(namespace))}
	}
	return nil
}

func explain(err error, right string) error {
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("kubernetes does not accept the credentials of --kubeconfig: %w", err)
	case apierrors.IsForbidden(err):
		return &deniedError{right}
	default:
		return fmt.Errorf("kubernetes is not reachable: %w", err)
	}
}
