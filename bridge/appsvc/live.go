package appsvc

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

const (
	// cacheTimeout bounds the wait for the cache: a watch delivers a change within milliseconds.
	cacheTimeout  = time.Second
	cacheInterval = 5 * time.Millisecond
)

// foreign is the reason why deploy may not change the object, empty if it may. Deploy takes over a
// Knative Service without an app id if its label marks it as managed by Flyte.
func (l *live) foreign() string {
	if l.object == nil || l.ours {
		return ""
	}
	if _, named := l.object.GetAnnotations()[kservice.AnnotationAppID]; named {
		return "belongs to another app"
	}
	if l.object.GetLabels()[kservice.LabelManaged] != "true" {
		return "has neither an app id nor the label " + kservice.LabelManaged
	}
	return ""
}

// live is the Knative Service of an app as read from Kubernetes.
type live struct {
	at     types.NamespacedName
	object *unstructured.Unstructured // nil: not found
	ours   bool                       // the annotation has the id of the app, letter for letter
}

// find reads the Knative Service of an app: where the cache has it, else by its canonical name,
// which may be free or the name of another app's Service.
func (s *Service) find(ctx context.Context, id subjects.AppID) (*live, error) {
	var places []types.NamespacedName
	if entry, ok := s.cache.App(id); ok {
		places = append(places, types.NamespacedName{Namespace: entry.Service.Namespace, Name: entry.Service.Name})
	}
	canonical := types.NamespacedName{Namespace: s.cfg.Deploy.Namespace, Name: kservice.Name(id)}
	// The canonical name of some ids is not a valid name.
	if len(validation.IsDNS1123Subdomain(canonical.Name)) == 0 && !slices.Contains(places, canonical) {
		places = append(places, canonical)
	}
	found := &live{at: canonical}
	for _, at := range places {
		object, err := s.kube.get(ctx, knative("services"), at.Namespace, at.Name)
		if err != nil {
			return nil, err
		}
		found = &live{at: at, object: object}
		if object != nil && object.GetAnnotations()[kservice.AnnotationAppID] == id.String() {
			found.ours = true
			break
		}
	}
	return found, nil
}

// owns reports whether a pod belongs to the app. Without the app's Service nothing proves that.
func (l *live) owns(pod *unstructured.Unstructured) bool {
	return l.ours && kservice.OwnsPod(l.at.Name, l.object.GetUID(), pod.GetLabels())
}

// service decodes the part of the object that a conversion reads.
func (l *live) service() (*kservice.Service, error) {
	svc := &kservice.Service{}
	text, err := l.object.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, svc)
	}
	if err != nil {
		return nil, fmt.Errorf("read knative service %s: %w", l.at, err)
	}
	return svc, nil
}

// appNow answers with an app as Kubernetes has it after a write, once the cache has that version.
func (s *Service) appNow(ctx context.Context, r *apiRequest, now *live, wrap func(*appv1.App) proto.Message) (*reply, error) {
	s.awaitCache(ctx, func() bool {
		entry, ok := s.cache.App(r.app)
		// With another uid, the version was in the cache already or never will be.
		return ok && (entry.Service.UID != now.object.GetUID() || atLeast(entry.Service.ResourceVersion, now.object.GetResourceVersion()))
	})
	svc, err := now.service()
	if err != nil {
		return nil, err
	}
	app, err := s.convertLive(svc, r.app)
	if err != nil {
		return nil, err
	}
	return s.appReply(r.form, app, &svc.ObjectMeta, wrap)
}

// awaitCache waits until the cache has a change, so that a requester that has the answer to a write
// and then reads from this replica reads its own write.
func (s *Service) awaitCache(ctx context.Context, has func() bool) {
	// Without the change in time, the requester may read an older version.
	_ = wait.PollUntilContextTimeout(ctx, cacheInterval, s.timeouts.cache, true, func(context.Context) (bool, error) { return has(), nil })
}

// atLeast reports whether version a is b or later. It is false if they are not comparable.
func atLeast(a, b string) bool {
	n, err := resourceversion.CompareResourceVersion(a, b)
	return a == b || err == nil && n > 0
}

// convertLive converts a Knative Service that was read from Kubernetes. The cache has the replica
// count: the last one, as long as it lacks the Revision that the Service names.
func (s *Service) convertLive(svc *kservice.Service, id subjects.AppID) (*appv1.App, error) {
	entry, ok := s.cache.App(id)
	if !ok || svc.Status.LatestReadyRevisionName == "" {
		return kservice.Convert(svc, nil, s.cfg.App)
	}
	if entry.Service.UID != svc.UID || entry.Service.Stopped {
		return kservice.Convert(svc, entry.Revision, s.cfg.App) // counts only if the Service names it
	}
	return kservice.ConvertCounting(svc, entry.Revision, s.cfg.App)
}
