package appwatch_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// entry is the bucket, its stream, and the entry of a key.
func (w *writer) entry(key string) (jetstream.KeyValue, jetstream.Stream, *jetstream.RawStreamMsg) {
	w.t.Helper()
	kv, err := w.js.KeyValue(w.t.Context(), w.bucket)
	if err != nil {
		w.t.Fatal(err)
	}
	stream, err := w.js.Stream(w.t.Context(), subjects.BucketStream(w.bucket))
	if err != nil {
		w.t.Fatal(err)
	}
	entry, err := stream.GetLastMsgForSubject(w.t.Context(), subjects.BucketSubject(w.bucket, key))
	if err != nil {
		w.t.Fatal(err)
	}
	return kv, stream, entry
}

// An entry that somebody else has written over, or deleted, hides an app that exists.
func TestSnapshotWithForeignEntry(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"put", "delete"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWriter(t, jetStream(t).ClientURL())
			w.event("shop/production/a", subjects.Created, "ACTIVE")
			w.event("shop/production/b", subjects.Created, "ACTIVE")
			kv, _, old := w.entry("shop.production.a")
			var err error
			if how == "put" {
				_, err = kv.PutString(t.Context(), "shop.production.a", "by hand")
			} else {
				err = kv.Delete(t.Context(), "shop.production.a")
			}
			if err != nil {
				t.Fatal(err)
			}
			r := watch(t, w.js, appwatch.Options{})
			r.expect("state shop/production/b created 2")
			mark := r.next(1)[0]
			// A bridge restores it.
			w.publish(&nats.Msg{Subject: old.Subject, Header: old.Header, Data: old.Data})
			if !mark.Position.Owed {
				t.Errorf("the position %s does not say that a snapshot is owed", mark.Position)
			}
			r.expect("restart: "+appwatch.ErrBucket.Error(), "state shop/production/a created 1 changed", "state shop/production/b created 2", "mark 2")
		})
	}
}

// A key that was taken from the bucket, or written over, is no app that is gone: the bridge restores it.
func TestRestartWithoutKey(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"purge", "put", "delete"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := jetStream(t)
			w, relay := newWriter(t, s.ClientURL()), newRelay(t, s.ClientURL())
			w.event("shop/production/a", subjects.Created, "ACTIVE")
			w.event("shop/production/b", subjects.Created, "ACTIVE")
			kv, stream, old := w.entry("shop.production.a")
			r := watch(t, relay.js, appwatch.Options{})
			r.expect("state shop/production/a created 1", "state shop/production/b created 2", "mark 2")
			var err error
			switch how {
			case "purge":
				err = stream.Purge(t.Context(), jetstream.WithPurgeSubject(old.Subject))
			case "put":
				_, err = kv.PutString(t.Context(), "shop.production.a", "by hand")
			case "delete":
				err = kv.Delete(t.Context(), "shop.production.a")
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				w.publish(&nats.Msg{Subject: w.names.Lost()})
			}
			w.purge(w.stream, jetstream.WithPurgeSubject(w.names.Lost()))
			w.notice(3, 4)
			r.expect("loss: " + noticed + " 3-4")
			relay.answered(t, "STREAM.INFO."+subjects.BucketStream(w.bucket), 3)
			w.publish(&nats.Msg{Subject: old.Subject, Header: old.Header, Data: old.Data})
			r.expect("restart: "+noticed+" 3-4", "state shop/production/a created 1", "state shop/production/b created 2", "mark 5")
		})
	}
}

// A bucket that is being written again has an app as of an earlier event than its position says. The
// events in between are in the stream: none was removed.
func TestRebuiltBucket(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	w.held = true
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	w.held = false
	w.event("shop/production/b", subjects.Created, "ACTIVE")
	r := watch(t, w.js, appwatch.Options{})
	r.expect("state shop/production/a created 1", "state shop/production/b created 3", "mark 3")
	w.event("shop/production/a", subjects.Updated, "FAILED")
	r.expect("event shop/production/a updated 4", "restart: "+appwatch.ErrBucket.Error(), "state shop/production/b created 3", "state shop/production/a updated 4", "mark 4")
}
