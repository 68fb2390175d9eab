package appwatch_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const noticed = "the stream lost acknowledged events"

// A reader reports a notice of loss and goes on. It reads the bucket again until no entry is in the
// lost range, and yields what differs.
func TestNotice(t *testing.T) {
	t.Parallel()
	for _, project := range []string{"", "shop"} {
		t.Run("project "+project, func(t *testing.T) {
			t.Parallel()
			w := newWriter(t, jetStream(t).ClientURL())
			w.event("shop/production/a", subjects.Created, "ACTIVE") // 1
			r := watch(t, w.js, appwatch.Options{Project: project})
			r.expect("state shop/production/a created 1", "mark 1")
			w.event("shop/production/a", subjects.Updated, "FAILED")   // 2, lost
			w.event("shop/production/ghost", subjects.Created, "NONE") // 3, lost
			r.expect("event shop/production/a updated 2", "event shop/production/ghost created 3")
			for _, sequence := range []uint64{2, 3} {
				deleteMessage(t, w, sequence)
			}
			w.notice(2, 3) // 4
			item := r.expect("loss: " + noticed + " 2-3")[0]
			if !item.Position.Owed || item.Position.Sequence != 4 {
				t.Errorf("got the position %v", item.Position)
			}
			// The entries of the range are still there: no restart before they are replaced.
			w.last[id("shop/production/a")] = 1
			w.event("shop/production/a", subjects.Updated, "STOPPED", func(h nats.Header, _ *appv1.App) { h.Set(subjects.HeaderSynthesized, "true") })
			if it := r.expect("event shop/production/a updated 5")[0]; !it.Synthesized() || !it.Position.Owed {
				t.Errorf("got synthesized %v, position %v", it.Synthesized(), it.Position)
			}
			// Before the other reader begins: that does not read the notice, so it reads the bucket soon.
			w.purge(subjects.BucketStream(w.bucket), jetstream.WithPurgeSubject(subjects.BucketSubject(w.bucket, "shop.production.ghost")))
			resumed := watch(t, w.js, appwatch.Options{Project: project, From: item.Position})
			resumed.expect("event shop/production/a updated 5", "mark 5")
			r.expect("restart: "+noticed+" 2-3", "state shop/production/a updated 5", "state shop/production/ghost deleted 0 changed", "mark 5")
			// Who resumes does not know what was yielded before: a copy is complete at the mark.
			resumed.expect("restart: "+noticed, "state shop/production/a updated 5", "mark 5")
			w.event("shop/production/a", subjects.Deleted, "")
			if it := r.expect("event shop/production/a deleted 6")[0]; it.Position.Owed {
				t.Errorf("got the position %v", it.Position)
			}
		})
	}
}

func deleteMessage(t *testing.T, w *writer, sequence uint64) {
	t.Helper()
	s, err := w.js.Stream(t.Context(), w.stream)
	if err == nil {
		err = s.DeleteMsg(t.Context(), sequence)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A reader of some apps notices a loss also without a notice: an event names a predecessor that is
// older than the one it has read.
func TestRewrittenHistory(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	r := watch(t, w.js, appwatch.Options{Project: "shop"})
	r.expect("state shop/production/a created 1", "mark 1")
	w.event("shop/production/a", subjects.Updated, "FAILED")
	w.last[id("shop/production/a")] = 1
	w.event("shop/production/a", subjects.Updated, "STOPPED")
	r.expect("event shop/production/a updated 2", "loss: "+noticed+" 2-2", "event shop/production/a updated 3",
		"restart: "+noticed+" 2-2", "state shop/production/a updated 3", "mark 3")
}

// An event of an app that the snapshot should have, and does not, has the bucket read again.
func TestIncompleteBucket(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/b", subjects.Created, "ACTIVE")
	w.held = true
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	w.held = false
	w.event("shop/production/b", subjects.Updated, "ACTIVE")
	r := watch(t, w.js, appwatch.Options{})
	r.expect("state shop/production/b updated 3", "mark 3")
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	r.expect("event shop/production/a updated 4", "restart: the bucket did not have every app",
		"state shop/production/b updated 3", "state shop/production/a updated 4", "mark 4")
}

// Another stream in the place of the one that was read is another history.
func TestStreamReplaced(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	w.event("shop/production/b", subjects.Created, "ACTIVE")
	live := watch(t, w.js, appwatch.Options{})
	first := live.expect("state shop/production/a created 1", "state shop/production/b created 2", "mark 2")
	for _, name := range []string{w.stream, subjects.BucketStream(w.bucket)} {
		if err := w.js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	stream, bucket := streamConfig(), bucketConfig()
	stream.Metadata[subjects.MetadataStreamID], bucket.Metadata[subjects.MetadataStreamID] = "another", "another"
	suite.Recreate(t, w.js, bucket)
	suite.Recreate(t, w.js, stream)
	clear(w.last)
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	items := live.next(3)
	if got := line(items[0]); !strings.HasPrefix(got, "restart: ") {
		t.Errorf("got %q, want a restart", got)
	}
	other := watch(t, w.js, appwatch.Options{From: first[2].Position})
	got := other.expect("restart: "+appwatch.ErrOtherStream.Error(), "state shop/production/a created 1 changed", "mark 1")
	if got[2].Position.StreamID != "another" {
		t.Errorf("got the position %v", got[2].Position)
	}
}

// A stream that comes back at the sequences behind those that were given, as a bridge makes it, is
// read on.
func TestStreamReplacedByBridge(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	live := watch(t, w.js, appwatch.Options{})
	live.expect("state shop/production/a created 1", "mark 1")
	if err := w.js.DeleteStream(t.Context(), w.stream); err != nil {
		t.Fatal(err)
	}
	cfg := streamConfig()
	cfg.FirstSeq = 2
	suite.Recreate(t, w.js, cfg)
	for i := range 5 {
		w.event("shop/production/a", subjects.Updated, "ACTIVE")
		live.expect(fmt.Sprintf("event shop/production/a updated %d", i+2))
	}
}
