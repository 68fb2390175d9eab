package appsvc

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// Entry is an app as the informers show it. What it points to is shared and
// must not be changed.
type Entry struct {
	ID      subjects.AppID
	Service *kservice.Service
	// Revision is the one that gives current_replicas, nil when there is none. It is not the one
	// that the Service names for a moment at a rollout, while that one has not been shown yet.
	Revision *kservice.Revision
}

// Cache is what the informers show, without a request to Kubernetes. It is
// safe for concurrent use.
type Cache interface {
	// Synced says why there is nothing to be read yet, nil once everything that
	// exists has been shown.
	Synced() error
	// App is one app. Of several Knative Services that claim its id it is the
	// one that is published.
	App(id subjects.AppID) (Entry, bool)
	// Services are the Knative Services of all apps that match, in no order. match must be
	// quick, and must not call the Cache.
	Services(match func(*kservice.Service) bool) []*kservice.Service
	// Pods are the pods that carry the name of a Knative Service. The error says why they are not
	// known; for want of a right it is a *kube.DeniedError.
	Pods(namespace, service string) ([]corev1.Pod, error)
}
