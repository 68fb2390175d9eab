package appwatch_test

import (
	"testing"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// The snapshot, the mark, then each event, in order.
func TestSnapshotThenEvents(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "PENDING")
	w.event("shop/production/b", subjects.Created, "PENDING")
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	w.event("shop/production/b", subjects.Deleted, "")
	r := watch(t, w.js, appwatch.Options{})
	r.expect("state shop/production/a updated 3", "mark 4")
	w.event("shop/production/b", subjects.Created, "PENDING")
	w.event("shop/production/b", subjects.Updated, "ACTIVE")
	items := r.expect("event shop/production/b created 5", "event shop/production/b updated 6")
	if it := items[1]; it.Status() != "ACTIVE" || it.PreviousStatus() != "PENDING" || !it.Became("ACTIVE") || it.PreviousSequence() != 5 {
		t.Errorf("got %q, before %q at %d", it.Status(), it.PreviousStatus(), it.PreviousSequence())
	}
	if app, err := items[1].State(); err != nil || app.GetMetadata().GetRevision() != 6 {
		t.Errorf("got %v, %v", app, err)
	}
	r.stop()

	resumed := watch(t, w.js, appwatch.Options{From: items[0].Position})
	resumed.expect("event shop/production/b updated 6", "mark 6")
}
