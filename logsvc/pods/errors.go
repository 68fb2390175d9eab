package pods

import (
	"context"
	"errors"

	"github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// apiError returns the answer to a request that failed with an error of the API server. need is
// the permission that the request needed.
func apiError(ctx context.Context, err error, need kube.Right) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return request.Errorf(subjects.CodeDeadlineExceeded, "kubernetes did not answer in time")
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	switch kube.ReasonOf(err) {
	case kube.Forbidden:
		return request.Errorf(subjects.CodeInternal, "kubernetes: the log service lacks the right %s", need)
	case kube.Unauthorized:
		return request.Errorf(subjects.CodeInternal, "kubernetes does not accept the credentials of the log service")
	case kube.Missing:
		return request.Errorf(subjects.CodeInternal, "kubernetes has no %s", need.Resource)
	case kube.Invalid:
		return request.Errorf(subjects.CodeInternal, "kubernetes: %s", request.PlainText(err))
	default:
		return request.Errorf(subjects.CodeUnavailable, "kubernetes: %s", request.PlainText(err))
	}
}

// denied reports whether permission is missing. An API server that has just started returns
// such errors for a moment, too.
func denied(err error) bool {
	reason := kube.ReasonOf(err)
	return reason == kube.Forbidden || reason == kube.Unauthorized
}
