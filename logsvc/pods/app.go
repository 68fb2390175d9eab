package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

const (
	resourceServices = "services"
	rightServices    = "services.serving.knative.dev"
)

// findApp returns the Knative Service of an app. It tries the lookup, then the name that Flyte
// gives the Service, then, unless the lookup has synced, all Services that Flyte manages.
// Only the annotation identifies the app, as for events and app operations: Flyte's labels for
// project and domain may be missing, and names fold case, so that two apps can have the same
// name and a requester could read the log of the other one.
func (src *Source) findApp(ctx context.Context, id subjects.AppID) (*kservice.Service, error) {
	complete := false
	if src.lookup != nil {
		svc, synced := src.lookup(id)
		if svc != nil {
			svc, err := src.currentApp(ctx, svc.Namespace, svc.Name, id)
			if svc != nil || err != nil {
				return svc, err
			}
		}
		complete = synced
	}
	name := kservice.Name(id)
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		// Such a name needs no escaping in a field selector.
		svc, err := src.searchApp(ctx, id, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if svc != nil || err != nil {
			return svc, err
		}
	}
	if !complete {
		svc, err := src.searchApp(ctx, id, metav1.ListOptions{LabelSelector: labels.Set{kservice.LabelManaged: "true"}.String(), ResourceVersion: "0"})
		if svc != nil { // from the cache of the API server
			svc, err = src.currentApp(ctx, svc.Namespace, svc.Name, id)
		}
		if svc != nil || err != nil {
			return svc, err
		}
	}
	return nil, request.Errorf(subjects.CodeNotFound, "app: no app %s", id)
}

// searchApp returns the app's Service from a list, nil if it is not there, the first by
// namespace and name if there are several.
func (src *Source) searchApp(ctx context.Context, id subjects.AppID, opts metav1.ListOptions) (*kservice.Service, error) {
	var found []*kservice.Service
	for _, namespace := range src.namespaces {
		list := &kservice.ServiceList{}
		if err := src.call(ctx, id.Project, func(ctx context.Context) error {
			return src.serving.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resourceServices).
				SpecificallyVersionedParams(&opts, metav1.ParameterCodec, metav1.SchemeGroupVersion).Do(ctx).Into(list)
		}); err != nil {
			return nil, apiError(ctx, err, kube.Right{Verb: "list", Resource: rightServices, Namespace: namespace})
		}
		for i := range list.Items {
			if svc := &list.Items[i]; ownedBy(svc, id) {
				found = append(found, svc)
			}
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	return slices.MinFunc(found, func(a, b *kservice.Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}), nil
}

// currentApp reads a Service consistently. It returns nil if there is none or it belongs to
// another app. The uid changes when the app is deleted and deployed again.
func (src *Source) currentApp(ctx context.Context, namespace, name string, id subjects.AppID) (*kservice.Service, error) {
	svc := &kservice.Service{}
	err := src.call(ctx, id.Project, func(ctx context.Context) error {
		return src.serving.Get().Namespace(namespace).Resource(resourceServices).Name(name).Do(ctx).Into(svc)
	})
	switch {
	case apierrors.IsNotFound(err), err == nil && !ownedBy(svc, id):
		return nil, nil
	case err != nil:
		return nil, apiError(ctx, err, kube.Right{Verb: "get", Resource: rightServices, Namespace: namespace})
	}
	return svc, nil
}

func ownedBy(svc *kservice.Service, id subjects.AppID) bool {
	owner, err := kservice.ID(svc)
	return err == nil && owner == id
}

// bounded returns the context of a request that has its answer at once. The caller reports the error;
// client-go would log some on its own.
func (src *Source) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(klog.NewContext(ctx, logr.Discard()), src.timing.answer)
}

// call makes a request for a project, other than one for a log, when the limit allows it.
func (src *Source) call(ctx context.Context, project string, do func(context.Context) error) error {
	ctx, cancel := src.bounded(ctx)
	defer cancel()
	slot, err := src.calls.Acquire(ctx, request.Claim{Project: project, Units: 1})
	if err != nil {
		return err
	}
	defer slot.Release()
	return do(ctx)
}

// apiError returns the answer to a request that failed with an error of the API server. need is
// the permission that the request needed.
func apiError(ctx context.Context, err error, need kube.Right) error {
	hangs, ok := errors.AsType[*kube.HangsError](err)
	switch {
	case ok:
		return request.Errorf(subjects.CodeUnavailable, "kubernetes: %s", hangs)
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

// denied reports whether the permission to get something is missing. An API server that has just
// started returns such errors for a moment, too.
func denied(err error) bool {
	if _, _, ok := ofKubelet(err); ok {
		return false
	}
	return kube.LacksRight(err, "get") || kube.ReasonOf(err) == kube.Unauthorized
}

// logResource is the kind in the Status that the API server makes of a response of the kubelet.
const logResource = "pods/log"

// ofKubelet returns the response of the kubelet to a request for a log, which the API server passes on. It
// is about that replica alone. The API server's own responses are about pods. A 500 of either looks the same.
func ofKubelet(err error) (code int32, text string, ok bool) {
	if !errors.As(err, new(openError)) {
		return 0, "", false
	}
	failure, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return 0, "", false
	}
	status := failure.Status()
	if status.Details == nil || status.Details.Kind != logResource {
		return 0, "", false
	}
	if status.Code == http.StatusForbidden { // of the others it does not pass the text on
		text, _, _ = strings.Cut(status.Message, " ( "+logResource)
	}
	return status.Code, text, true
}

// unreadable is why the log of a replica cannot be read, on one line.
func unreadable(err error) string {
	code, text, ok := ofKubelet(err)
	if !ok {
		return request.OneLine(request.PlainText(err))
	}
	answer := fmt.Sprintf("its kubelet answers %d %s", code, http.StatusText(int(code)))
	if text = request.OneLine(text); text != "" {
		answer += ": " + text
	}
	return answer
}
