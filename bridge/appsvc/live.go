package appsvc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// owner is whose a Knative Service is, by its annotation.
type owner int

const (
	ownerNone  owner = iota // it has no app id, or there is no object
	ownerThis               // the app that was asked for
	ownerOther              // another app, or something that is no app id
)

func ownerOf(object *unstructured.Unstructured, id subjects.AppID) owner {
	if object == nil {
		return ownerNone
	}
	written, ok := object.GetAnnotations()[kservice.AnnotationAppID]
	switch {
	case !ok:
		return ownerNone
	case written == id.String():
		return ownerThis
	default:
		return ownerOther
	}
}

// foreign is why deploy may not change what it found, empty when it may. A Knative Service without
// an app id is taken over if its label marks it as one of Flyte's.
func (l *live) foreign() string {
	switch {
	case l.owner == ownerOther:
		return "belongs to another app"
	case l.owner == ownerNone && l.object != nil && l.object.GetLabels()[kservice.LabelManaged] != "true":
		return "has neither an app id nor the label " + kservice.LabelManaged
	default:
		return ""
	}
}

// live is the place of an app's Knative Service in Kubernetes, and what was read there.
type live struct {
	at     types.NamespacedName
	object *unstructured.Unstructured // nil: there is none
	owner  owner
}

// find reads the Knative Service of an app: where the cache shows it, else at the
// place that its name gives it, which may be empty or another app's.
func (s *Service) find(ctx context.Context, id subjects.AppID) (*live, error) {
	var places []types.NamespacedName
	if entry, ok := s.cache.App(id); ok {
		places = append(places, types.NamespacedName{Namespace: entry.Service.Namespace, Name: entry.Service.Name})
	}
	canonical := types.NamespacedName{Namespace: s.cfg.Deploy.Namespace, Name: kservice.Name(id)}
	// Of some ids the name is none that an object can have.
	if len(validation.IsDNS1123Subdomain(canonical.Name)) == 0 && !slices.Contains(places, canonical) {
		places = append(places, canonical)
	}
	found := &live{at: canonical}
	for _, at := range places {
		object, err := s.kube.get(ctx, services(), at.Namespace, at.Name)
		if err != nil {
			return nil, err
		}
		found = &live{at: at, object: object, owner: ownerOf(object, id)}
		if found.owner == ownerThis {
			break
		}
	}
	return found, nil
}

// owns reports whether a pod is one of the app. Without a Service of the app nothing proves that.
func (l *live) owns(pod *unstructured.Unstructured) bool {
	return l.owner == ownerThis && kservice.OwnsPod(l.at.Name, l.object.GetUID(), pod.GetLabels())
}

// service is the part of the object that a conversion reads.
func (l *live) service() (*kservice.Service, error) {
	text, err := l.object.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("read knative service %s: %w", l.at, err)
	}
	svc := &kservice.Service{}
	if err := json.Unmarshal(text, svc); err != nil {
		return nil, fmt.Errorf("read knative service %s: %w", l.at, err)
	}
	return svc, nil
}

// appNow answers with an app as Kubernetes has it now.
func (s *Service) appNow(r *apiRequest, now *live, wrap func(*appv1.App) proto.Message) (*reply, error) {
	svc, err := now.service()
	if err != nil {
		return nil, err
	}
	app, err := s.convertLive(svc, r.app)
	if err != nil {
		return nil, err
	}
	return s.appReply(r.form, app, svc, wrap)
}

// convertLive makes the App of a Knative Service that was read from Kubernetes. The cache has the
// count. While it does not show the Revision that the Service names, its last count stands.
func (s *Service) convertLive(svc *kservice.Service, id subjects.AppID) (*appv1.App, error) {
	entry, ok := s.cache.App(id)
	if !ok || svc.Status.LatestReadyRevisionName == "" {
		return kservice.Convert(svc, nil, s.cfg.App)
	}
	if entry.Service.UID != svc.UID || kservice.Stopped(entry.Service) {
		return kservice.Convert(svc, entry.Revision, s.cfg.App) // counts only if the Service names it
	}
	return kservice.ConvertCounting(svc, entry.Revision, s.cfg.App)
}

// createService makes a Knative Service, and its namespace where that is missing.
func (k *kube) createService(ctx context.Context, manifest *kservice.Manifest) (*live, error) {
	at := types.NamespacedName{Namespace: manifest.Namespace, Name: manifest.Name}
	content, err := manifest.Object()
	if err != nil {
		return nil, err
	}
	created, err := k.create(ctx, services(), &unstructured.Unstructured{Object: content})
	if !lacksNamespace(err) {
		return &live{at: at, object: created, owner: ownerThis}, err
	}
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(manifest.Namespace)
	if _, err := k.create(ctx, namespaces(), namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	return nil, errNamespaceMade
}

// lacksNamespace tells whether an object was not made for want of its namespace.
func lacksNamespace(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return status.Status().Reason == metav1.StatusReasonNotFound && details != nil && details.Kind == kindNamespace
}
