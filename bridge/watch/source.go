package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// Sink takes the changes of apps, in the order they were observed per app. It must not block.
type Sink func(subjects.AppID, *app.Change)

// Source turns what the informers deliver into states of apps. Its handlers only update maps under
// a mutex and enqueue; they never wait.
//
// It runs all the time. A session compares the states with what was published, then connects a
// sink.
type Source struct {
	log      *zap.Logger
	rejected func(reason string) // is called for each version that is not published

	// Shown has a mutex of its own. It is written with mu locked.
	Shown *Shown

	mu       sync.Mutex
	claims   claims
	current  map[subjects.AppID]app.State // what each app is now
	standIns standIns
	// reported holds the version and the reason of each object that was rejected last.
	reported map[types.NamespacedName]string
	sink     Sink
	reset    context.CancelCauseFunc // ends the session when an object's version steps back
}

// The kinds that are watched.
const (
	KindService  = "Service"
	KindRevision = "Revision"
	kindPod      = "Pod"
)

// errStepBack ends a session that an object's version stepped back in.
var errStepBack = errors.New("an object's version stepped back")

// NewSource makes a source without a sink.
func NewSource(log *zap.Logger, rejected func(reason string)) *Source {
	return &Source{
		log:      log,
		rejected: rejected,
		Shown:    newShown(),
		claims:   claims{},
		current:  map[subjects.AppID]app.State{},
		standIns: standIns{after: afterTime, apps: map[subjects.AppID]*awaited{}},
		reported: map[types.NamespacedName]string{},
	}
}

// Services returns the informer's callbacks for Knative Services.
func (s *Source) Services() toolscache.ResourceEventHandler {
	return handler(s, s.upsertService, s.deleteService)
}

// Revisions returns the informer's callbacks for Revisions.
func (s *Source) Revisions() toolscache.ResourceEventHandler {
	return handler(s, s.upsertRevision, s.deleteRevision)
}

// handler makes informer callbacks of two functions that run with mu locked. unknown is true if the
// object is only the last state known, not that of the deletion.
func handler[T any](s *Source, upsert func(T), remove func(obj T, unknown bool)) toolscache.ResourceEventHandler {
	locked := func(obj any, do func(T)) {
		typed, ok := obj.(T)
		if !ok {
			s.log.DPanic("the informer delivers another type", zap.String("type", fmt.Sprintf("%T", obj)))
			return
		}
		s.mu.Lock()
		defer s.Shown.notify()
		defer s.mu.Unlock()
		do(typed)
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { locked(obj, upsert) },
		UpdateFunc: func(_, obj any) { locked(obj, upsert) },
		DeleteFunc: func(obj any) {
			tombstone, unknown := obj.(toolscache.DeletedFinalStateUnknown)
			if unknown {
				obj = tombstone.Obj
			}
			locked(obj, func(typed T) { remove(typed, unknown) })
		},
	}
}

func (s *Source) upsertRevision(rev *kservice.Revision) {
	key := types.NamespacedName{Namespace: rev.Namespace, Name: rev.Name}
	s.Shown.setRevision(key, rev)
	s.settleUsers(key, app.Observation{Relisted: s.Shown.relisted(KindRevision, rev.ResourceVersion)})
}

func (s *Source) deleteRevision(rev *kservice.Revision, unknown bool) {
	key := types.NamespacedName{Namespace: rev.Namespace, Name: rev.Name}
	s.Shown.removeRevision(key, rev)
	s.settleUsers(key, app.Observation{Relisted: unknown})
}

// settleUsers settles the apps that a Revision counts for. mu must be locked.
func (s *Source) settleUsers(revision types.NamespacedName, seen app.Observation) {
	for _, id := range s.Shown.appsOf(revision) {
		s.settle(id, seen)
	}
}

func (s *Source) upsertService(svc *kservice.Service) {
	key := types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
	old := s.Shown.service(key)
	same := old != nil && old.service.UID == svc.UID
	if same && svc.ResourceVersion == old.service.ResourceVersion {
		return // the informer's own resync
	}

	now := &object{service: svc}
	id, err := app.Identity(svc)
	if err != nil {
		s.reject(key, svc, app.Reason(err), err)
	} else {
		now.app, now.valid = id, true
	}
	s.Shown.setService(key, now)
	if same && app.CompareVersions(svc.ResourceVersion, old.service.ResourceVersion) < 0 {
		s.stepBack(key, old.service.ResourceVersion, svc.ResourceVersion)
	}
	seen := app.Observation{Relisted: s.Shown.relisted(KindService, svc.ResourceVersion)}

	if old != nil && old.valid && (!now.valid || old.app != now.app || !same) {
		s.claims.remove(old.app, key)
		// The deletion of the object that was there was not observed; if it is still there under
		// another app's name, nothing is unknown.
		gone := seen
		gone.FinalStateUnknown = !same
		s.settle(old.app, gone)
	}
	if now.valid {
		s.claims.add(id, key, svc)
		s.settle(id, seen)
	}
}

// stepBack ends the session. The next one finds out whether the cluster's history was reset, before
// anything of it is published. mu must be locked.
func (s *Source) stepBack(key types.NamespacedName, from, to string) {
	s.log.Error("Knative Service stepped back to an older version",
		zap.Stringer("service", key), zap.String("had", from), zap.String("got", to))
	s.sink = nil
	s.Shown.stepBack(to)
	if s.reset != nil {
		s.reset(errStepBack)
	}
}

// deleteService handles a Service that was deleted, or that lost the label of managedSelector: the API
// server reports both as a deletion.
func (s *Source) deleteService(svc *kservice.Service, unknown bool) {
	key := types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
	gone := app.Observation{Relisted: unknown, FinalStateUnknown: unknown, ChangedAt: kservice.LastChange(svc)}
	if !unknown {
		// A tombstone's object is the last one cached: its version is not that of the deletion.
		gone.DeletedVersion = svc.ResourceVersion
	}
	old := s.Shown.service(key)
	s.Shown.removeService(key, svc, gone.DeletedVersion)
	delete(s.reported, key)
	if old != nil && old.valid {
		s.claims.remove(old.app, key)
		s.settle(old.app, gone)
	}
}

// winner is the Knative Service that is the app, or nil. It rejects the others. mu must be locked.
func (s *Source) winner(id subjects.AppID) *kservice.Service {
	best := s.claims.winner(id)
	for key, svc := range s.claims[id] {
		if svc != best {
			s.reject(key, svc, app.ReasonConflict, errConflict(id, best))
		}
	}
	return best
}

// settle updates current from the objects that claim an app, and emits changes. mu must be locked.
func (s *Source) settle(id subjects.AppID, seen app.Observation) {
	was, had := s.current[id]
	svc := s.winner(id)
	if svc == nil {
		s.standIns.end(id)
		if had {
			delete(s.current, id)
			s.emit(id, app.Removal(was, seen))
		}
		return
	}
	now := app.State{Service: svc, Revision: s.counting(id, svc, was, had)}
	if had && was.Service.UID == svc.UID {
		// The newer version of the Revision counts, also where the count is the same: a comparison
		// must not publish an older one than another bridge has.
		s.current[id] = now
		if was.Service.ResourceVersion != svc.ResourceVersion || app.Replicas(was) != app.Replicas(now) {
			s.emit(id, app.Upsert(now, false, seen))
		}
		return
	}
	if had {
		s.emit(id, app.Removal(was, seen))
	}
	s.current[id] = now
	s.emit(id, app.Upsert(now, true, seen))
}

func (s *Source) emit(id subjects.AppID, c *app.Change) {
	if s.sink != nil {
		s.sink(id, c)
	}
}
