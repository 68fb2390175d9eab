package e2e_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// stream is one of the world's streams.
func (w *world) stream(name string) jetstream.Stream {
	w.t.Helper()
	return must[jetstream.Stream](w.t)(w.js.Stream(w.t.Context(), name))
}

// A stream purged under a running bridge, as a whole and of one app: no event
// for it, and the apps go on behind what they had published.
func TestStreamPurged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	tap := w.tapStream()
	one, two, three := w.create(w.app("one")), w.create(w.app("two")), w.create(w.app("three"))
	want := []string{"created one", "created two", "created three"}
	w.converged(tap.waitFor(want...))

	must[any](t)(nil, w.stream(cfg.Stream).Purge(t.Context()))
	must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
	must[any](t)(nil, w.Client.Delete(t.Context(), two))
	w.create(w.app("four"))
	want = append(want, "updated one", "deleted two", "created four")
	w.converged(tap.waitFor(want...))

	must[any](t)(nil, w.stream(cfg.Stream).Purge(t.Context(), jetstream.WithPurgeSubject("flyte.apps.events.vision.development.one.*")))
	must[any](t)(nil, w.stream(cfg.Stream).Purge(t.Context(), jetstream.WithPurgeSubject("flyte.apps.events.vision.development.two.*")))
	must[*servingv1.Service](t)(w.Progressing(t.Context(), three))
	must[*servingv1.Service](t)(w.Failed(t.Context(), one, "Broken", "it is"))
	w.create(w.app("two"))
	want = append(want, "updated three", "updated one", "created two")
	events := tap.waitFor(want...)
	w.converged(events)
	w.checkHeaders(events)
	allSynthesized(t, events, false)
	for i, e := range events {
		if e.sequence != uint64(i+1) {
			t.Errorf("event %d is at sequence %d", i+1, e.sequence)
		}
	}
	r.waitReady()
	if got := r.metric("appbridge_resyncs_total"); got != 1 {
		t.Errorf("%v resyncs for purged events, want none beside the start", got)
	}
}

// A stream that an operator deletes, and one that is deleted and made again by
// hand, empty: that one is not the history which the bucket reflects. The
// bridge says so, publishes nothing, and goes on once the bucket is gone.
func TestStreamMadeByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	one := w.create(w.app("one"))
	w.create(w.app("two"))
	w.converged(w.waitFor(0, "created one", "created two"))

	made := w.stream(cfg.Stream).CachedInfo().Config
	must[any](t)(nil, w.js.DeleteStream(t.Context(), cfg.Stream))
	made.FirstSeq = 0
	made.Metadata = nil
	must[jetstream.Stream](t)(w.js.CreateStream(t.Context(), made))
	must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
	r.notReady(`bucket "flyte-apps"`, "reflects sequence 2", "ends at 0", "do not belong together", "nats kv del flyte-apps")
	w.create(w.app("three"))
	bucket := w.stream(subjects.BucketStream(cfg.Bucket)).CachedInfo().State
	w.create(w.app("four"))
	compared := r.metric("appbridge_resyncs_total")
	eventually(t, "it looks again, twice", func() error {
		if now := r.metric("appbridge_resyncs_total"); now < compared+2 {
			return fmt.Errorf("%v times", now-compared)
		}
		return nil
	})
	r.notReady("nats kv del flyte-apps")
	if now := w.stream(subjects.BucketStream(cfg.Bucket)).CachedInfo().State; now.LastSeq != bucket.LastSeq || now.Msgs != bucket.Msgs {
		t.Errorf("the bucket was written: %+v", now)
	}
	if n := w.lastSequence(); n != 0 {
		t.Fatalf("it published to a stream that does not belong to its bucket: %v", w.events(0))
	}

	must[any](t)(nil, w.js.DeleteKeyValue(t.Context(), cfg.Bucket))
	r.waitReady()
	events := w.waitFor(0, "created one", "created two", "created three", "created four")
	w.checkHeaders(events)
	for _, e := range events {
		// The others changed while the bridge looked on.
		if got := e.header(subjects.HeaderSynthesized) != ""; e.id.Name == "two" && !got {
			t.Error("what was told anew to another stream is not marked as synthesized")
		}
	}
	w.converged(events)
}

// A stream deleted under a bridge comes back behind where it was, and what
// changed meanwhile is in it, once. It begins behind every position that an event may have had: those
// sent while it was deleted, unless the bridge learned of the deletion first.
func TestStreamDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	one, two := w.create(w.app("one")), w.create(w.app("two"))
	w.create(w.app("quiet"))
	w.converged(w.waitFor(0, "created one", "created two", "created quiet"))
	before := w.events(0)

	must[any](t)(nil, w.js.DeleteStream(t.Context(), cfg.Stream))
	must[*servingv1.Service](t)(w.Progressing(t.Context(), one))
	must[any](t)(nil, w.Client.Delete(t.Context(), two))
	w.create(w.app("three"))
	eventually(t, "the stream is there again", func() error {
		_, err := w.js.Stream(t.Context(), cfg.Stream)
		return err
	})
	after := w.waitFor(3, "updated one", "deleted two", "created three")
	all := slices.Concat(before, after)
	w.checkHeaders(all)
	w.converged(all)
	if state := w.stream(cfg.Stream).CachedInfo().State; state.FirstSeq < 4 || state.FirstSeq > 7 || state.Msgs != 3 {
		t.Errorf("the stream has %d events from %d on, want 3 from 4, 5, 6 or 7 on", state.Msgs, state.FirstSeq)
	}
	r.waitReady()
}

// Whatever is taken out of the bucket under a running bridge is back within
// seconds, without an event, a change or a restart.
func TestBucketRepaired(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(*world){
		"purged": func(w *world) {
			must[any](w.t)(nil, w.stream(subjects.BucketStream(subjects.DefaultBucket)).Purge(w.t.Context()))
		},
		"two keys purged": func(w *world) {
			for _, key := range []string{"vision.development.one", "vision.development.three"} {
				subject := subjects.BucketSubject(subjects.DefaultBucket, key)
				must[any](w.t)(nil, w.stream(subjects.BucketStream(subjects.DefaultBucket)).Purge(w.t.Context(), jetstream.WithPurgeSubject(subject)))
			}
		},
		"the newest purged": func(w *world) {
			subject := subjects.BucketSubject(subjects.DefaultBucket, "vision.development.three")
			must[any](w.t)(nil, w.stream(subjects.BucketStream(subjects.DefaultBucket)).Purge(w.t.Context(), jetstream.WithPurgeSubject(subject)))
		},
		"deleted by a key-value client": func(w *world) {
			kv := must[jetstream.KeyValue](w.t)(w.js.KeyValue(w.t.Context(), subjects.DefaultBucket))
			must[any](w.t)(nil, kv.Delete(w.t.Context(), "vision.development.one"))
			must[any](w.t)(nil, kv.Purge(w.t.Context(), "vision.development.two"))
		},
		"overwritten by a key-value client": func(w *world) {
			kv := must[jetstream.KeyValue](w.t)(w.js.KeyValue(w.t.Context(), subjects.DefaultBucket))
			must[uint64](w.t)(kv.Put(w.t.Context(), "vision.development.one", []byte(`{"garbage`)))
		},
		"the bucket deleted": func(w *world) {
			must[any](w.t)(nil, w.js.DeleteKeyValue(w.t.Context(), subjects.DefaultBucket))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.start(w.config())
			one, two := w.create(w.app("one")), w.create(w.app("two"))
			gone := w.create(w.app("gone"))
			must[any](t)(nil, w.Client.Delete(t.Context(), gone))
			must[*servingv1.Service](t)(w.Progressing(t.Context(), two))
			w.create(w.app("three"))
			events := w.waitFor(0, "created one", "created two", "created gone", "deleted gone", "updated two", "created three")
			w.converged(events)
			damage(w)
			eventually(t, "the bucket is repaired", func() error {
				if _, err := w.js.KeyValue(t.Context(), subjects.DefaultBucket); err != nil {
					return err
				}
				return w.bucketDrift(w.config().App, events)
			})
			if n := w.lastSequence(); n != 6 {
				t.Errorf("it published %v", w.events(6))
			}
			r.waitReady()
			must[*servingv1.Service](t)(w.Failed(t.Context(), one, "Broken", "it is"))
			must[*servingv1.Service](t)(w.Failed(t.Context(), two, "Broken", "it is"))
			w.create(w.app("gone"))
			events = w.waitFor(0, "created one", "created two", "created gone", "deleted gone", "updated two", "created three",
				"updated one", "updated two", "created gone")
			w.checkHeaders(events)
			allSynthesized(t, events, false)
			w.converged(events)
		})
	}
}

// Storage that is deleted while apps change fast costs the session, never a
// state: each that the API server showed is in the stream, in order, once.
func TestBucketDeletedUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.config()
	r := w.start(cfg)
	recorder := must[*testenv.Recorder](t)(w.Record(t.Context(), w.namespace))
	load := w.begin(40, 4, 12, recreateEvery(4))
	for _, at := range []uint64{60, 200} {
		eventually(t, fmt.Sprintf("%d events are there", at), func() error {
			if n := w.lastSequence(); n < at {
				return fmt.Errorf("%d are", n)
			}
			return nil
		})
		created := w.stream(subjects.BucketStream(cfg.Bucket)).CachedInfo().Created
		must[any](t)(nil, w.js.DeleteKeyValue(t.Context(), cfg.Bucket))
		eventually(t, "the bucket is made anew", func() error {
			bucket, err := w.js.Stream(t.Context(), subjects.BucketStream(cfg.Bucket))
			if err == nil && bucket.CachedInfo().Created.Equal(created) {
				err = errors.New("it is the old one")
			}
			return err
		})
	}
	must[any](t)(nil, load.Wait())
	observations := w.finish(recorder)
	w.holdsAll(observations)
	r.waitReady()
	events := w.events(0)
	w.checkOrder(w.truth(observations), events)
	w.checkHeaders(events)
	w.converged(events)
	if got := r.metric("appbridge_resyncs_total"); got < 3 {
		t.Errorf("%v resyncs: this test tests nothing", got)
	}
	for _, e := range events {
		if e.header(subjects.HeaderMergedUpdates) != "" {
			t.Errorf("sequence %d has merged updates", e.sequence)
		}
	}
}
