package e2e_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const acknowledgedAnnotation = "appbridge.flyte.org/acknowledged"

// annotation is what the Lease says was acknowledged.
func (w *world) annotation() string {
	w.t.Helper()
	lease := &coordinationv1.Lease{}
	must[any](w.t)(nil, w.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "appbridge"}, lease))
	return lease.Annotations[acknowledgedAnnotation]
}

// annotate replaces the annotation, "" removes it.
func (w *world) annotate(change func(was string) string) {
	w.t.Helper()
	must[any](w.t)(nil, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		lease := &coordinationv1.Lease{}
		if err := w.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "appbridge"}, lease); err != nil {
			return err
		}
		if value := change(lease.Annotations[acknowledgedAnnotation]); value != "" {
			lease.Annotations[acknowledgedAnnotation] = value
		} else {
			delete(lease.Annotations, acknowledgedAnnotation)
		}
		return w.Client.Update(w.t.Context(), lease)
	}))
}

// editLease changes fields of the annotation.
func (w *world) editLease(change func(m map[string]any)) {
	w.t.Helper()
	w.annotate(func(was string) string { return edited(w.t, was, change) })
}

func edited(t *testing.T, was string, change func(m map[string]any)) string {
	t.Helper()
	m := map[string]any{}
	must[any](t)(nil, json.Unmarshal([]byte(was), &m))
	change(m)
	return string(must[[]byte](t)(json.Marshal(m)))
}

func set(key string, value any) func(string, *testing.T) string {
	return func(was string, t *testing.T) string {
		return edited(t, was, func(m map[string]any) { m[key] = value })
	}
}

// The Lease's annotation names sequences that cannot be: a digit too many, say. The bridge is not
// ready, names the annotation and the way out, and changes nothing, also not the annotation. It goes on
// by itself when the annotation is corrected or deleted.
func TestLeaseEdited(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		edit    func(string, *testing.T) string
		missing bool // stream and bucket
		removed bool // the annotation is removed in place of being corrected
	}{
		{name: "a digit too many", edit: set("stream", uint64(1_000_000_000_000))},
		{name: "just too high", edit: set("stream", 1_000_003), removed: true},
		{name: "the highest number", edit: set("stream", uint64(math.MaxUint64))},
		{name: "the highest number, of the bucket", edit: set("bucket", uint64(math.MaxUint64)), removed: true},
		{name: "a bucket's digit too many", edit: set("bucket", uint64(1_000_000_000_000))},
		{name: "a negative number", edit: set("stream", -5)},
		{name: "a number that is too large", edit: set("stream", json.Number("18446744073709551616"))},
		{name: "no JSON", edit: func(string, *testing.T) string { return "{" }, removed: true},
		{name: "the highest number, where there is no stream", edit: set("stream", uint64(math.MaxUint64)), missing: true},
		{name: "the highest number, where there is no bucket", edit: set("bucket", uint64(math.MaxUint64)), missing: true, removed: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			svc := w.create(w.app("one"))
			r := w.start(w.elected("first"))
			w.failsAgain(svc, 1)
			must[any](t)(nil, r.stop())
			was := w.annotation()
			edited := tc.edit(was, t)
			w.annotate(func(string) string { return edited })
			if tc.missing {
				must[any](t)(nil, w.js.DeleteStream(t.Context(), subjects.DefaultStream))
				must[any](t)(nil, w.js.DeleteStream(t.Context(), subjects.BucketStream(subjects.DefaultBucket)))
			}
			r = w.launch(w.elected("second"), nil)
			value := fmt.Sprintf("%q", edited)
			r.waitsFor("annotation "+acknowledgedAnnotation, "Lease "+w.namespace+"/appbridge", value, "delete the annotation")
			// It holds the Lease, renews it, and leaves the annotation.
			w.renewed(2)
			if got := w.annotation(); got != edited {
				t.Errorf("the annotation was %s, and is %s", edited, got)
			}
			if tc.missing {
				if _, err := w.js.Stream(t.Context(), subjects.DefaultStream); err == nil {
					t.Error("the stream was made")
				}
			} else if now := w.lastSequence(); now != 2 {
				t.Errorf("the stream ends at %d, want 2", now)
			}
			r.waitsFor(value)
			if tc.removed {
				was = ""
			}
			w.annotate(func(string) string { return was })
			r.waitReady()
			w.failsAgain(svc, 1)
			if tc.missing {
				return
			}
			if now := w.lastSequence(); now != 3 || len(w.named()) > 0 {
				t.Errorf("the stream ends at %d and names the losses %v; want 3 and none", now, w.named())
			}
			w.findsNothing(w.config(), time.Second)
		})
	}
}

// renewed waits until the Lease was renewed some times.
func (w *world) renewed(times int) {
	w.t.Helper()
	last := ""
	eventually(w.t, "the Lease is renewed", func() error {
		lease := &coordinationv1.Lease{}
		if err := w.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "appbridge"}, lease); err != nil {
			return err
		}
		if lease.ResourceVersion != last {
			last = lease.ResourceVersion
			times--
		}
		if times >= 0 {
			return fmt.Errorf("%d times left", times+1)
		}
		return nil
	})
}

// Somebody edits the annotation under a bridge that publishes. It knows better, and writes it again.
func TestLeaseEditedLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	svc := w.create(w.app("one"))
	r := w.start(w.elected("me"))
	w.failsAgain(svc, 1)
	written := func(when string) {
		t.Helper()
		eventually(t, "the annotation is written "+when, func() error {
			if got := w.annotation(); !strings.Contains(got, `"stream":2,`) {
				return fmt.Errorf("it is %s", got)
			}
			return nil
		})
	}
	written("with a renewal")
	for _, value := range []any{uint64(1_000_000_000_000), 500, 0, -1, "x"} {
		w.editLease(func(m map[string]any) { m["stream"] = value })
		written(fmt.Sprint("again after ", value))
	}
	r.waitReady()
	w.failsAgain(svc, 1)
	if now := w.lastSequence(); now != 3 || r.metric(lostSequences) > 0 {
		t.Errorf("the stream ends at %d, %v sequences count as lost; want 3 and none", now, r.metric(lostSequences))
	}
	if r.logs.FilterMessage("another client changed the Lease's annotation; it is written again").Len() == 0 {
		t.Error("it does not log that the annotation was changed")
	}
}

// Metadata name sequences that cannot be.
func TestMetadataEdited(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		key, value, stream string
	}{
		{subjects.MetadataResetSequence, "18446744073709551615", subjects.DefaultStream},
		{subjects.MetadataResetSequence, "1000000000000", subjects.BucketStream(subjects.DefaultBucket)},
		{subjects.MetadataResetSequence, "-1", subjects.DefaultStream},
		{subjects.MetadataLostPending, "5-1000000000000", subjects.DefaultStream},
		{subjects.MetadataLostPending, "3-18446744073709551615", subjects.DefaultStream},
	} {
		t.Run(tc.stream+" "+tc.key+" "+tc.value, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			svc := w.create(w.app("one"))
			r := w.start(w.config())
			w.failsAgain(svc, 1)
			must[any](t)(nil, r.stop())
			edit := func(value string) {
				w.changeStream(tc.stream, func(c *jetstream.StreamConfig) {
					if c.Metadata[tc.key] = value; value == "" {
						delete(c.Metadata, tc.key)
					}
				})
			}
			edit(tc.value)
			r = w.launch(w.config(), nil)
			r.waitsFor(tc.key, fmt.Sprintf("%q", tc.value), "remove the key")
			if now := w.lastSequence(); now != 2 {
				t.Errorf("the stream ends at %d, want 2", now)
			}
			edit("")
			r.waitReady()
			w.failsAgain(svc, 1)
			if now := w.lastSequence(); now != 3 {
				t.Errorf("the stream ends at %d, want 3", now)
			}
		})
	}
}

// A notice and a filler name ranges that cannot be: the notice's does not end before it.
func TestNoticeEdited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	names := must[subjects.Subjects](t)(subjects.New(subjects.DefaultPrefix))
	svc := w.create(w.app("one"))
	r := w.start(w.config())
	w.failsAgain(svc, 1)
	must[any](t)(nil, r.stop())
	for _, subject := range []string{names.Lost(), names.Notice()} {
		header := nats.Header{subjects.HeaderLostFrom: {"1"}, subjects.HeaderLostTo: {"18446744073709551615"}}
		must[*jetstream.PubAck](t)(w.js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: header}))
	}
	r = w.start(w.config())
	w.failsAgain(svc, 1)
	if now := w.lastSequence(); now > 6 {
		t.Errorf("the stream ends at %d", now)
	}
	w.findsNothing(w.config(), time.Second)
	r.waitReady()
}

// A start that made the stream again, far behind its first sequence, was interrupted before it carried
// the stream there. The bucket, and the Lease, know of sequences that are far ahead of its end. They
// count, since the stream's metadata have the first sequence.
func TestMadeAgainFarAhead(t *testing.T) {
	t.Parallel()
	for _, elected := range []bool{false, true} {
		t.Run(fmt.Sprint("elected: ", elected), func(t *testing.T) {
			t.Parallel()
			const far = 5_000_000
			w := newWorld(t)
			cfg := w.config()
			if elected {
				cfg = w.elected("me")
			}
			w.create(w.app("one"))
			must[any](t)(nil, w.start(cfg).stop())
			must[any](t)(nil, w.stream(subjects.DefaultStream).Purge(t.Context(), jetstream.WithPurgeSequence(far)))
			svc := w.create(w.app("two"))
			must[any](t)(nil, w.start(cfg).stop())
			if now := w.lastSequence(); now != far {
				t.Fatalf("the stream ends at %d, want %d", now, far)
			}

			made := w.stream(subjects.DefaultStream).CachedInfo().Config
			made.Metadata[subjects.MetadataFirstSequence] = fmt.Sprint(far + 1)
			must[any](t)(nil, w.js.DeleteStream(t.Context(), made.Name))
			suite.Recreate(t, w.js, made)
			r := w.start(cfg)
			w.failsAgain(svc, 1)
			if now := w.lastSequence(); now != far+1 || len(w.named()) > 0 || r.metric(lostSequences) > 0 {
				t.Errorf("the stream ends at %d and names %v, want %d and no loss", now, w.named(), far+1)
			}
			w.findsNothing(w.config(), time.Second)
		})
	}
}

// Somebody plants a filler that names everything as lost. The stream has it, so nothing is lost.
func TestForgedFiller(t *testing.T) {
	t.Parallel()
	for _, live := range []bool{false, true} {
		t.Run(fmt.Sprint("while a bridge runs: ", live), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			names := must[subjects.Subjects](t)(subjects.New(subjects.DefaultPrefix))
			svc := w.create(w.app("one"))
			r := w.start(w.config())
			w.failsAgain(svc, 2)
			if !live {
				must[any](t)(nil, r.stop())
			}
			planted := w.plant(names.Lost(), nats.Header{subjects.HeaderLostFrom: {"1"}, subjects.HeaderLostTo: {"3"}}, "")
			if !live {
				r = w.start(w.config())
			}
			w.failsAgain(svc, 1)
			r.waitReady()
			if got := r.metric(lostSequences); got != 0 || r.logs.FilterMessage("the stream lost acknowledged events").Len() > 0 {
				t.Errorf("%v sequences count as lost, although the stream has them", got)
			}
			if msg, err := w.stream(subjects.DefaultStream).GetLastMsgForSubject(t.Context(), names.Notice()); err == nil {
				t.Errorf("a notice tells all readers that %s to %s are lost", msg.Header.Get(subjects.HeaderLostFrom), msg.Header.Get(subjects.HeaderLostTo))
			}
			if now := w.lastSequence(); now != planted+1 {
				t.Errorf("the stream ends at %d, want %d", now, planted+1)
			}
			if r.logs.FilterMessage("the range that is named as lost exists").FilterField(zap.Uint64("sequence", planted)).Len() == 0 {
				t.Error("the log does not name the filler")
			}
			w.findsNothing(w.config(), time.Second)
		})
	}
}

// An event names a version that no cluster has ever had. It does not end the bridge: what Kubernetes
// shows counts, and the log names the event. This is so with every later start.
func TestForgedVersion(t *testing.T) {
	t.Parallel()
	const huge = "9999999999999999999"
	const logged = "an event names a version that the cluster cannot have had; the app goes on with what Kubernetes shows"
	for _, tc := range []struct {
		name, app, kind, header string
		want                    []string // published behind it
	}{
		{"an app that runs", "one", "updated", subjects.HeaderResourceVersion, []string{"updated one"}},
		{"the deletion of an app that runs", "one", "deleted", subjects.HeaderDeletedResourceVersion, []string{"created one"}},
		{"an app that never was", "ghost", "created", subjects.HeaderResourceVersion, []string{"deleted ghost"}},
		{"the deletion of an app that never was", "ghost", "deleted", subjects.HeaderDeletedResourceVersion, nil},
	} {
		for _, live := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, while a bridge runs: %v", tc.name, live), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				cfg := w.config()
				r := w.start(cfg)
				svc := w.create(w.app("one"))
				gone := w.create(w.app("gone"))
				w.failsAgain(svc, 1)
				must[any](t)(nil, w.Client.Delete(t.Context(), gone))
				w.endsAt(4)
				var like stored
				for _, e := range w.events(0) {
					if string(e.kind) == tc.kind {
						like = e
					}
				}
				if !live {
					must[any](t)(nil, r.stop())
				}
				key := "vision.development." + tc.app
				planted := w.plant("flyte.apps.events."+key+"."+tc.kind, told(like.msg.Header, tc.header, huge, subjects.CESubject, key), string(like.msg.Data))
				if !live {
					r = w.start(cfg)
				}
				w.waitFor(planted, tc.want...)
				eventually(t, "the log names the event", func() error {
					if r.logs.FilterMessage(logged).FilterField(zap.Uint64("sequence", planted)).FilterField(zap.String("version", huge)).Len() == 0 {
						return errNotYet
					}
					return nil
				})
				r.waitReady()
				w.converged(w.events(0))
				w.findsNothing(cfg, time.Second)
				must[any](t)(nil, r.stop())

				r = w.start(cfg)
				if named := r.logs.FilterMessage(logged).Len() > 0; named != (tc.want == nil) {
					t.Errorf("the next start names the event: %t; it is the app's last one: %t", named, tc.want == nil)
				}
				must[any](t)(nil, r.stop())
				cfg.AcceptReset = true
				must[any](t)(nil, w.start(cfg).stop())
				cfg.AcceptReset = false
				r = w.start(cfg)
				if r.logs.FilterMessage(logged).Len() > 0 {
					t.Error("a start after --accept-reset names the event")
				}
				w.waitFor(planted, tc.want...)
			})
		}
	}
}
