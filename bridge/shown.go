package bridge

import "k8s.io/apimachinery/pkg/types"

// observed is what the informers have shown of one object.
type observed struct {
	uid     types.UID
	version string
	exists  bool   // false: they show no such object, uid and version are empty
	watched string // the highest version of its kind that a watch of its namespace has shown
	listed  string // the highest version of a list of its kind that an informer took
}

// observed returns what the informers have shown of an object.
func (s *source) observed(kind string, key types.NamespacedName) observed {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := observed{watched: s.shown[key.Namespace], listed: s.lists[kind]}
	if kind == kindRevision {
		o.watched = s.shownRevisions[key.Namespace]
	}
	o.uid, o.version, o.exists = s.known(kind, key)
	return o
}

// agrees reports whether the informers show an object as a consistent list at version has it, or as it
// was later; item is nil if the list does not have it.
func (o observed) agrees(item *listed, version string) bool {
	switch {
	case item == nil:
		return !o.exists || order(o.version, version) > 0
	case !o.exists:
		return false // it may have been deleted since
	case o.uid == item.UID:
		return order(o.version, item.ResourceVersion) >= 0
	default:
		return order(o.version, version) > 0
	}
}

// outdated returns the objects of a consistent list with which the informers do not agree.
func (s *source) outdated(l listing) map[types.NamespacedName]listed {
	s.mu.Lock()
	defer s.mu.Unlock()
	outdated := map[types.NamespacedName]listed{}
	for key, item := range l.items {
		var o observed
		if o.uid, o.version, o.exists = s.known(l.kind, key); !o.agrees(&item, l.version) {
			outdated[key] = item
		}
	}
	return outdated
}

// undeleted returns up to limit objects that the informers show although they were deleted before a
// consistent list was taken. inList reports whether an object is in the list.
func (s *source) undeleted(l listing, inList func(types.NamespacedName) bool, limit int) []types.NamespacedName {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []types.NamespacedName
	for key, version := range s.versions(l.kind) {
		if inList(key) || !l.covers(key.Namespace) || order(version, l.version) > 0 {
			continue
		}
		if keys = append(keys, key); len(keys) == limit {
			break
		}
	}
	return keys
}

// changes returns a channel that is closed at the next change that the informers show.
func (s *source) changes() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextChange()
}
