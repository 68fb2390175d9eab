package watch

import (
	"cmp"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// Shown is what the informers delivered: objects and versions. It is safe for concurrent use.
type Shown struct {
	mu        sync.Mutex
	services  map[types.NamespacedName]*app.CachedService
	revisions map[types.NamespacedName]*kservice.Revision
	pods      map[types.NamespacedName]*cachedPod
	podsOf    map[types.NamespacedName]map[types.NamespacedName]*cachedPod // by Knative Service
	// users are the names of the Knative Services whose status names a Revision of their namespace.
	users    map[types.NamespacedName][]string
	versions map[string]*versions // by kind
	// deleted are the objects whose deletion was observed since NoteDeletes, with its version if
	// that is known; nil while deletions are not noted.
	deleted map[incarnation]string
	changed chan struct{} // closed at the next callback; nil while nothing waits for it
}

// incarnation is one object, from its creation to its deletion.
type incarnation struct {
	kind string
	uid  types.UID
}

// versions is how far the informers of a kind are.
type versions struct {
	newest  string
	list    string            // of the newest list that an informer received
	watched map[string]string // the highest one of a watch, by namespace
	// complete is that of the last list that an informer has delivered to its end, by the informer's
	// namespace.
	complete map[string]string
}

func newVersions() *versions {
	return &versions{watched: map[string]string{}, complete: map[string]string{}}
}

// completeOf is the version of the last list with the objects of a namespace, "" without.
func (v *versions) completeOf(namespace string) string {
	return cmp.Or(v.complete[namespace], v.complete[metav1.NamespaceAll])
}

// relisted reports whether a version is from a list. While a list is under way it may report so of
// a version from a watch, which marks an event that need not be marked.
func (v *versions) relisted(version string) bool {
	return v.list != "" && app.CompareVersions(version, v.list) <= 0
}

func (v *versions) note(namespace, version string) {
	v.newest = app.NewerVersion(v.newest, version)
	if !v.relisted(version) { // a list has no order of versions
		v.watched[namespace] = app.NewerVersion(v.watched[namespace], version)
	}
}

func newShown() *Shown {
	return &Shown{
		services:  map[types.NamespacedName]*app.CachedService{},
		revisions: map[types.NamespacedName]*kservice.Revision{},
		pods:      map[types.NamespacedName]*cachedPod{},
		podsOf:    map[types.NamespacedName]map[types.NamespacedName]*cachedPod{},
		users:     map[types.NamespacedName][]string{},
		versions: map[string]*versions{
			KindService:  newVersions(),
			KindRevision: newVersions(),
			KindPod:      newVersions(),
		},
	}
}

func (s *Shown) service(key types.NamespacedName) *app.CachedService {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.services[key]
}

func (s *Shown) setService(key types.NamespacedName, now *app.CachedService) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.services[key]
	if old != nil && old.UID != now.UID {
		s.noteDelete(KindService, old.UID, "")
	}
	s.services[key] = now
	s.index(key, old, now)
	s.versions[KindService].note(key.Namespace, now.ResourceVersion)
}

// removeService removes a Knative Service; version is that of its deletion, "" if unknown.
func (s *Shown) removeService(key types.NamespacedName, last *app.CachedService, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteDelete(KindService, last.UID, version)
	s.index(key, s.services[key], nil)
	delete(s.services, key)
	s.versions[KindService].note(key.Namespace, last.ResourceVersion)
}

// setRevision returns false if it had this version.
func (s *Shown) setRevision(key types.NamespacedName, now *kservice.Revision) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.revisions[key]
	if old != nil && old.UID != now.UID {
		s.noteDelete(KindRevision, old.UID, "")
	}
	s.revisions[key] = now
	s.versions[KindRevision].note(key.Namespace, now.ResourceVersion)
	return old == nil || old.UID != now.UID || old.ResourceVersion != now.ResourceVersion
}

func (s *Shown) removeRevision(key types.NamespacedName, last *kservice.Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteDelete(KindRevision, last.UID, "")
	delete(s.revisions, key)
	s.versions[KindRevision].note(key.Namespace, last.ResourceVersion)
}

// revisionOf is the Revision that a Service names, nil while there is none. One of another Service is
// none: the watches of the two kinds may be on either side of a deletion.
func (s *Shown) revisionOf(svc *app.CachedService) *kservice.Revision {
	s.mu.Lock()
	defer s.mu.Unlock()
	rev := s.revisions[types.NamespacedName{Namespace: svc.Namespace, Name: svc.LatestReadyRevisionName}]
	if rev == nil || !rev.BelongsTo(svc.UID) {
		return nil
	}
	return rev
}

// index keeps users in step with the Revision that an object names. mu must be locked.
func (s *Shown) index(key types.NamespacedName, old, now *app.CachedService) {
	named := func(svc *app.CachedService) types.NamespacedName {
		if svc == nil {
			return types.NamespacedName{Namespace: key.Namespace}
		}
		return types.NamespacedName{Namespace: key.Namespace, Name: svc.LatestReadyRevisionName}
	}
	before, after := named(old), named(now)
	if before == after {
		return
	}
	if left := slices.DeleteFunc(s.users[before], func(name string) bool { return name == key.Name }); len(left) > 0 {
		s.users[before] = left
	} else {
		delete(s.users, before)
	}
	if after.Name != "" {
		s.users[after] = append(s.users[after], key.Name)
	}
}

func (s *Shown) appsOf(revision types.NamespacedName) (ids []subjects.AppID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.users[revision] {
		if o := s.services[types.NamespacedName{Namespace: revision.Namespace, Name: name}]; o != nil && o.IsApp() {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

// Listed notes that an informer is about to deliver the result of a list.
func (s *Shown) Listed(kind, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.versions[kind]
	v.list = app.NewerVersion(v.list, version)
}

// completed notes that an informer has delivered a list to its end.
func (s *Shown) completed(kind, namespace, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions[kind].complete[namespace] = version
}

// relisted reports whether a version of a kind is from a list, not from a watch.
func (s *Shown) relisted(kind, version string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.versions[kind].relisted(version)
}

// stepBack forgets the versions above one at which the cluster's history goes on.
func (s *Shown) stepBack(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.versions {
		clear(v.watched)
	}
	s.versions[KindService].newest = version
}

// Newest is the highest version of a Knative Service that was delivered, "" if none was.
func (s *Shown) Newest() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.versions[KindService].newest
}

// NoteDeletes starts to note deletions, for Reach.
func (s *Shown) NoteDeletes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted = map[incarnation]string{}
}

func (s *Shown) forgetDeletes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted = nil
}

// noteDelete notes a deletion; version is "" if it is not known. mu must be locked.
func (s *Shown) noteDelete(kind string, uid types.UID, version string) {
	if s.deleted != nil {
		s.deleted[incarnation{kind, uid}] = version
	}
}

func (s *Shown) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Changes returns a channel that is closed at the next callback of an informer.
func (s *Shown) Changes() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextChange()
}

// nextChange is Changes with mu locked.
func (s *Shown) nextChange() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}
