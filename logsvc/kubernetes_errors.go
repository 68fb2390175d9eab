package logsvc

import (
	"context"
	"errors"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

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
		return Errorf(subjects.CodeInternal, "kubernetes: %s", plainText(err))
	}
	return Errorf(subjects.CodeUnavailable, "kubernetes: %s", plainText(err))
}

// denied tells whether waiting will not help; an API server that has just started
// says so for a moment as well.
func denied(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// plainText is an error in one line without addresses, which may hold more than
// is good to tell.
func plainText(err error) string {
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	words := strings.Fields(err.Error())
	kept := words[:0]
	for _, word := range words {
		if !strings.Contains(word, "://") {
			kept = append(kept, word)
		}
	}
	return strings.Join(kept, " ")
}
