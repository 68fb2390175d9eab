package appwatch_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// noMessage is the answer of a leader that does not have a message, or not yet.
const noMessage = `{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","error":{"code":404,"err_code":10037,"description":"no message found"}}`

// consumer is the name of the only consumer of the event stream.
func (w *writer) consumer() (jetstream.Stream, string) {
	w.t.Helper()
	stream, err := w.js.Stream(w.t.Context(), w.stream)
	names := w.consumers()
	if err != nil || len(names) != 1 {
		w.t.Fatalf("got %v, %v", names, err)
	}
	return stream, names[0]
}

// A leader that was deposed and does not know it answers requests for single messages, while events
// have still to be delivered. They are, and none is lost.
func TestDeposedLeader(t *testing.T) {
	t.Parallel()
	for _, project := range []string{"", "shop"} {
		t.Run("project "+project, func(t *testing.T) {
			t.Parallel()
			s := jetStream(t)
			w, relay := newWriter(t, s.ClientURL()), newRelay(t, s.ClientURL())
			w.event("shop/production/a", subjects.Created, "ACTIVE")
			before, deposed := map[string][]byte{}, false
			relay.set(func(api string, request, reply []byte) []byte {
				if api != apiGet {
					return reply
				}
				if old, ok := before[string(request)]; ok && deposed {
					return old
				}
				before[string(request)] = reply
				return reply
			})
			r := watch(t, relay.js, appwatch.Options{Project: project})
			r.expect("state shop/production/a created 1", "mark 1")
			relay.answered(t, apiInfo, 2)
			stream, name := w.consumer()
			if _, err := stream.PauseConsumer(t.Context(), name, time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			relay.mu.Lock()
			deposed = true
			relay.mu.Unlock()
			w.event("shop/production/a", subjects.Updated, "FAILED")
			w.event("shop/production/a", subjects.Deleted, "")
			relay.answered(t, apiInfo, 3)
			if _, err := stream.ResumeConsumer(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			r.expect("event shop/production/a updated 2", "event shop/production/a deleted 3")
		})
	}
}

// A deposed leader of the bucket has no entry yet. A slow consumer delivers them.
func TestDeposedLeaderOfBucket(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	w, relay := newWriter(t, s.ClientURL()), newRelay(t, s.ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	w.event("shop/production/b", subjects.Created, "ACTIVE")
	get := "STREAM.MSG.GET." + subjects.BucketStream(w.bucket)
	relay.set(func(api string, _, reply []byte) []byte {
		if api == get {
			return []byte(noMessage)
		}
		return reply
	})
	relay.hold(true)
	r := watch(t, relay.js, appwatch.Options{})
	relay.answered(t, get, 1)
	relay.hold(false)
	r.expect("state shop/production/a created 1", "state shop/production/b created 2", "mark 2")
}

// The answer of a deposed leader is older than what was read, and its clock is ahead of that of the
// leader that stored it. The stream was not rolled back.
func TestDeposedLeaderClockAhead(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	w, relay := newWriter(t, s.ClientURL()), newRelay(t, s.ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	r := watch(t, relay.js, appwatch.Options{})
	r.expect("state shop/production/a created 1", "mark 1")
	w.event("shop/production/a", subjects.Updated, "FAILED")
	r.expect("event shop/production/a updated 2")
	ahead := clock(time.Hour, func(uint64) bool { return true })
	relay.set(func(api string, request, reply []byte) []byte {
		switch {
		case api == apiInfo:
			return edit(reply, func(answer map[string]any) { answer["state"].(map[string]any)["last_seq"] = 1 })
		case api == apiGet && bytes.Contains(request, []byte(`"last_by_subj"`)):
			m, err := w.nc.Request(subjects.JetStreamAPI("")+apiGet, []byte(`{"seq":1}`), patience)
			if err != nil {
				return reply
			}
			return ahead(api, request, m.Data)
		case api == apiGet:
			return []byte(noMessage)
		}
		return reply
	})
	relay.answered(t, apiInfo, 4)
	relay.set(nil)
	relay.answered(t, apiInfo, 2)
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	r.expect("event shop/production/a updated 3")
}

// The stream gets another subject, or a mirror has messages of one. Nothing was removed.
func TestSubjectAdded(t *testing.T) {
	t.Parallel()
	for _, mirror := range []bool{false, true} {
		t.Run(map[bool]string{false: "live", true: "mirror"}[mirror], func(t *testing.T) {
			t.Parallel()
			s := jetStream(t)
			w, relay := newWriter(t, s.ClientURL()), newRelay(t, s.ClientURL())
			w.event("shop/production/a", subjects.Created, "ACTIVE")
			opts, cfg := appwatch.Options{}, streamConfig()
			cfg.Subjects = append(cfg.Subjects, "other.>")
			if mirror {
				opts.Stream = "MIRROR"
				if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: opts.Stream, Mirror: &jetstream.StreamSource{Name: w.stream}}); err != nil {
					t.Fatal(err)
				}
			}
			r := watch(t, relay.js, opts)
			r.expect("state shop/production/a created 1", "mark 1")
			if _, err := w.js.UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			w.publish(&nats.Msg{Subject: "other.x"})
			w.event("shop/production/a", subjects.Updated, "FAILED")
			r.expect("event shop/production/a updated 3")
			w.publish(&nats.Msg{Subject: "other.x"})
			relay.answered(t, strings.Replace(apiInfo, w.stream, "", 1)+map[bool]string{false: w.stream, true: "MIRROR"}[mirror], 3)
			w.event("shop/production/a", subjects.Updated, "ACTIVE")
			if it := r.expect("event shop/production/a updated 5")[0]; it.Position.Owed {
				t.Errorf("got the position %s", it.Position)
			}
		})
	}
}

// The stream had another subject once, and still has its messages. Nothing was removed.
func TestSubjectRemoved(t *testing.T) {
	t.Parallel()
	for _, tc := range []appwatch.Options{{NoSnapshot: true}, {}} {
		t.Run(fmt.Sprintf("no snapshot %v", tc.NoSnapshot), func(t *testing.T) {
			t.Parallel()
			w := newWriter(t, jetStream(t).ClientURL())
			cfg := streamConfig()
			cfg.Subjects = append(cfg.Subjects, "other.>")
			if _, err := w.js.UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			w.event("shop/production/a", subjects.Created, "ACTIVE")
			w.publish(&nats.Msg{Subject: "other.x"})
			w.event("shop/production/a", subjects.Updated, "FAILED")
			if _, err := w.js.UpdateStream(t.Context(), streamConfig()); err != nil {
				t.Fatal(err)
			}
			w.event("shop/production/a", subjects.Updated, "ACTIVE")
			tc.From = appwatch.Position{StreamID: streamID, Sequence: 1}
			r := watch(t, w.js, tc)
			r.expect("event shop/production/a updated 3", "event shop/production/a updated 4", "mark 4")
		})
	}
}
