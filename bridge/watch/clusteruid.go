package watch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/retry"
)

// Identify waits for the API server, checks that this program may do what it needs, reads whether the
// namespaces exist, and returns the cluster's identity: the uid of kube-system. status receives the reason of the wait. An error that
// waiting does not fix is returned.
func (k *Cluster) Identify(ctx context.Context, namespaces *Namespaces, status func(string)) (types.UID, error) {
	var uid types.UID
	var doubt kubeapi.Patience
	report := retry.Log{Logger: k.Log}
	err := retry.Do(ctx, func() error {
		var err error
		if uid, err = k.probe(ctx, namespaces); err == nil {
			return nil
		}
		status(err.Error())
		return doubt.Check(err)
	}, func(err error, _ time.Duration) { report.Warn("waiting for Kubernetes", err) })
	return uid, err
}

// probe lists one object of each kind, checks the other rights, reads the namespaces, and returns the
// cluster's identity. Each request has a limit of its own: an API server may be slow, and namespaces many.
func (k *Cluster) probe(ctx context.Context, namespaces *Namespaces) (types.UID, error) {
	for _, ns := range k.Namespaces {
		for _, kind := range slices.Backward(k.Kinds()) { // Services first: without them there is nothing to read
			if err := kubeapi.List(ctx, k.Client, metadataList(kind), client.InNamespace(ns), client.Limit(1)); err != nil {
				return "", explainList(err, kind, ns)
			}
			if err := k.may(ctx, ns, resourceOf(kind), "", "watch"); err != nil {
				return "", err
			}
		}
	}
	if l := k.Lease; l.Name != "" {
		// A create has no name yet when it is authorized.
		for _, need := range []struct{ verb, name string }{{"get", l.Name}, {"create", ""}, {"update", l.Name}} {
			if err := k.may(ctx, l.Namespace, schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, need.name, need.verb); err != nil {
				return "", err
			}
		}
	}
	if err := namespaces.Read(ctx); err != nil {
		return "", err
	}
	return k.UID(ctx)
}

func resourceOf(kind string) schema.GroupResource {
	return schema.GroupResource{Group: groupVersionOf(kind).Group, Resource: strings.ToLower(kind) + "s"}
}

func groupVersionOf(kind string) schema.GroupVersion {
	if kind == KindPod {
		return corev1.SchemeGroupVersion
	}
	return kservice.GroupVersion()
}

// explainList is the error of a list of a kind in a namespace.
func explainList(err error, kind, namespace string) error {
	resource := resourceOf(kind)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("kubernetes has no %s/%s: install the CRDs of Knative Serving: %w", resource, kservice.GroupVersion().Version, err)
	}
	return kubeapi.Explain(err, kubeapi.Right{Verb: "list", Resource: resource.String(), Namespace: namespace}.String())
}

// may is an error if this program lacks a right that a probe cannot simply try out.
func (k *Cluster) may(ctx context.Context, namespace string, resource schema.GroupResource, name, verb string) error {
	ctx, cancel := context.WithTimeout(ctx, kubeapi.Timeout)
	defer cancel()
	review, err := k.Clientset.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: resource.Group, Resource: resource.Resource, Name: name,
		}},
	}, metav1.CreateOptions{})
	if apierrors.IsForbidden(err) {
		return nil // a cluster that does not allow the review: the watch itself fails then
	}
	if err != nil {
		return kubeapi.Explain(err, "asking for rights")
	}
	if !review.Status.Allowed {
		return kubeapi.Lacks(kubeapi.Right{Verb: verb, Resource: resource.String(), Namespace: namespace}.String())
	}
	return nil
}

// UID is the cluster's identity.
func (k *Cluster) UID(ctx context.Context) (types.UID, error) {
	uid, err := k.NamespaceUID(ctx, metav1.NamespaceSystem)
	if err != nil {
		return "", kubeapi.Explain(err, "get on namespace "+metav1.NamespaceSystem+" (its uid is the cluster's identity)")
	}
	return uid, nil
}

// Hold has the informers use lists and watches of the cluster uid alone. other is called when the API
// server is another cluster's: the address leads elsewhere than before. Without the right to read the
// identity it is taken to be the same.
func (k *Cluster) Hold(uid types.UID, other func(error)) {
	k.Watches.Confirm(func(ctx context.Context) error {
		now, err := k.NamespaceUID(ctx, metav1.NamespaceSystem)
		switch {
		case kubeapi.ReasonOf(err) == kubeapi.Forbidden:
			return nil
		case err != nil:
			return err
		case now != uid:
			err = app.OtherCluster(string(now), string(uid))
			other(err)
			return err
		}
		return nil
	})
}

// NamespaceUID reads a namespace. The error is that of the request.
func (k *Cluster) NamespaceUID(ctx context.Context, name string) (types.UID, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeapi.Timeout)
	defer cancel()
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
	err := k.Client.Get(ctx, types.NamespacedName{Name: name}, ns)
	return ns.UID, err
}
