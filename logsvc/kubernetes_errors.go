package logsvc

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// right is something that the log service has to be allowed to do.
type right struct{ verb, resource, namespace string }

func (r right) String() string {
	if r.namespace == "" {
		return r.verb + " on " + r.resource + " in all namespaces"
	}
	return r.verb + " on " + r.resource + " in namespace " + r.namespace
}

// kubernetesError is what the asker is told when Kubernetes fails. need is what
// the request took; ctx is the asker's.
func kubernetesError(ctx context.Context, err error, need right) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return Errorf(subjects.CodeDeadlineExceeded, "kubernetes did not answer in time")
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case apierrors.IsForbidden(err):
		return Errorf(subjects.CodeInternal, "kubernetes: the log service lacks the right %s", need)
	case apierrors.IsUnauthorized(err):
		return Errorf(subjects.CodeInternal, "kubernetes does not accept the credentials of the log service")
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		return Errorf(subjects.CodeInternal, "kubernetes has no %s", need.resource)
	case apierrors.IsBadRequest(err), apierrors.IsInvalid(err):
		return Errorf(subjects.CodeInternal, "kubernetes: %s", request.PlainText(err))
	}
	return Errorf(subjects.CodeUnavailable, "kubernetes: %s", request.PlainText(err))
}

// denied tells whether waiting will not help; an API server that has just started
// says so for a moment as well.
func denied(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }
