package appsvc

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// settleTimeout bounds the wait for the cache: a watch delivers a change within milliseconds.
	settleTimeout  = time.Second
	settleInterval = 5 * time.Millisecond
)

// settle waits until the cache has a version of an app, so that a requester that has the answer to
// a write and then reads from this replica reads its own write.
func (s *Service) settle(ctx context.Context, id subjects.AppID, uid types.UID, version string) {
	s.await(ctx, func() bool {
		entry, ok := s.cache.App(id)
		// With another uid, the version was in the cache already or never will be.
		return ok && (entry.Service.UID != uid || atLeast(entry.Service.ResourceVersion, version))
	})
}

// settleDeleted waits until the cache no longer has an object as an app.
func (s *Service) settleDeleted(ctx context.Context, id subjects.AppID, uid types.UID) {
	s.await(ctx, func() bool {
		entry, ok := s.cache.App(id)
		return !ok || entry.Service.UID != uid
	})
}

// atLeast reports whether version a is b or later. It is false if they are not comparable.
func atLeast(a, b string) bool {
	n, err := resourceversion.CompareResourceVersion(a, b)
	return a == b || err == nil && n > 0
}

func (s *Service) await(ctx context.Context, done func() bool) {
	// Without the version in time, the requester may read an older one.
	_ = wait.PollUntilContextTimeout(ctx, settleInterval, settleTimeout, true, func(context.Context) (bool, error) { return done(), nil })
}
