package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	keeper   app.Keeper
	rejected func(reason string) // is called for each version that is not published

	// Shown has a mutex of its own. It is written with mu locked.
	Shown *Shown

	mu       sync.Mutex
	claims   claims
	joins    map[string]*join             // by the namespace of informers
	current  map[subjects.AppID]app.State // what each app is now
	standIns appTimers                    // of the apps whose Service names a Revision not known yet
	settling appTimers                    // of the apps whose pods recover if nothing happens
	now      func() time.Time
	// reported holds the version and the reason of each object that was rejected last.
	reported map[types.NamespacedName]string
	sink     Sink
	reset    context.CancelCauseFunc // ends the session when an object's version steps back
}

// The kinds that are watched.
const (
	KindService  = "Service"
	KindRevision = "Revision"
	KindPod      = "Pod" // only with --pod-conditions; else no state depends on pods
)

// errStepBack ends a session that an object's version stepped back in.
var errStepBack = errors.New("an object's version stepped back")

// NewSource makes a source without a sink.
func NewSource(log *zap.Logger, keeper app.Keeper, rejected func(reason string)) *Source {
	return &Source{
		log:      log,
		keeper:   keeper,
		rejected: rejected,
		Shown:    newShown(),
		claims:   claims{},
		joins:    map[string]*join{},
		current:  map[subjects.AppID]app.State{},
		standIns: newAppTimers(),
		settling: newAppTimers(),
		now:      time.Now,
		reported: map[types.NamespacedName]string{},
	}
}

// Services returns the informer's callbacks for Knative Services.
func (s *Source) Services() toolscache.ResourceEventHandler {
	return handler(s, KindService, (*app.CachedService).Key, s.upsertService, s.deleteService)
}

// Revisions returns the informer's callbacks for Revisions.
func (s *Source) Revisions() toolscache.ResourceEventHandler {
	return handler(s, KindRevision, keyOf[*kservice.Revision], s.upsertRevision, s.deleteRevision)
}

// Transform is the transform of the informers. A list has many objects again in the version that
// the source has of them: these are not encoded again, and not in memory twice.
func (s *Source) Transform(obj any) (any, error) {
	if svc, ok := obj.(*kservice.Service); ok {
		known := s.Shown.service(types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name})
		if known != nil && known.UID == svc.UID && known.ResourceVersion == svc.ResourceVersion {
			return known, nil
		}
	}
	return s.keeper.Transform(obj)
}

// handler makes informer callbacks of two functions that run with mu locked. unknown is true if the
// object is only the last state known, not that of the deletion.
func handler[T any](s *Source, kind string, key func(T) types.NamespacedName, upsert func(T), remove func(obj T, unknown bool)) toolscache.ResourceEventHandler {
	locked := func(obj any, do func(T)) {
		obj, _ = s.keeper.Transform(obj) // as the informer's transform has done
		typed, ok := obj.(T)
		if !ok {
			s.log.DPanic("the informer delivers another type", zap.String("type", fmt.Sprintf("%T", obj)))
			return
		}
		s.mu.Lock()
		defer s.Shown.notify()
		defer s.mu.Unlock()
		s.deliver(kind, key(typed), func() { do(typed) })
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
	key := keyOf(rev)
	if !s.Shown.setRevision(key, rev) {
		return // as a list has most of them
	}
	s.updateUsers(key, origin{kind: KindRevision}, app.Observation{Relisted: s.Shown.relisted(KindRevision, rev.ResourceVersion)})
}

func (s *Source) deleteRevision(rev *kservice.Revision, unknown bool) {
	key := keyOf(rev)
	s.Shown.removeRevision(key, rev)
	s.updateUsers(key, origin{kind: KindRevision, deleted: true}, app.Observation{Relisted: unknown})
}

// updateUsers updates the apps that a Revision counts for. mu must be locked.
func (s *Source) updateUsers(revision types.NamespacedName, from origin, seen app.Observation) {
	for _, id := range s.Shown.appsOf(revision) {
		s.change(id, revision.Namespace, from, seen)
	}
}

func keyOf[T metav1.Object](obj T) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

func (s *Source) upsertService(svc *app.CachedService) {
	key := svc.Key()
	old := s.Shown.service(key)
	same := old != nil && old.UID == svc.UID
	if same && svc.ResourceVersion == old.ResourceVersion {
		return // the informer's own resync
	}

	if !svc.IsApp() {
		s.reject(key, svc, app.Reason(svc.Err), svc.Err)
	}
	seen := app.Observation{Relisted: s.Shown.relisted(KindService, svc.ResourceVersion)}
	if old != nil && !seen.Relisted {
		s.release(old.ID, key.Namespace)
	}
	s.Shown.setService(key, svc)
	if same && app.CompareVersions(svc.ResourceVersion, old.ResourceVersion) < 0 {
		s.stepBack(key, old.ResourceVersion, svc.ResourceVersion)
	}

	if old != nil && old.IsApp() && (old.ID != svc.ID || !same) {
		s.claims.remove(old.ID, key)
		// The deletion of the object that was there was not observed; if it is still there under
		// another app's name, nothing is unknown.
		gone := seen
		gone.FinalStateUnknown = !same
		s.change(old.ID, key.Namespace, origin{kind: KindService, deleted: true}, gone)
	}
	if svc.IsApp() {
		s.claims.add(svc.ID, svc)
		s.change(svc.ID, key.Namespace, origin{kind: KindService}, seen)
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

// winner is the Knative Service that is the app, or nil. It rejects the others. mu must be locked.
func (s *Source) winner(id subjects.AppID) *app.CachedService {
	best := s.claims.winner(id)
	for _, svc := range s.claims[id] {
		if svc != best {
			s.reject(svc.Key(), svc, app.ReasonConflict, errConflict(id, best))
		}
	}
	return best
}

// update updates what an app is now from the objects that claim it, and emits changes. mu must be
// locked.
func (s *Source) update(id subjects.AppID, seen app.Observation) {
	was, had := s.current[id]
	svc := s.winner(id)
	if svc == nil {
		s.standIns.end(id)
		s.settling.end(id)
		if had {
			delete(s.current, id)
			s.emit(id, app.Removal(was, seen))
		}
		return
	}
	now := app.State{Service: svc, Revision: s.counting(id, svc, was, had), Pods: s.said(id, svc)}
	if had && was.Service.UID == svc.UID {
		// The newer version of the Revision counts, also where the count is the same: a comparison
		// must not publish an older one than another bridge has.
		s.current[id] = now
		if !was.Same(now) {
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

// View is what a source knows at one instant. It is valid during the call that receives it.
type View struct{ source *Source }

// States are the states of all apps. The map must not be changed.
func (v View) States() map[subjects.AppID]app.State { return v.source.current }

// Awaits reports whether the Revision of an app is awaited: its count may change soon.
func (v View) Awaits(id subjects.AppID) bool { return v.source.standIns.runs(id) }

// StandIn makes rev stand in for the Revision of an app that is awaited since this process started:
// only what was published has a count then. rev may be nil.
func (v View) StandIn(id subjects.AppID, rev *kservice.Revision) {
	if now, there := v.source.current[id]; there && rev != nil && v.Awaits(id) && !now.StandsIn() {
		now.Revision = rev
		v.source.current[id] = now
	}
}

// NewestRevision is the newest version of the Revision that gives an app's count. The app's state
// has it only if it has another count than the version before.
func (v View) NewestRevision(id subjects.AppID, now app.State) *kservice.Revision {
	if v.Awaits(id) && now.StandsIn() {
		return now.Revision
	}
	return v.source.Shown.revisionOf(now.Service)
}

// Read calls do with what the source knows. do must be quick and must not call the source.
func (s *Source) Read(do func(View)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(View{s})
}

// States returns a copy of the states of all apps.
func (s *Source) States() (states map[subjects.AppID]app.State) {
	s.Read(func(v View) { states = maps.Clone(v.States()) })
	return states
}

// State is what an app is now. It has no Service if there is no such app.
func (s *Source) State(id subjects.AppID) (now app.State) {
	s.Read(func(v View) { now = v.States()[id] })
	return now
}

// Present are the apps that the cluster has.
func (s *Source) Present() (ids []subjects.AppID) {
	s.Read(func(v View) { ids = slices.Collect(maps.Keys(v.States())) })
	return ids
}

// Connect lets changes flow into the sink that start returns. start reads the state before the
// first of them. reset is called if an object's version steps back.
func (s *Source) Connect(start func(View) Sink, reset context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Shown.forgetDeletes()
	s.settleAll()
	s.sink, s.reset = start(View{s}), reset
}

// Disconnect stops the flow of changes into the sink.
func (s *Source) Disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Shown.forgetDeletes()
	s.sink, s.reset = nil, nil
}

// Release detaches the source from an ended session. The next one takes the changes from its sink.
func (s *Source) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Shown.forgetDeletes()
	s.reset = nil
}
