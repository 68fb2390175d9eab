package e2e_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// blockable is a world whose clients may be forbidden to write entries.
func blockable(t *testing.T) (w *world, block func(bool)) {
	t.Helper()
	var denied atomic.Bool
	w = newWorldWith(t, func(o *server.Options) {
		user := &server.User{Username: "anybody"}
		if denied.Load() {
			user.Permissions = &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{subjects.BucketFilter(subjects.DefaultBucket)}}}
		}
		o.Users, o.NoAuthUser = []*server.User{user}, user.Username
	})
	return w, func(deny bool) {
		t.Helper()
		denied.Store(deny)
		// As in suite.ReloadableNATS: no earlier read of the options by a direct get races with the reload.
		must[*server.Connz](t)(w.server.Connz(&server.ConnzOptions{}))
		must[any](t)(nil, w.server.ReloadOptions(w.serverOptions(w.port())))
	}
}

// removed is the log message of events that were removed before they were projected.
const removed = "events were removed from the stream before they were projected"

// removedFrom waits until the bridge has named everything that was removed before it was projected, in
// one part or in several.
func (r *running) removedFrom(from, to uint64) {
	r.t.Helper()
	eventually(r.t, "the bridge names what was removed", func() error {
		if named := r.namedRemoved(); len(named) != int(to-from+1) || slices.Min(named) != from || slices.Max(named) != to {
			return fmt.Errorf("it named %v, want %d to %d", named, from, to)
		}
		return nil
	})
}

// namedRemoved are the sequences of the stream that the bridge named as removed.
func (r *running) namedRemoved() (named []uint64) {
	for _, entry := range r.logs.FilterMessage(removed).FilterField(zap.String("stream", subjects.DefaultStream)).All() {
		fields := entry.ContextMap()
		for sequence := fields["from"].(uint64); sequence <= fields["to"].(uint64); sequence++ {
			named = append(named, sequence)
		}
	}
	return named
}

// removedOnce fails if the bridge did not name and count n removed events, each once.
func (r *running) removedOnce(n int) {
	r.t.Helper()
	if got := r.metric("appbridge_removed_sequences_total"); got != float64(n) {
		r.t.Errorf("the metric counts %v removed sequences, want %d", got, n)
	}
	named := r.namedRemoved()
	slices.Sort(named)
	if once := slices.Compact(slices.Clone(named)); len(named) != n || len(once) != n {
		r.t.Errorf("it named %v, want %d sequences, each once", named, n)
	}
}

// The stream's retention takes events while the bucket cannot be written: the bridge names them,
// and publishes what is owed once the bucket can be written again, without another app's event.
func TestRetentionOvertakesBucket(t *testing.T) {
	t.Parallel()
	w, block := blockable(t)
	apps := w.manyApps(20)
	cfg := w.config()
	r := w.start(cfg)
	readers := w.readers()
	w.caughtUp(20, readers[0])
	block(true)
	must[*servingv1.Service](t)(w.Failed(t.Context(), apps[1], "Broken", "first"))
	w.atEnd(21)
	must[any](t)(nil, w.changeAll(apps, "two", func(i int) bool { return i%5 == 0 }))
	w.atEnd(41)
	// Ten events survive, so that the hole has an end. The limit goes at once: with it, what the bridge
	// then publishes would remove more events before the bucket takes them.
	w.changeStream(cfg.Stream, func(c *jetstream.StreamConfig) { c.MaxMsgs = 10 })
	w.changeStream(cfg.Stream, func(c *jetstream.StreamConfig) { c.MaxMsgs = -1 })
	r.removedFrom(21, 31)
	block(false)
	w.bucketIsCluster(readers[0])
	r.waitReady()
	w.create(w.app("new"))
	w.bucketIsCluster(readers[0])
	for _, reader := range readers {
		reader.reaches()
	}
	r.removedOnce(11)
	w.startsAgain(r, cfg)
}

// Everything is removed from the stream, what was not projected too.
func TestHoleAfterPurgeOfEverything(t *testing.T) {
	t.Parallel()
	w, block := blockable(t)
	apps := w.manyApps(10)
	r := w.start(w.config())
	readers := w.readers()
	w.caughtUp(10, readers[0])
	block(true)
	must[*servingv1.Service](t)(w.Failed(t.Context(), apps[1], "Broken", "first"))
	w.atEnd(11)
	must[any](t)(nil, w.changeAll(apps, "two", func(i int) bool { return i%5 == 0 }))
	w.atEnd(21)
	must[any](t)(nil, must[jetstream.Stream](t)(w.js.Stream(t.Context(), subjects.DefaultStream)).Purge(t.Context()))
	r.removedFrom(11, 21)
	block(false)
	w.bucketIsCluster(readers[0])
	r.waitReady()
	for _, reader := range readers {
		reader.reaches()
	}
	r.removedOnce(11)
	w.startsAgain(r, w.config())
}

// atEnd waits until the stream ends at a sequence.
func (w *world) atEnd(last uint64) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("the stream ends at %d", last), func() error {
		if now := w.lastSequence(); now != last {
			return fmt.Errorf("it ends at %d", now)
		}
		return nil
	})
}
