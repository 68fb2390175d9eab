package pods

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
)

// right is a permission that the log service needs.
type right struct{ verb, resource, namespace string }

func (r right) String() string {
	if r.namespace == "" {
		return r.verb + " on " + r.resource + " in all namespaces"
	}
	return r.verb + " on " + r.resource + " in namespace " + r.namespace
}

// apiError returns the answer to a request that failed with an error of the API server. need is
// the permission that the request needed.
func apiError(ctx context.Context, err error, need right) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return logsvc.Errorf(subjects.CodeDeadlineExceeded, "kubernetes did not answer in time")
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case apierrors.IsForbidden(err):
		return logsvc.Errorf(subjects.CodeInternal, "kubernetes: the log service lacks the right %s", need)
	case apierrors.IsUnauthorized(err):
		return logsvc.Errorf(subjects.CodeInternal, "kubernetes does not accept the credentials of the log service")
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		return logsvc.Errorf(subjects.CodeInternal, "kubernetes has no %s", need.resource)
	case apierrors.IsBadRequest(err), apierrors.IsInvalid(err):
		return logsvc.Errorf(subjects.CodeInternal, "kubernetes: %s", request.PlainText(err))
	}
	return logsvc.Errorf(subjects.CodeUnavailable, "kubernetes: %s", request.PlainText(err))
}

// denied reports whether permission is missing. An API server that has just started returns
// such errors for a moment, too.
func denied(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }
