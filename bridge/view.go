package bridge

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// Why the cache cannot be read.
const (
	unreadStarting = "starting: the informers are not in sync yet"
	unreadEnded    = "the bridge has ended: what its informers showed is not kept up any more"
)

func (b *Bridge) setUnread(why string) {
	if why == "" {
		b.unread.Store(nil)
		return
	}
	b.unread.Store(&why)
}

// Synced says why there is nothing to be read yet: nil from the time on at which
// the informers have shown every app that exists until Run returns, whether this
// bridge leads or not and whether NATS is there or not.
func (b *Bridge) Synced() error {
	if why := b.unread.Load(); why != nil {
		return errors.New(*why)
	}
	return nil
}

// App is an app as the informers show it. Of several Knative Services that claim its id it is the one that
// is published. What the entry points to is shared and must not be changed.
func (b *Bridge) App(id subjects.AppID) (appsvc.Entry, bool) {
	b.source.mu.Lock()
	defer b.source.mu.Unlock()
	now, ok := b.source.current[id]
	if !ok {
		return appsvc.Entry{}, false
	}
	return b.source.entry(id, now), true
}

// Services are the Knative Services of the apps that match, as the informers show them at one
// instant, in no order. What they point to is shared and must not be changed. match must be
// quick, and must not call the Bridge.
func (b *Bridge) Services(match func(*kservice.Service) bool) []*kservice.Service {
	b.source.mu.Lock()
	defer b.source.mu.Unlock()
	var found []*kservice.Service
	for _, now := range b.source.current {
		if match(now.service) {
			found = append(found, now.service)
		}
	}
	return found
}

// entry has the newest version of the Revision: who compares versions must not wait for another
// count. mu must be held.
func (s *source) entry(id subjects.AppID, now state) appsvc.Entry {
	return appsvc.Entry{ID: id, Service: now.service, Revision: s.shownRevision(id, now)}
}

// Pods are the pods that carry the label of a Knative Service, in no order, with
// only what [github.com/appbridge/appbridge/bridge/kservice.Replicas] reads, and
// their uid. What they point to is shared and must not be changed.
//
// The pods are nothing that events depend on: while they are not known, for want
// of a right or because Kubernetes is slow to list them, the error says so and
// everything else goes on.
func (b *Bridge) Pods(namespace, service string) ([]corev1.Pod, error) {
	if err := b.Synced(); err != nil {
		return nil, err
	}
	return b.pods.of(namespace, service)
}
