package watch

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// With --pod-conditions an app's state has what its pods say: kservice.ConditionOf. It is a function
// of the objects, with one exception: a container that runs again after a crash has recovered once
// it has run for kservice.SettleTime, and no object changes then. So the source has a timer for each
// app with such a pod, and computes the state again when it ends. A bridge that starts, a standby and
// `verify` get the same by their own clocks.

// clockSkew is how far the clock of a bridge may be behind that of `verify`.
const clockSkew = 5 * time.Second

// Pods returns the informer's callbacks for pods. Without --pod-conditions they are not used.
func (s *Source) Pods() toolscache.ResourceEventHandler {
	return handler(s, KindPod, keyOf[*cachedPod], s.upsertPod, s.deletePod)
}

func (s *Source) upsertPod(pod *cachedPod) {
	var was kservice.PodState
	if old := s.Shown.setPod(pod); old != nil {
		was = old.state
	}
	if was == pod.state {
		return // most changes of a pod
	}
	seen := app.Observation{Relisted: s.Shown.relisted(KindPod, pod.ResourceVersion)}
	s.updateOwner(pod.Namespace, pod.state.Service, origin{kind: KindPod}, seen)
	if was.Service != "" && was.Service != pod.state.Service {
		s.updateOwner(pod.Namespace, was.Service, origin{kind: KindPod, deleted: true}, seen)
	}
}

func (s *Source) deletePod(pod *cachedPod, unknown bool) {
	s.Shown.removePod(pod)
	s.updateOwner(pod.Namespace, pod.state.Service, origin{kind: KindPod, deleted: true}, app.Observation{Relisted: unknown})
}

// updateOwner updates the app that a pod counts for. mu must be locked.
func (s *Source) updateOwner(namespace, service string, from origin, seen app.Observation) {
	svc := s.Shown.service(types.NamespacedName{Namespace: namespace, Name: service})
	if svc != nil && svc.IsApp() && svc.LatestCreatedRevisionName != "" {
		s.change(svc.ID, namespace, from, seen)
	}
}

// said is what the pods of an app say now. mu must be locked.
func (s *Source) said(id subjects.AppID, svc *app.CachedService) kservice.PodCondition {
	if svc.LatestCreatedRevisionName == "" {
		s.settling.end(id)
		return kservice.PodCondition{}
	}
	said, next := s.Shown.podCondition(svc, s.now())
	s.settleAt(id, next)
	return said
}

// settled computes the state of an app again whose pods may have recovered.
func (s *Source) settled(id subjects.AppID, t *appTimer) {
	s.mu.Lock()
	defer s.Shown.notify()
	defer s.mu.Unlock()
	if !s.settling.expire(id, t) {
		return
	}
	if st, ok := s.current[id]; ok {
		s.change(id, st.Service.Namespace, origin{}, app.Observation{})
	}
}

// settleAt has settled called at a time in seconds since 1970, 0 for never, in place of what was set
// before.
func (s *Source) settleAt(id subjects.AppID, at int64) {
	if had := s.settling.apps[id]; had != nil && had.at == at {
		return
	}
	s.settling.end(id)
	if at == 0 {
		return
	}
	if t := s.settling.start(id, time.Unix(at, 0).Sub(s.now()), func(t *appTimer) { s.settled(id, t) }); t != nil {
		t.at = at
	}
}

// recovering are the apps whose pods recover when nothing happens, or did within clockSkew: a bridge
// may not have published that yet.
func (s *Source) recovering() (apps []subjects.AppID) {
	for id, st := range s.current {
		if _, next := s.Shown.podCondition(st.Service, s.now().Add(-clockSkew)); next != 0 {
			apps = append(apps, id)
		}
	}
	return apps
}

// setPod returns the pod as it was, nil if it is new.
func (s *Shown) setPod(now *cachedPod) (old *cachedPod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(now)
	if old = s.pods[key]; old != nil && old.UID != now.UID {
		s.noteDelete(KindPod, old.UID, "")
	}
	s.indexPod(key, old, now)
	s.versions[KindPod].note(key.Namespace, now.ResourceVersion)
	return old
}

func (s *Shown) removePod(last *cachedPod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(last)
	s.noteDelete(KindPod, last.UID, "")
	s.indexPod(key, s.pods[key], nil)
	s.versions[KindPod].note(key.Namespace, last.ResourceVersion)
}

// indexPod puts a pod, nil for none, in place of what it was. mu must be locked.
func (s *Shown) indexPod(key types.NamespacedName, old, now *cachedPod) {
	if old != nil {
		of := types.NamespacedName{Namespace: key.Namespace, Name: old.state.Service}
		if delete(s.podsOf[of], key); len(s.podsOf[of]) == 0 {
			delete(s.podsOf, of)
		}
		delete(s.pods, key)
	}
	if now == nil {
		return
	}
	of := types.NamespacedName{Namespace: key.Namespace, Name: now.state.Service}
	if s.podsOf[of] == nil {
		s.podsOf[of] = map[types.NamespacedName]*cachedPod{}
	}
	s.pods[key], s.podsOf[of][key] = now, now
}

// podCondition is what the pods of a Knative Service say at a time, and when that may change.
func (s *Shown) podCondition(svc *app.CachedService, now time.Time) (kservice.PodCondition, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return kservice.ConditionOf(svc.LatestCreatedRevisionName, svc.LatestReadyRevisionName, func(yield func(kservice.PodState) bool) {
		for _, p := range s.podsOf[svc.Key()] {
			if owner := p.state.ServiceUID; (owner == "" || owner == svc.UID) && !yield(p.state) {
				return
			}
		}
	}, now)
}
