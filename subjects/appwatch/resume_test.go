package appwatch_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// Where retention took what a position needs, there is a snapshot again, with the differences
// marked, and with the apps that are gone.
func TestResumeBehindRetention(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/same", subjects.Created, "ACTIVE")
	w.event("shop/production/changed", subjects.Created, "PENDING")
	w.event("shop/production/gone", subjects.Created, "ACTIVE")
	r := watch(t, w.js, appwatch.Options{From: appwatch.Position{StreamID: streamID, Sequence: 0}})
	items := r.expect("event shop/production/same created 1", "event shop/production/changed created 2", "event shop/production/gone created 3", "mark 3")
	r.stop()
	from := items[2].Position
	w.event("shop/production/changed", subjects.Updated, "ACTIVE")
	w.event("shop/production/gone", subjects.Deleted, "")
	w.event("shop/production/new", subjects.Created, "PENDING")
	w.purge(w.stream, jetstream.WithPurgeSequence(6))

	r = watch(t, w.js, appwatch.Options{From: from})
	items = r.expect(
		"restart: "+appwatch.ErrRemoved.Error()+" 4-5",
		"state shop/production/same created 1",
		"state shop/production/changed updated 4 changed",
		"state shop/production/gone deleted 5 changed",
		"state shop/production/new created 6 changed",
		"mark 6")
	if !errors.Is(items[0].Reason, appwatch.ErrRemoved) || items[3].Exists() {
		t.Errorf("got %v, %v", items[0].Reason, items[3].Exists())
	}
	if app, err := items[3].State(); app != nil || err != nil {
		t.Errorf("a marker has the state %v, %v", app, err)
	}
	w.event("shop/production/new", subjects.Updated, "ACTIVE")
	r.expect("event shop/production/new updated 7")

	audit := watch(t, w.js, appwatch.Options{From: from, NoSnapshot: true})
	audit.expect("loss: "+appwatch.ErrRemoved.Error()+" 4-5", "event shop/production/new created 6", "event shop/production/new updated 7", "mark 7")
}

// A reader that is live gets a Loss when events are removed before it reads them, then a Restart
// with what they were about.
func TestRemovedBeforeRead(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	w.event("shop/production/b", subjects.Created, "ACTIVE")
	for range 200 {
		w.event("shop/production/a", subjects.Updated, "ACTIVE")
	}
	w.event("shop/production/b", subjects.Updated, "FAILED") // 203
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	stream, err := w.js.Stream(t.Context(), w.stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), 203); err != nil {
		t.Fatal(err)
	}
	r := watch(t, w.js, appwatch.Options{From: appwatch.Position{Sequence: 200}})
	r.expect("event shop/production/a updated 201", "event shop/production/a updated 202",
		"loss: "+appwatch.ErrRemoved.Error()+" 203-203", "event shop/production/a updated 204", "mark 204",
		"restart: "+appwatch.ErrRemoved.Error()+" 203-203",
		"state shop/production/b updated 203 changed", "state shop/production/a updated 204", "mark 204")
	w.event("shop/production/b", subjects.Updated, "ACTIVE")
	r.expect("event shop/production/b updated 205")
}

// Since begins at a time, NoSnapshot alone with the next event.
func TestStartsWithoutSnapshot(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	oldest := watch(t, w.js, appwatch.Options{Since: time.Unix(1, 0)})
	oldest.expect("mark 0")
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	items := oldest.expect("event shop/production/a created 1")
	next := watch(t, w.js, appwatch.Options{NoSnapshot: true})
	next.expect("mark 1")
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	items = append(items, oldest.expect("event shop/production/a updated 2")...)
	next.expect("event shop/production/a updated 2")
	second := watch(t, w.js, appwatch.Options{Since: items[1].Stored(), NoSnapshot: true})
	second.expect("event shop/production/a updated 2", "mark 2")
	later := watch(t, w.js, appwatch.Options{Since: items[1].Stored().Add(time.Nanosecond)})
	later.expect("mark 2")
	w.event("shop/production/a", subjects.Deleted, "")
	for _, r := range []*reader{oldest, next, second, later} {
		r.expect("event shop/production/a deleted 3")
	}
}

// A reader since a time begins with the first event of its apps, although no notice is older than that
// time. nats-server would begin at the notice.
func TestSinceBeforeTheFirstNotice(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	items := watch(t, w.js, appwatch.Options{Since: time.Unix(1, 0)}).expect("event shop/production/a created 1")
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	w.event("bank/production/b", subjects.Created, "ACTIVE")
	w.purge(w.stream, jetstream.WithPurgeSubject(subjects.DefaultPrefix+".events.bank.>"))
	w.notice(3, 3)
	w.event("shop/production/a", subjects.Updated, "STOPPED")
	r := watch(t, w.js, appwatch.Options{Project: "shop", Since: items[0].Stored().Add(time.Nanosecond), NoSnapshot: true})
	r.expect("event shop/production/a updated 2", "loss: "+appwatch.ErrNotice.Error()+" 3-3", "event shop/production/a updated 5", "mark 5")
}

// A stream that was put back to an earlier state, without a notice, and filled again beyond the
// position has another event there.
func TestResumeRefilled(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	w.event("shop/production/a", subjects.Updated, "PENDING")
	r := watch(t, w.js, appwatch.Options{From: appwatch.Position{StreamID: streamID}})
	from := r.expect("event shop/production/a created 1", "event shop/production/a updated 2", "mark 2")[1].Position
	r.stop()
	r = watch(t, w.js, appwatch.Options{From: from})
	if got := r.expect("mark 2")[0].Position; got != from {
		t.Errorf("a reader with nothing to read is at %v, want %v", got, from)
	}
	r.stop()
	for _, name := range []string{w.stream, subjects.BucketStream(w.bucket)} {
		if err := w.js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	suite.Recreate(t, w.js, streamConfig())
	suite.Recreate(t, w.js, bucketConfig())
	clear(w.last)
	w.event("shop/production/a", subjects.Created, "FAILED")
	w.event("shop/production/a", subjects.Updated, "PENDING")
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	r = watch(t, w.js, appwatch.Options{From: from})
	r.expect("restart: "+appwatch.ErrRolledBack.Error(), "state shop/production/a updated 3 changed", "mark 3")
}

// Without a snapshot a Loss names the sequences that are used again, and what is left follows.
func TestRefilledWithoutSnapshot(t *testing.T) {
	t.Parallel()
	for _, live := range []bool{false, true} {
		s := newRestartable(t)
		w := newWriter(t, s.ClientURL())
		w.event("shop/production/a", subjects.Created, "ACTIVE")
		w.event("shop/production/a", subjects.Updated, "ACTIVE")
		saved := filepath.Join(t.TempDir(), "saved")
		s.restart(w, func() { copyStore(t, s.dir, saved) })
		nc, js := dial(t, s.ClientURL())
		opts := appwatch.Options{From: appwatch.Position{StreamID: streamID}, NoSnapshot: true}
		r := watch(t, js, opts)
		r.expect("event shop/production/a created 1", "event shop/production/a updated 2", "mark 2")
		w.event("shop/production/a", subjects.Updated, "FAILED")
		w.event("shop/production/a", subjects.Updated, "FAILED")
		opts.From = r.expect("event shop/production/a updated 3", "event shop/production/a updated 4")[1].Position
		if !live {
			r.stop()
			nc.Close()
		}
		s.restart(w, func() { copyStore(t, saved, s.dir) })
		w.last = map[subjects.AppID]uint64{id("shop/production/a"): 2}
		for range 3 {
			w.event("shop/production/a", subjects.Updated, "STOPPED")
		}
		if live { // the reader knows when the newest event was stored that it has read
			r.expect("loss: "+appwatch.ErrRolledBack.Error()+" 3-4", "event shop/production/a updated 3")
			continue
		}
		_, js = dial(t, s.ClientURL())
		items := watch(t, js, opts).expect("loss: "+appwatch.ErrRolledBack.Error()+" 1-4", "event shop/production/a created 1",
			"event shop/production/a updated 2", "event shop/production/a updated 3", "event shop/production/a updated 4")
		if at := items[0].Position; at != (appwatch.Position{StreamID: streamID}) {
			t.Errorf("got the position %v, want that before the oldest event", at)
		}
	}
}

// A resumed reader gets the Restart that an earlier one was owed, and why.
func TestResumeOwed(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	for mark, reason := range map[string]error{"!": appwatch.ErrNotice, "?": appwatch.ErrBucket} {
		from, err := appwatch.ParsePosition(streamID + "/1" + mark)
		if err != nil || !from.Owed || from.String() != streamID+"/1"+mark {
			t.Fatalf("got %v, %v", from, err)
		}
		watch(t, w.js, appwatch.Options{From: from}).expect("mark 1", "restart: "+reason.Error(), "state shop/production/a created 1", "mark 1")
	}
}

// A project is quiet, and retention has taken its events. Its first snapshot is exact, since the
// bucket is not behind.
func TestQuietProjectBehindRetention(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	w.event("bank/production/a", subjects.Created, "ACTIVE")
	w.event("bank/production/a", subjects.Updated, "ACTIVE")
	w.purge(w.stream, jetstream.WithPurgeSequence(3))
	items := watch(t, w.js, appwatch.Options{Project: "shop"}).expect("state shop/production/a created 1", "mark 2")
	if items[1].Position.Owed {
		t.Errorf("got the position %v, and nothing is owed", items[1].Position)
	}
}

// A Restart that is owed comes while events arrive without a pause.
func TestOwedUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	w.publish(&nats.Msg{Subject: w.names.Lost()})
	r := watch(t, w.js, appwatch.Options{})
	r.expect("state shop/production/a created 1", "mark 1")
	w.notice(2, 2)
	restarted := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.ContainsFunc(r.items, func(it appwatch.Item) bool { return it.Type == appwatch.Restart })
	}
	for end := time.Now().Add(patience / 3); !restarted(); {
		if time.Now().After(end) {
			t.Fatal("there was no restart")
		}
		w.event("shop/production/a", subjects.Updated, "ACTIVE")
	}
}
