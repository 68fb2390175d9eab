package appsvc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// kubeRequests bounds the concurrent requests to Kubernetes. Others wait.
	kubeRequests = 32
	// kubeTimeout bounds one request. It leaves time for the answer.
	kubeTimeout = 3 * time.Second
)

// kube changes objects in Kubernetes. It reads and writes whole objects, so deploy keeps fields
// that it does not know.
type kube struct {
	client  dynamic.Interface
	slots   chan struct{}
	timeout time.Duration // kubeTimeout, except in tests
}

func newKube(cfg *rest.Config) (*kube, error) {
	cfg, err := kubeapi.Bounded(cfg)
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	cfg.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	return &kube{client: client, slots: make(chan struct{}, kubeRequests), timeout: kubeTimeout}, nil
}

func knative(resource string) schema.GroupVersionResource {
	return kservice.GroupVersion().WithResource(resource)
}

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

type call func(ctx context.Context, r dynamic.ResourceInterface) (*unstructured.Unstructured, error)

// do makes one request. The error is a *kubeError, or that of ctx.
func (k *kube) do(ctx context.Context, verb string, of schema.GroupVersionResource, namespace string, send call) (*unstructured.Unstructured, error) {
	select {
	case k.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-k.slots }()
	// client-go would log some of the errors on its own.
	try, cancel := context.WithTimeout(klog.NewContext(ctx, logr.Discard()), k.timeout)
	defer cancel()
	var resource dynamic.ResourceInterface = k.client.Resource(of)
	if namespace != "" {
		resource = k.client.Resource(of).Namespace(namespace)
	}
	object, err := send(try, resource)
	if err != nil {
		return nil, &kubeError{verb: verb, resource: of.GroupResource(), namespace: namespace, err: err}
	}
	return object, nil
}

// get reads an object consistently. It returns nil if there is none.
func (k *kube) get(ctx context.Context, of schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	object, err := k.do(ctx, "get", of, namespace, func(ctx context.Context, r dynamic.ResourceInterface) (*unstructured.Unstructured, error) {
		return r.Get(ctx, name, metav1.GetOptions{})
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return object, err
}

func (k *kube) create(ctx context.Context, of schema.GroupVersionResource, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return k.do(ctx, "create", of, object.GetNamespace(), func(ctx context.Context, r dynamic.ResourceInterface) (*unstructured.Unstructured, error) {
		return r.Create(ctx, object, metav1.CreateOptions{})
	})
}

// update writes a Knative Service. The error is a conflict if it has changed since it was read.
func (k *kube) update(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return k.do(ctx, "update", knative("services"), object.GetNamespace(), func(ctx context.Context, r dynamic.ResourceInterface) (*unstructured.Unstructured, error) {
		return r.Update(ctx, object, metav1.UpdateOptions{})
	})
}

func (k *kube) patch(ctx context.Context, at types.NamespacedName, patch []byte) (*unstructured.Unstructured, error) {
	return k.do(ctx, "patch", knative("services"), at.Namespace, func(ctx context.Context, r dynamic.ResourceInterface) (*unstructured.Unstructured, error) {
		return r.Patch(ctx, at.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	})
}

// remove deletes an object that was read, and then what it owns. The error is NotFound if there is
// none, Conflict if there is another of its name. With unchanged, it is Conflict also if the object
// has changed.
func (k *kube) remove(ctx context.Context, of schema.GroupVersionResource, object *unstructured.Unstructured, unchanged bool) error {
	only := metav1.Preconditions{UID: new(object.GetUID())}
	if unchanged {
		only.ResourceVersion = new(object.GetResourceVersion())
	}
	opts := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground), Preconditions: &only}
	_, err := k.do(ctx, "delete", of, object.GetNamespace(), func(ctx context.Context, r dynamic.ResourceInterface) (*unstructured.Unstructured, error) {
		return nil, r.Delete(ctx, object.GetName(), opts)
	})
	return err
}

// createService creates a Knative Service, and its namespace if that is missing.
func (k *kube) createService(ctx context.Context, desired *servingv1.Service) (*live, error) {
	at := types.NamespacedName{Namespace: desired.Namespace, Name: desired.Name}
	content, err := kservice.Object(desired)
	if err != nil {
		return nil, err
	}
	created, err := k.create(ctx, knative("services"), &unstructured.Unstructured{Object: content})
	if !lacksNamespace(err) {
		return &live{at: at, object: created, ours: true}, err
	}
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(desired.Namespace)
	if _, err := k.create(ctx, core("namespaces"), namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	return nil, errNamespaceMade
}

// lacksNamespace reports whether an object was not created because its namespace is missing.
func lacksNamespace(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return status.Status().Details.Kind == "namespaces"
}

// kubeError is a failed request to Kubernetes.
type kubeError struct {
	verb      string
	resource  schema.GroupResource
	namespace string
	err       error
}

func (e *kubeError) Error() string { return fmt.Sprintf("%s %s: %v", e.verb, e.resource, e.err) }
func (e *kubeError) Unwrap() error { return e.err }

// right is the permission that the request needed.
func (e *kubeError) right() string {
	if e.namespace == "" {
		return e.verb + " on " + e.resource.String()
	}
	return kubeapi.Right{Verb: e.verb, Resource: e.resource.String(), Namespace: e.namespace}.String()
}

// failure is the answer to the request.
func (e *kubeError) failure() *request.Error {
	text := request.PlainText(e.err)
	switch kubeapi.ReasonOf(e.err) {
	case kubeapi.Invalid:
		return request.Errorf(subjects.CodeInvalidArgument, "kubernetes refuses it: %s", text)
	case kubeapi.Unauthorized:
		return request.Errorf(subjects.CodeInternal, "kubernetes does not accept the credentials of appbridge")
	case kubeapi.Forbidden:
		if kubeapi.LacksRight(e.err, e.verb) {
			return request.Errorf(subjects.CodeInternal, "kubernetes: appbridge lacks the right %s", e.right())
		}
		return request.Errorf(subjects.CodeFailedPrecondition, "kubernetes refuses it: %s", text)
	case kubeapi.Conflict:
		return request.Errorf(subjects.CodeFailedPrecondition, "app: others keep changing it")
	case kubeapi.Missing:
		return request.Errorf(subjects.CodeInternal, "kubernetes has no %s", e.resource)
	case kubeapi.Unavailable:
		return request.Errorf(subjects.CodeUnavailable, "kubernetes: %s", text)
	default:
		return request.Errorf(subjects.CodeInternal, "kubernetes: %s", text)
	}
}

// changed reports whether another client changed, created or deleted the object in between.
func (e *kubeError) changed() bool {
	return kubeapi.ReasonOf(e.err) == kubeapi.Conflict || e.verb == "update" && apierrors.IsNotFound(e.err)
}

// webhookFailed is in the error of a request that the API server refuses because a webhook did not
// answer it.
const webhookFailed = "failed calling webhook"

// unwritten reports whether Kubernetes was unavailable before it could write.
func (e *kubeError) unwritten() bool {
	return apierrors.IsTooManyRequests(e.err) || utilnet.IsConnectionRefused(e.err) || strings.Contains(e.err.Error(), webhookFailed)
}

// unavailable reports whether Kubernetes did not answer, or cannot serve the request for now.
func (e *kubeError) unavailable() bool { return kubeapi.ReasonOf(e.err) == kubeapi.Unavailable }
