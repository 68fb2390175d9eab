package watch

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/appbridge/appbridge/bridge/app"
	"k8s.io/apimachinery/pkg/types"
)

// Observed is what the informers delivered of one object.
type Observed struct {
	UID     types.UID
	Version string
	Exists  bool   // false: they have no such object, uid and version are empty
	Watched string // the highest version of its kind that a watch of its namespace delivered
	Listed  string // the highest version of a list of its kind that an informer received
}

// Agrees reports whether the informers have an object as a consistent list at version has it, or as
// it was later; item is nil if the list does not have it.
func (o Observed) Agrees(item *Listed, version string) bool {
	switch {
	case item == nil:
		return !o.Exists || app.CompareVersions(o.Version, version) > 0
	case !o.Exists:
		return false // it may have been deleted since
	case o.UID == item.UID:
		return app.CompareVersions(o.Version, item.ResourceVersion) >= 0
	default:
		return app.CompareVersions(o.Version, version) > 0
	}
}

// Observed returns what the informers delivered of an object.
func (s *Shown) Observed(kind string, key types.NamespacedName) Observed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known(kind, key)
}

// known is Observed with mu locked.
func (s *Shown) known(kind string, key types.NamespacedName) Observed {
	v := s.versions[kind]
	known := Observed{Watched: v.watched[key.Namespace], Listed: v.list}
	if r := s.revisions[key]; kind == KindRevision && r != nil {
		known.UID, known.Version, known.Exists = r.UID, r.ResourceVersion, true
	}
	if o := s.services[key]; kind == KindService && o != nil {
		known.UID, known.Version, known.Exists = o.service.UID, o.service.ResourceVersion, true
	}
	return known
}

// stale yields the objects that the informers have although they were deleted before the list was
// taken: those that are not in it and are no newer. mu must be locked.
func (s *Shown) stale(l Listing, inList func(types.NamespacedName) bool) iter.Seq[types.NamespacedName] {
	return func(yield func(types.NamespacedName) bool) {
		check := func(key types.NamespacedName, version string) bool {
			return inList(key) || !l.covers(key.Namespace) || app.CompareVersions(version, l.Version) > 0 || yield(key)
		}
		if l.Kind == KindRevision {
			for key, r := range s.revisions {
				if !check(key, r.ResourceVersion) {
					return
				}
			}
			return
		}
		for key, o := range s.services {
			if !check(key, o.service.ResourceVersion) {
				return
			}
		}
	}
}

// missing yields what the informers have not delivered yet of a listing, object by object: while an
// informer lists again, a high version of one object says nothing about another. mu must be locked.
func (s *Shown) missing(l Listing) iter.Seq[string] {
	return func(yield func(string) bool) {
		for key, item := range l.Items {
			deletion, deleted := s.deleted[incarnation{l.Kind, item.UID}]
			switch {
			case deleted && (deletion == "" || app.CompareVersions(deletion, item.ResourceVersion) > 0):
			case s.known(l.Kind, key).Agrees(&item, l.Version):
			case !yield(l.Kind + " " + key.String()):
				return
			}
		}
		inList := func(key types.NamespacedName) bool { _, ok := l.Items[key]; return ok }
		for key := range s.stale(l, inList) {
			if !yield(l.Kind + " " + key.String() + " is gone") {
				return
			}
		}
	}
}

// Reach waits until the informers have delivered everything up to the listings. NoteDeletes must
// have been called before the listings were made. stuck is called with one of the objects whenever
// no object of a listing was delivered for the limit.
func (s *Shown) Reach(ctx context.Context, listings []Listing, limit time.Duration, stuck func(l Listing, what string)) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for _, l := range listings {
		timer.Reset(limit)
		least := s.unseen(l)
		for {
			behind, changed := s.behind(l)
			if behind == "" {
				break
			}
			select {
			case <-changed:
			case <-timer.C:
				timer.Reset(limit)
				if left := s.unseen(l); left < least {
					least = left
					continue
				}
				stuck(l, behind)
			case <-ctx.Done():
				return fmt.Errorf("wait for the informer to reach version %s (%s): %w", l.Version, behind, context.Cause(ctx))
			}
		}
	}
	return nil
}

// behind returns one object that the informers have not delivered yet of a listing, "" if there is
// none, and a channel that is closed at the next callback.
func (s *Shown) behind(l Listing) (what string, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for what = range s.missing(l) {
		break
	}
	return what, s.nextChange()
}

// unseen is how many objects of a listing the informers have not delivered yet.
func (s *Shown) unseen(l Listing) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range s.missing(l) {
		n++
	}
	return n
}

// Outdated returns the objects of a consistent list with which the informers do not agree.
func (s *Shown) Outdated(l Listing) map[types.NamespacedName]Listed {
	s.mu.Lock()
	defer s.mu.Unlock()
	outdated := map[types.NamespacedName]Listed{}
	for key, item := range l.Items {
		if !s.known(l.Kind, key).Agrees(&item, l.Version) {
			outdated[key] = item
		}
	}
	return outdated
}

// Undeleted returns up to limit objects that the informers have although they were deleted before a
// consistent list was taken. inList reports whether an object is in the list.
func (s *Shown) Undeleted(l Listing, inList func(types.NamespacedName) bool, limit int) (keys []types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.stale(l, inList) {
		if keys = append(keys, key); len(keys) == limit {
			break
		}
	}
	return keys
}

// Contradicts is an error if the informers have a version of an object that a consistent list,
// although it is as new, does not have: that of a standby that outlived its cluster's history.
func (s *Shown) Contradicts(l Listing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, item := range l.Items {
		o := s.known(l.Kind, key)
		if o.Exists && o.UID == item.UID && app.CompareVersions(o.Version, item.ResourceVersion) > 0 && app.CompareVersions(o.Version, l.Version) <= 0 {
			return app.SteppedBack(item.ResourceVersion, o.Version)
		}
	}
	return nil
}
