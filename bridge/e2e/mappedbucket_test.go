package e2e_test

import (
	"fmt"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

// An entry is acknowledged, and the bucket has it under the key of another app. The bridge is not
// ready while that lasts, and both keys are right after it.
func TestMappedBucket(t *testing.T) {
	t.Parallel()
	w := newMapped(t)
	cfg := w.audited()
	w.create(w.app("old"))
	r := w.start(cfg)
	w.waitFor(0, "created old")
	r.waitReady()
	r.completes(1)
	app, other := w.app("new").ID(), w.app("other").ID()
	subject := func(id subjects.AppID) string {
		return subjects.BucketSubject(subjects.DefaultBucket, must[string](t)(id.Key()))
	}
	const named = "not repaired yet: vision/development/" // "new" is missing, "other" never was; whichever was found first
	w.maps(fmt.Sprintf("%q: %q", subject(app), subject(other)))
	w.create(w.app("new"))
	r.notReady(named)
	eventually(t, "it is repaired in vain", func() error {
		if r.logs.FilterMessage("restored a bucket entry").Len() < 2 {
			return errNotYet
		}
		return nil
	})
	r.notReady(named)

	w.maps("")
	eventually(t, "it is ready", func() error {
		if entries := w.entries(); entries[app] == nil || entries[other] != nil {
			return errNotYet
		}
		return r.bridge.Ready()
	})
	w.findsNothing(cfg, 0)
}
