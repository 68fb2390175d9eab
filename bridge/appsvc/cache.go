package appsvc

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// Entry is an app in the cache. Its objects are shared and must not be changed.
type Entry struct {
	ID      subjects.AppID
	Service *app.Service
	// Revision gives current_replicas. nil: there is none. During a rollout it may be older than
	// the Revision that the Service names, until the informers have observed that.
	Revision *kservice.Revision
}

// convert returns the App.
func (e Entry) convert() (*appv1.App, error) {
	encoded, err := app.State{Service: e.Service, Revision: e.Revision}.App()
	if err != nil {
		return nil, err
	}
	return encoded.App()
}

// Cache reads the caches of the informers, without requests to Kubernetes. It is safe for
// concurrent use.
type Cache interface {
	// Synced returns nil once the cache has everything that exists, else the reason.
	Synced() error
	// App returns one app. Of several Knative Services that claim its id it is the published one.
	App(id subjects.AppID) (Entry, bool)
	// Services returns the Knative Services of all apps that match, in no order. match must be
	// quick, and must not call the Cache.
	Services(match func(*app.Service) bool) []*app.Service
	// Pods are the pods that carry the name of a Knative Service. The error says why they are not
	// known; for want of a right it is a *kube.DeniedError.
	Pods(namespace, service string) ([]corev1.Pod, error)
}
