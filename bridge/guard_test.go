package bridge

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/bridge/store"
)

// The guard notices keys that somebody took, and none that the projector removed itself.
func TestGuardNoticesKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	core, logs := observer.New(zap.DebugLevel)
	s := r.session(store.Checkpoint{}, zap.New(core))
	r.append(r.event())
	gone := otherApp("gone")
	r.append(r.removalOn(gone, r.append(r.eventOn(gone, "2", nil))))
	last := r.append(r.eventOn(otherApp("b"), "3", nil))
	r.bucket.MarkerMaxAge = 2 * time.Second
	p, snap := r.newProjector(zap.NewNop())
	r.run(p, snap)
	r.reflects(p, last.Sequence)
	if _, err := s.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.projector = p
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	known := *s.storage
	go func() { done <- s.guard(ctx, known) }()
	r.poll("the marker is not removed", func() bool { return r.bucketKeys() == 2 })
	looked := func() int { return logs.FilterMessage("an audit of stream and bucket is requested").Len() }
	before := s.nc.Stats().Reconnects
	r.poll("it does not look", func() bool { return s.memory.checked.Load() == before })
	if err := r.bucket.PurgeApp(t.Context(), testID, r.bucketEnd()); err != nil {
		t.Fatal(err)
	}
	r.poll("it does not notice", func() bool { return looked() > 0 })
	r.poll("the key is not written again", func() bool { return r.held(testID).Sequence() == 1 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
