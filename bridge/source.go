package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// sink takes the changes of apps, in the order they were observed per app. It
// must not block.
type sink func(subjects.AppID, *change)

// object is a managed Knative Service as the informer last showed it.
type object struct {
	service *kservice.Service
	app     subjects.AppID
	valid   bool // app is a publishable identity
}

// source turns what the informers show into states of apps. Its handlers only
// update maps under a mutex and enqueue; they never wait.
//
// It runs all the time, whether this bridge publishes or not: going live is
// comparing what it has with what was published and connecting a sink.
type source struct {
	log     *zap.Logger
	metrics *metrics

	mu        sync.Mutex
	objects   map[types.NamespacedName]*object
	claims    map[subjects.AppID]map[types.NamespacedName]*kservice.Service
	current   map[subjects.AppID]state // what each app is now
	revisions map[types.NamespacedName]*kservice.Revision
	// users are the Knative Services whose status names a Revision.
	users map[types.NamespacedName]map[types.NamespacedName]struct{}
	// deleted are the objects whose deletion was seen since noteDeletes, with
	// its version if that is known; nil while nobody compares with a list.
	deleted map[incarnation]string
	// newest is the highest version of a Knative Service that was shown.
	newest string
	// shown is the highest version in each namespace, and in all, that was shown by a
	// watch.
	shown map[string]string
	// shownRevisions is the same of Revisions, in each namespace.
	shownRevisions map[string]string
	// lists holds, per kind, the version of the newest list an informer took.
	lists map[string]string
	sink  sink
	// changed is closed at the next callback; nil while nobody waits.
	changed chan struct{}
	// rejected holds the version of each object that was last reported.
	rejected map[types.NamespacedName]string
	reset    context.CancelCauseFunc // ends the session when an object's version steps back
	// awaits are the apps whose Service names a Revision that is not known yet.
	awaits map[subjects.AppID]*awaited
	after  afterFunc
	closed bool
}

// incarnation is one object, from its creation to its deletion.
type incarnation struct {
	kind string
	uid  types.UID
}

const (
	kindService  = "Service"
	kindRevision = "Revision"
	kindPod      = "Pod"
)

// errStepBack ends a session that an object's version stepped back in.
var errStepBack = errors.New("an object's version stepped back")

func newSource(log *zap.Logger, m *metrics) *source {
	return &source{
		log:       log,
		metrics:   m,
		objects:   map[types.NamespacedName]*object{},
		claims:    map[subjects.AppID]map[types.NamespacedName]*kservice.Service{},
		current:   map[subjects.AppID]state{},
		revisions: map[types.NamespacedName]*kservice.Revision{},
		users:     map[types.NamespacedName]map[types.NamespacedName]struct{}{},
		rejected:  map[types.NamespacedName]string{},
		lists:     map[string]string{},
		shown:     map[string]string{},

		shownRevisions: map[string]string{},
		awaits:         map[subjects.AppID]*awaited{},
		after:          afterTime,
	}
}

// serviceHandler returns the informer's callbacks for Knative Services.
func (s *source) serviceHandler() toolscache.ResourceEventHandler {
	return handler(s, s.upsertService, s.deleteService)
}

// revisionHandler returns the informer's callbacks for Revisions.
func (s *source) revisionHandler() toolscache.ResourceEventHandler {
	return handler(s, s.upsertRevision, s.deleteRevision)
}

// handler makes informer callbacks of two functions that run with mu held.
// remove is told when the object is only the last state known, not that of
// the deletion.
func handler[T any](s *source, upsert func(T), remove func(obj T, unknown bool)) toolscache.ResourceEventHandler {
	locked := func(obj any, do func(T)) {
		typed, ok := obj.(T)
		if !ok {
			s.log.DPanic("the informer delivers another type", zap.String("type", fmt.Sprintf("%T", obj)))
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		do(typed)
		s.notify()
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

func (s *source) upsertRevision(rev *kservice.Revision) {
	key := types.NamespacedName{Namespace: rev.Namespace, Name: rev.Name}
	if old := s.revisions[key]; old != nil && old.UID != rev.UID {
		s.sawDelete(kindRevision, old.UID, "")
	}
	s.revisions[key] = rev
	s.showedRevision(rev)
	s.settleUsers(key, observation{relisted: s.relisted(kindRevision, rev.ResourceVersion)})
}

func (s *source) deleteRevision(rev *kservice.Revision, unknown bool) {
	key := types.NamespacedName{Namespace: rev.Namespace, Name: rev.Name}
	s.sawDelete(kindRevision, rev.UID, "")
	delete(s.revisions, key)
	s.showedRevision(rev)
	s.settleUsers(key, observation{relisted: unknown})
}

// showedRevision notes a version that the informer showed. mu must be held.
func (s *source) showedRevision(rev *kservice.Revision) {
	if !s.relisted(kindRevision, rev.ResourceVersion) {
		s.shownRevisions[rev.Namespace] = later(s.shownRevisions[rev.Namespace], rev.ResourceVersion)
	}
}

// settleUsers looks again at the apps that a Revision counts for. mu must be held.
func (s *source) settleUsers(revision types.NamespacedName, seen observation) {
	for user := range s.users[revision] {
		if o := s.objects[user]; o != nil && o.valid {
			s.settle(o.app, seen)
		}
	}
}

// showed notes a version that the informer showed. mu must be held.
func (s *source) showed(namespace, version string) {
	s.newest = later(s.newest, version)
	if s.relisted(kindService, version) {
		return // lists are shown in no order
	}
	s.shown[namespace] = later(s.shown[namespace], version)
	s.shown[metav1.NamespaceAll] = later(s.shown[metav1.NamespaceAll], version)
}

// newestShown is the highest version of a Knative Service that was shown, "" if
// none was.
func (s *source) newestShown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest
}

func (s *source) upsertService(svc *kservice.Service) {
	s.showed(svc.Namespace, svc.ResourceVersion)
	key := types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
	old := s.objects[key]
	switch {
	case old == nil:
	case old.service.UID != svc.UID:
		s.sawDelete(kindService, old.service.UID, "")
	default:
		switch order(svc.ResourceVersion, old.service.ResourceVersion) {
		case 0: // the informer's own resync
			return
		case -1:
			s.log.Error("Knative Service stepped back to an older version",
				zap.Stringer("service", key), zap.String("had", old.service.ResourceVersion), zap.String("got", svc.ResourceVersion))
			// The next session finds out whether the cluster's history was
			// reset, before anything of it is published.
			s.sink, s.newest = nil, svc.ResourceVersion
			clear(s.shown)
			clear(s.shownRevisions)
			if s.reset != nil {
				s.reset(errStepBack)
			}
		}
	}

	now := &object{service: svc}
	id, err := identity(svc)
	if err != nil {
		s.reject(key, svc, reasonOf(err), err)
	} else {
		now.app, now.valid = id, true
	}
	s.objects[key] = now
	s.index(key, old, now)
	seen := observation{relisted: s.relisted(kindService, svc.ResourceVersion)}

	if old != nil && old.valid && (!now.valid || old.app != now.app || old.service.UID != svc.UID) {
		s.unclaim(old.app, key)
		// The object that was there went without being seen to go; if it is
		// still there under another app's name, nothing is unknown.
		gone := seen
		gone.finalStateUnknown = old.service.UID != svc.UID
		s.settle(old.app, gone)
	}
	if now.valid {
		if s.claims[id] == nil {
			s.claims[id] = map[types.NamespacedName]*kservice.Service{}
		}
		s.claims[id][key] = svc
		s.settle(id, seen)
	}
}

func (s *source) deleteService(svc *kservice.Service, unknown bool) {
	key := types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
	s.showed(svc.Namespace, svc.ResourceVersion)
	gone := observation{relisted: unknown, finalStateUnknown: unknown, changedAt: kservice.LastChange(svc)}
	if !unknown {
		// A tombstone's object is the last one cached: its version is not
		// that of the deletion.
		gone.deletedVersion = svc.ResourceVersion
	}
	s.sawDelete(kindService, svc.UID, gone.deletedVersion)
	old := s.objects[key]
	delete(s.objects, key)
	delete(s.rejected, key)
	s.index(key, old, nil)
	if old != nil && old.valid {
		s.unclaim(old.app, key)
		s.settle(old.app, gone)
	}
}

// index keeps users in step with the Revision that an object names.
func (s *source) index(key types.NamespacedName, old, now *object) {
	revision := func(o *object) (types.NamespacedName, bool) {
		if o == nil || o.service.Status.LatestReadyRevisionName == "" {
			return types.NamespacedName{}, false
		}
		return types.NamespacedName{Namespace: key.Namespace, Name: o.service.Status.LatestReadyRevisionName}, true
	}
	before, had := revision(old)
	after, has := revision(now)
	if had && before != after {
		delete(s.users[before], key)
		if len(s.users[before]) == 0 {
			delete(s.users, before)
		}
	}
	if has {
		if s.users[after] == nil {
			s.users[after] = map[types.NamespacedName]struct{}{}
		}
		s.users[after][key] = struct{}{}
	}
}

// settle brings current in line with the objects that claim an app and tells
// the sink what changed. mu must be held.
func (s *source) settle(id subjects.AppID, seen observation) {
	was, had := s.current[id]
	svc := s.winner(id)
	if svc == nil {
		s.arrive(id)
		if had {
			delete(s.current, id)
			s.emit(id, removalOf(was, seen))
		}
		return
	}
	now := state{service: svc, revision: s.counting(id, svc, was, had)}
	if had && was.service.UID == svc.UID {
		// The newer version of the Revision counts, also where the count is the same: a comparison
		// must not publish an older one than another bridge has.
		s.current[id] = now
		if was.service.ResourceVersion != svc.ResourceVersion || replicas(was) != replicas(now) {
			s.emit(id, upsertOf(now, false, seen))
		}
		return
	}
	if had {
		s.emit(id, removalOf(was, seen))
	}
	s.current[id] = now
	s.emit(id, upsertOf(now, true, seen))
}

func (s *source) emit(id subjects.AppID, c *change) {
	if s.sink != nil {
		s.sink(id, c)
	}
}

// revisionOf is the Revision that a Service names, nil while there is none.
func (s *source) revisionOf(svc *kservice.Service) *kservice.Revision {
	if svc.Status.LatestReadyRevisionName == "" {
		return nil
	}
	return s.revisions[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Status.LatestReadyRevisionName}]
}

// noteDeletes starts to remember deletions, for reach.
func (s *source) noteDeletes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted = map[incarnation]string{}
}

// sawDelete remembers a deletion while somebody asks; version is "" if it is
// not known. mu must be held.
func (s *source) sawDelete(kind string, uid types.UID, version string) {
	if s.deleted != nil {
		s.deleted[incarnation{kind, uid}] = version
	}
}

func (s *source) notify() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// nextChange returns a channel that is closed at the next callback. mu must be held.
func (s *source) nextChange() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// states are the states of all apps.
func (s *source) states() map[subjects.AppID]state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.current)
}
