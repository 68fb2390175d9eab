package bridge

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// reach waits until the handlers have seen everything up to the listings.
// noteDeletes must have been called before the listings were made. Whenever
// nothing of what a listing shows was seen for the limit, stuck is called with one
// of the objects.
func (s *source) reach(ctx context.Context, listings []listing, limit time.Duration, stuck func(l listing, what string)) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for _, l := range listings {
		timer.Reset(limit)
		least := s.unseen(l)
		for {
			s.mu.Lock()
			behind := s.behind(l)
			changed := s.nextChange()
			s.mu.Unlock()
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
				return fmt.Errorf("wait for the informer to reach version %s (%s): %w", l.version, behind, context.Cause(ctx))
			}
		}
	}
	return nil
}

// behind says what the source has not seen yet of a listing, "" if nothing. It
// goes by each object: while an informer lists again, a high version of one
// object says nothing about another. mu must be held.
func (s *source) behind(l listing) string {
	for what := range s.missing(l) {
		return what
	}
	return ""
}

// unseen is how many objects of a listing the source has not seen yet.
func (s *source) unseen(l listing) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for range s.missing(l) {
		n++
	}
	return n
}

// missing yields what the source has not seen yet of a listing. mu must be held.
func (s *source) missing(l listing) iter.Seq[string] {
	return func(yield func(string) bool) {
		for key, item := range l.items {
			uid, version, ok := s.known(l.kind, key)
			deletion, deleted := s.deleted[incarnation{l.kind, item.UID}]
			switch {
			case deleted && (deletion == "" || order(deletion, item.ResourceVersion) > 0):
			case !ok, uid != item.UID && order(version, l.version) <= 0, uid == item.UID && order(version, item.ResourceVersion) < 0:
				if !yield(l.kind + " " + key.String()) {
					return
				}
			}
		}
		// What is known, not listed and no newer than the list was deleted before it.
		for key, version := range s.versions(l.kind) {
			if _, listed := l.items[key]; !listed && l.covers(key.Namespace) && order(version, l.version) <= 0 {
				if !yield(l.kind + " " + key.String() + " is gone") {
					return
				}
			}
		}
	}
}
