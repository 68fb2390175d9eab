package appsvc

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// settleTimeout is how long an answer waits for the cache: a watch shows a change within
	// milliseconds, or something is wrong that the requester need not wait for.
	settleTimeout = time.Second
	settleLook    = 5 * time.Millisecond
)

// settle waits until the cache shows a version of an app, so that who has the answer to
// a write and reads next, from this replica, reads what was written.
func (s *Service) settle(ctx context.Context, id subjects.AppID, uid types.UID, version string) {
	s.await(ctx, func() bool {
		entry, ok := s.cache.App(id)
		// Another object may be the app, or this one may be gone already: then it
		// was shown, or will not be.
		return ok && (entry.Service.UID != uid || atLeast(entry.Service.ResourceVersion, version))
	})
}

// settleGone waits until the cache does not show an object as an app any more.
func (s *Service) settleGone(ctx context.Context, id subjects.AppID, uid types.UID) {
	s.await(ctx, func() bool {
		entry, ok := s.cache.App(id)
		return !ok || entry.Service.UID != uid
	})
}

// atLeast reports whether version a is b or a later one; false if they do not compare.
func atLeast(a, b string) bool {
	n, err := resourceversion.CompareResourceVersion(a, b)
	return a == b || err == nil && n > 0
}

func (s *Service) await(ctx context.Context, shown func() bool) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	look := time.NewTicker(settleLook)
	defer look.Stop()
	for !shown() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}
