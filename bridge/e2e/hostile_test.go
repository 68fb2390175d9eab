package e2e_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
)

// told are the headers of a message that say something to a reader, with
// changes; an empty value takes a header away.
func told(h nats.Header, changes ...string) nats.Header {
	out := nats.Header{}
	for name, values := range h {
		if strings.HasPrefix(name, "Flyte-") || strings.HasPrefix(name, "ce-") || name == subjects.HeaderKVOperation {
			out[name] = values
		}
	}
	for i := 0; i < len(changes); i += 2 {
		if out.Set(changes[i], changes[i+1]); changes[i+1] == "" {
			out.Del(changes[i])
		}
	}
	return out
}

// plant stores a message as anybody can who may publish, and returns its sequence.
func (w *world) plant(subject string, h nats.Header, data string) uint64 {
	w.t.Helper()
	msg := &nats.Msg{Subject: subject, Header: maps.Clone(h), Data: []byte(data)}
	return must[*jetstream.PubAck](w.t)(w.js.PublishMsg(w.t.Context(), msg)).Sequence
}

// plantEvents puts on the event subjects what is no event, and returns where.
func (w *world) plantEvents(like stored) []uint64 {
	w.t.Helper()
	const events = "flyte.apps.events."
	one, ghost := events+"vision.development.one.", events+"vision.development.ghost."
	body := string(like.msg.Data)
	return []uint64{
		w.plant(one+"updated", nil, ""),
		w.plant(ghost+"created", nil, `{"createEvent":`),
		w.plant(one+"created", told(like.msg.Header, subjects.HeaderUID, ""), body),
		w.plant(one+"created", told(like.msg.Header, subjects.HeaderResourceVersion, ""), body),
		w.plant(one+"created", told(like.msg.Header, subjects.CEType, "org.example.other.v1"), body),
		w.plant(one+"deleted", told(like.msg.Header), body), // the header says created
		w.plant(one+"created", told(like.msg.Header), `{"createEvent":`),
		w.plant(one+"created", told(like.msg.Header), `{"deleteEvent":{"app":{}}}`),
		w.plant(one+"created", told(like.msg.Header, subjects.CEDataContentType, "text/plain"), body),
		w.plant(ghost+"deleted", told(like.msg.Header, subjects.CEDataContentType, subjects.ContentTypeProtobuf), "\xff\xff\xff"),
		w.plant(one+"exploded", told(like.msg.Header), body),
		w.plant(events+"a.b", told(like.msg.Header), body),
		w.plant(events+"vision.=zz.one.created", told(like.msg.Header), body),
		w.plant(ghost+"created", told(like.msg.Header, subjects.HeaderUID, strings.Repeat("x", 4000), subjects.CEID, "\x01", subjects.CEType, "\t"), "\x00"),
	}
}

// foreignKeys are no keys of apps.
func foreignKeys() []string { return []string{"x", "a.b", "a.b.c.d", "vision.=zz.one"} }

// plantEntries puts into the bucket what is no entry of it.
func (w *world) plantEntries() {
	w.t.Helper()
	entries := w.entries()
	one, two := entries[w.app("one").ID()], entries[w.app("two").ID()]
	key := func(name string) string {
		return subjects.BucketSubject(subjects.DefaultBucket, "vision.development."+name)
	}
	w.plant(one.Subject, nil, `{"garbage`)
	w.plant(two.Subject, told(two.Header), `{"garbage`)
	w.plant(key("ghost"), nil, "")
	w.plant(key("void"), told(one.Header, subjects.HeaderEventSequence, "minus one"), string(one.Data))
	w.plant(key("zero"), told(one.Header, subjects.HeaderEventSequence, "0"), string(one.Data))
	w.plant(key("half"), told(one.Header, subjects.HeaderKVOperation, subjects.KVPurge), string(one.Data))
	for _, foreign := range foreignKeys() {
		w.plant("$KV."+subjects.DefaultBucket+"."+foreign, told(one.Header), string(one.Data))
	}
}

// clearForeign takes away what no bridge will ever write over.
func (w *world) clearForeign() {
	w.t.Helper()
	for _, key := range append(foreignKeys(), "vision.development.void", "vision.development.zero", "vision.development.half") {
		must[any](w.t)(nil, w.stream(subjects.BucketStream(subjects.DefaultBucket)).Purge(w.t.Context(),
			jetstream.WithPurgeSubject("$KV."+subjects.DefaultBucket+"."+key)))
	}
}

// Whatever anybody writes into the stream and the bucket is reported, passed
// over or repaired, before a start and while a bridge runs; the apps go on
// behind their own last events.
func TestHostileContent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, service := t.Context(), must[*servingv1.Service](t)
	r := w.start(w.config())
	one, two := w.create(w.app("one")), w.create(w.app("two"))
	w.create(w.app("still")) // whose entry stays as it is, so that the bucket has a position
	real := w.waitFor(0, "created one", "created two", "created still")
	w.converged(real)
	like := real[0]
	if like.id.Name != "one" {
		like = real[1]
	}
	must[any](t)(nil, r.stop())

	planted := w.plantEvents(like)
	w.plantEntries()
	r = w.start(w.config())
	for _, key := range []string{"one", "two", "ghost", "void", "zero", "half"} {
		if r.logs.FilterMessage("bucket entry is damaged").FilterField(zap.String("key", "vision.development."+key)).Len() == 0 {
			t.Errorf("the log does not tell that the entry of %s is damaged", key)
		}
	}
	if got := r.logs.FilterMessage("the bucket holds a key that is not of an app").Len(); got < len(foreignKeys()) {
		t.Errorf("the log tells %d foreign keys, want %d", got, len(foreignKeys()))
	}
	foreign := func(want int) {
		t.Helper()
		eventually(t, "the foreign messages are counted", func() error {
			if got := r.metric("appbridge_foreign_messages_total"); got < float64(want) {
				return fmt.Errorf("%v are, want %d", got, want)
			}
			return nil
		})
	}
	foreign(len(planted))
	if got := r.metric("appbridge_foreign_messages_total"); got != float64(len(planted)) {
		t.Errorf("%v foreign messages are counted, want %d", got, len(planted))
	}
	want := []string{"created one", "created two", "created still"}
	w.clearForeign()
	w.waitRead(planted, want...)
	service(w.Progressing(ctx, one))
	service(w.Progressing(ctx, two))
	ghost := w.create(w.app("ghost"))
	want = append(want, "updated one", "updated two", "created ghost")
	events := w.waitRead(planted, want...)
	w.checkHeaders(events)
	w.converged(events)
	r.waitReady()

	// Now while it runs.
	planted = append(planted, w.plantEvents(like)...)
	w.plantEntries()
	service(w.Failed(ctx, one, "Broken", "it is"))
	service(w.Failed(ctx, two, "Broken", "it is"))
	must[any](t)(nil, w.Client.Delete(ctx, ghost))
	want = append(want, "updated one", "updated two", "deleted ghost")
	events = w.waitRead(planted, want...)
	foreign(len(planted))
	r.waitReady()
	w.clearForeign()
	w.checkHeaders(events)
	w.converged(events)
	w.create(w.app("void")) // of a key that had been abused
	want = append(want, "created void")
	events = w.waitRead(planted, want...)
	w.checkHeaders(events)
	w.converged(events)
	must[any](t)(nil, r.stop())

	r = w.start(w.config())
	if got := w.lastSequence(); got != uint64(len(events)+len(planted)) {
		t.Errorf("a restart published %v", w.read(events[len(events)-1].sequence, planted...))
	}
	w.converged(events)
	must[any](t)(nil, r.stop())
	for _, e := range r.logs.All() {
		if e.Level >= zap.DPanicLevel {
			t.Errorf("%s %s", e.Level, e.Message)
		}
	}
}
