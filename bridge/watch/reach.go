package watch

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/app"
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
// it was later; item is nil if the list does not have it. A version that is newer than that of the
// item, but not than the list, is of a history that the cluster has lost.
func (o Observed) Agrees(item *Listed, version string) bool {
	switch {
	case item == nil:
		return !o.Exists || app.CompareVersions(o.Version, version) > 0
	case !o.Exists:
		return false // it may have been deleted since
	case o.UID == item.UID:
		return o.Version == item.ResourceVersion || app.CompareVersions(o.Version, version) > 0
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
	if p := s.pods[key]; kind == KindPod && p != nil {
		known.UID, known.Version, known.Exists = p.UID, p.ResourceVersion, true
	}
	if o := s.services[key]; kind == KindService && o != nil {
		known.UID, known.Version, known.Exists = o.UID, o.ResourceVersion, true
	}
	return known
}

// stale yields the objects that the informers have although they were deleted before the list was
// taken: those that are not in it and are no newer. mu must be locked.
func (s *Shown) stale(l Listing, inList func(types.NamespacedName) bool) iter.Seq[types.NamespacedName] {
	return func(yield func(types.NamespacedName) bool) {
		for key, version := range s.objects(l.Kind) {
			if !inList(key) && l.covers(key.Namespace) && app.CompareVersions(version, l.Version) <= 0 && !yield(key) {
				return
			}
		}
	}
}

// objects yields the versions of a kind's objects. mu must be locked.
func (s *Shown) objects(kind string) iter.Seq2[types.NamespacedName, string] {
	return func(yield func(types.NamespacedName, string) bool) {
		switch kind {
		case KindService:
			for key, o := range s.services {
				if !yield(key, o.ResourceVersion) {
					return
				}
			}
		case KindRevision:
			for key, r := range s.revisions {
				if !yield(key, r.ResourceVersion) {
					return
				}
			}
		case KindPod:
			for key, p := range s.pods {
				if !yield(key, p.ResourceVersion) {
					return
				}
			}
		}
	}
}

// lack is what the informers have not delivered yet: an object, or its deletion.
type lack struct {
	key  types.NamespacedName
	item *Listed // nil: it is deleted
}

func (k lack) String() string {
	if k.item == nil {
		return k.key.String() + " is gone"
	}
	return k.key.String()
}

// delivered reports whether the informers have delivered what was lacking. mu must be locked.
func (s *Shown) delivered(l Listing, k lack) bool {
	if k.item != nil {
		deletion, deleted := s.deleted[incarnation{l.Kind, k.item.UID}]
		if deleted && (deletion == "" || app.CompareVersions(deletion, k.item.ResourceVersion) > 0) {
			return true
		}
	}
	known, list := s.known(l.Kind, k.key), s.versions[l.Kind].completeOf(k.key.Namespace)
	if k.item != nil && !known.Exists && list != "" && app.CompareVersions(list, l.Version) >= 0 {
		return true // it came and went while nothing was observed: a later list does not have it
	}
	return known.Agrees(k.item, l.Version)
}

// lacking is what the informers have not delivered yet of a listing, object by object: while an
// informer lists again, a high version of one object says nothing about another.
func (s *Shown) lacking(l Listing) (lacking []lack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, item := range l.Items {
		if k := (lack{key, &item}); !s.delivered(l, k) {
			lacking = append(lacking, k)
		}
	}
	for key := range s.stale(l, func(key types.NamespacedName) bool { _, ok := l.Items[key]; return ok }) {
		lacking = append(lacking, lack{key, nil})
	}
	return lacking
}

// Reach waits until the informers have delivered everything up to the listings. NoteDeletes must
// have been called before the listings were made. Whenever no object of a listing was delivered for
// the limit, stuck is called with one of its objects, and then for each listing after it that lacks
// some: the informers of an app have to list at one time.
func (s *Shown) Reach(ctx context.Context, listings []Listing, limit time.Duration, stuck func(l Listing, what string)) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for n, l := range listings {
		timer.Reset(limit)
		all := func(l Listing, what string) {
			stuck(l, what)
			for _, other := range listings[n+1:] {
				if left := s.lacking(other); len(left) > 0 {
					stuck(other, other.Kind+" "+left[0].String())
				}
			}
		}
		// Another look at all of them at the end: an object that is gone may have been delivered since.
		for left := s.lacking(l); len(left) > 0; left = s.lacking(l) {
			if err := s.await(ctx, l, left, limit, timer, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// await waits for what is lacking of a listing. Each callback costs a look at the first of it.
func (s *Shown) await(ctx context.Context, l Listing, left []lack, limit time.Duration, timer *time.Timer, stuck func(l Listing, what string)) error {
	least := len(left)
	for {
		s.mu.Lock()
		for len(left) > 0 && s.delivered(l, left[0]) {
			left = left[1:]
		}
		changed := s.nextChange()
		s.mu.Unlock()
		if len(left) == 0 {
			return nil
		}
		what := l.Kind + " " + left[0].String()
		select {
		case <-changed:
		case <-timer.C:
			timer.Reset(limit)
			s.mu.Lock()
			left = slices.DeleteFunc(left, func(k lack) bool { return s.delivered(l, k) })
			s.mu.Unlock()
			if len(left) == least {
				stuck(l, what)
			}
			least = len(left)
		case <-ctx.Done():
			return fmt.Errorf("wait for the informer to reach version %s (%s): %w", l.Version, what, context.Cause(ctx))
		}
	}
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
