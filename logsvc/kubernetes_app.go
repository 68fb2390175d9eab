package logsvc

import (
	"cmp"
	"context"
	"slices"

	"github.com/appbridge/appbridge/bridge/request"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

const (
	resourceServices = "services"
	rightServices    = "services.serving.knative.dev"
)

// findApp looks for the Knative Service of an app: where the lookup says, then where
// its name says, then, unless the lookup knows all apps, among all that Flyte manages.
// Only the annotation counts, as for events and app operations: Flyte's labels for
// project and domain may be missing, and names fold case, so that the name of one app
// may be that of another, whose log this requester may not read.
func (k *Kubernetes) findApp(ctx context.Context, id subjects.AppID) (*kservice.Service, error) {
	complete := false
	if k.lookup != nil {
		svc, synced := k.lookup(id)
		if svc != nil {
			svc, err := k.currentApp(ctx, svc.Namespace, svc.Name, id)
			if svc != nil || err != nil {
				return svc, err
			}
		}
		complete = synced
	}
	name := kservice.Name(id)
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		// What the field selector is given holds no character that means
		// anything to it.
		svc, err := k.searchApp(ctx, id, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if svc != nil || err != nil {
			return svc, err
		}
	}
	if !complete {
		svc, err := k.searchApp(ctx, id, metav1.ListOptions{LabelSelector: labels.Set{kservice.LabelManaged: "true"}.String(), ResourceVersion: "0"})
		if svc != nil { // as the API server's cache has it
			svc, err = k.currentApp(ctx, svc.Namespace, svc.Name, id)
		}
		if svc != nil || err != nil {
			return svc, err
		}
	}
	return nil, Errorf(subjects.CodeNotFound, "app: no app %s", id)
}

// searchApp is the app's Service among those that a list brings, nil when it is
// not there. Of several, the first by namespace and name.
func (k *Kubernetes) searchApp(ctx context.Context, id subjects.AppID, opts metav1.ListOptions) (*kservice.Service, error) {
	var found []*kservice.Service
	for _, namespace := range k.namespaces {
		list := &kservice.ServiceList{}
		if err := k.call(ctx, id.Project, func(ctx context.Context) error {
			return k.serving.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resourceServices).
				SpecificallyVersionedParams(&opts, metav1.ParameterCodec, metav1.SchemeGroupVersion).Do(ctx).Into(list)
		}); err != nil {
			return nil, kubernetesError(ctx, err, right{"list", rightServices, namespace})
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

// currentApp reads a Service consistently. It is nil when there is none or it is another app's. Its
// uid changes when the app is deleted and deployed again.
func (k *Kubernetes) currentApp(ctx context.Context, namespace, name string, id subjects.AppID) (*kservice.Service, error) {
	svc := &kservice.Service{}
	err := k.call(ctx, id.Project, func(ctx context.Context) error {
		return k.serving.Get().Namespace(namespace).Resource(resourceServices).Name(name).Do(ctx).Into(svc)
	})
	switch {
	case apierrors.IsNotFound(err), err == nil && !ownedBy(svc, id):
		return nil, nil
	case err != nil:
		return nil, kubernetesError(ctx, err, right{"get", rightServices, namespace})
	}
	return svc, nil
}

func ownedBy(svc *kservice.Service, id subjects.AppID) bool {
	owner, err := kservice.ID(svc)
	return err == nil && owner == id
}

// call makes a request for a project whose answer is not a log, once its turn has come. Its
// error is for the caller to report; client-go would log some on its own.
func (k *Kubernetes) call(ctx context.Context, project string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(klog.NewContext(ctx, logr.Discard()), k.pace.answer)
	defer cancel()
	slot, err := k.calls.Acquire(ctx, request.Claim{Project: project, Units: 1})
	if err != nil {
		return err
	}
	defer slot.Release()
	return do(ctx)
}
