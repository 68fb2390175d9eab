package bridge

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// Synced returns why there is nothing to be read. It returns nil from the time on at which the
// informers have shown every app until Run returns, whether this bridge leads or is connected to
// NATS or not.
func (b *Bridge) Synced() error { return b.unread.err() }

// App is an app as the informers show it, with the newest version of its Revision. Of several
// Knative Services that claim its id it is the published one. The objects are shared and must not
// be changed.
func (b *Bridge) App(id subjects.AppID) (entry appsvc.Entry, ok bool) {
	b.source.Read(func(v watch.View) {
		var now app.State
		if now, ok = v.States()[id]; ok {
			entry = appsvc.Entry{ID: id, Service: now.Service, Revision: v.NewestRevision(id, now), Pods: now.Pods}
		}
	})
	return entry, ok
}

// Services are the Knative Services of the apps that match, as the informers show them at one
// instant, in no order. The objects are shared and must not be changed. match must be
// quick, and must not call the Bridge.
func (b *Bridge) Services(match func(*app.CachedService) bool) (found []*app.CachedService) {
	b.source.Read(func(v watch.View) {
		for _, now := range v.States() {
			if match(now.Service) {
				found = append(found, now.Service)
			}
		}
	})
	return found
}

// Pods are the pods that carry the label of a Knative Service, in no order, with only their uid and
// what [kservice.Replicas] reads. What they point to is shared and must not be changed. An error
// means that they are not known, for want of a right or because Kubernetes is slow to list them.
func (b *Bridge) Pods(namespace, service string) ([]corev1.Pod, error) {
	if err := b.Synced(); err != nil {
		return nil, err
	}
	return b.pods.Of(namespace, service)
}
