package appwatch_test

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A position behind the end of the stream cannot be resumed: nothing says that the stream will ever
// have the events that follow it.
func TestFromBeyondEnd(t *testing.T) {
	t.Parallel()
	const gone = "the stream came back with less than was read of it"
	for _, tc := range []struct {
		name string
		opts appwatch.Options
		from appwatch.Position
	}{
		{"stream", appwatch.Options{}, appwatch.Position{StreamID: streamID, Sequence: 1000}},
		{"stream, check", appwatch.Options{}, appwatch.Position{StreamID: streamID, Sequence: 1000, Check: 7}},
		{"stream, largest", appwatch.Options{}, appwatch.Position{StreamID: streamID, Sequence: math.MaxUint64}},
		{"project", appwatch.Options{Project: "shop"}, appwatch.Position{StreamID: streamID, Sequence: 1000}},
		{"no snapshot", appwatch.Options{NoSnapshot: true}, appwatch.Position{StreamID: streamID, Sequence: 1000}},
		{"mirror", appwatch.Options{Stream: "MIRROR"}, appwatch.Position{Sequence: 1000}},
		{"mirror, no snapshot", appwatch.Options{Stream: "MIRROR", NoSnapshot: true}, appwatch.Position{Sequence: 1000}},
		{"sources", appwatch.Options{Stream: "SOURCES"}, appwatch.Position{Sequence: 1000}},
		{"sources, no snapshot", appwatch.Options{Stream: "SOURCES", NoSnapshot: true}, appwatch.Position{Sequence: 1000}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newWriter(t, jetStream(t).ClientURL())
			w.event("shop/production/a", subjects.Created, "ACTIVE")
			w.event("shop/production/b", subjects.Created, "ACTIVE")
			origin := &jetstream.StreamSource{Name: w.stream}
			for _, cfg := range []jetstream.StreamConfig{{Name: "MIRROR", Mirror: origin}, {Name: "SOURCES", Sources: []*jetstream.StreamSource{origin}}} {
				if cfg.Name == tc.opts.Stream {
					if _, err := w.js.CreateStream(t.Context(), cfg); err != nil {
						t.Fatal(err)
					}
					w.holds(cfg.Name, 2)
				}
			}
			tc.opts.From = tc.from
			r := watch(t, w.js, tc.opts)
			if tc.opts.NoSnapshot {
				r.expect("loss: "+gone+" 1-1000", "event shop/production/a created 1", "event shop/production/b created 2", "mark 2")
			} else {
				r.expect(fmt.Sprintf("restart: %s 3-%d", gone, tc.from.Sequence),
					"state shop/production/a created 1 changed", "state shop/production/b created 2 changed", "mark 2")
			}
			w.event("shop/production/a", subjects.Updated, "ACTIVE")
			r.expect("event shop/production/a updated 3")
		})
	}
}

// A mirror that is behind its origin gets the events that follow a position behind its end.
func TestFromBeyondEndOfMirrorBehind(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	mirror := jetstream.StreamConfig{Name: "MIRROR", Mirror: &jetstream.StreamSource{Name: w.stream}}
	if _, err := w.js.CreateStream(t.Context(), mirror); err != nil {
		t.Fatal(err)
	}
	r := watch(t, w.js, appwatch.Options{Stream: "MIRROR", From: appwatch.Position{Sequence: 2}})
	suite.Eventually(t, patience, "a consumer", func() error {
		stream, err := w.js.Stream(t.Context(), "MIRROR")
		if err == nil && stream.CachedInfo().State.Consumers == 0 {
			err = fmt.Errorf("there is none")
		}
		return err
	})
	for range 2 {
		w.event("shop/production/a", subjects.Updated, "ACTIVE")
	}
	items := r.next(2)
	for _, it := range items {
		if it.Type != appwatch.Mark && line(it) != "event shop/production/a updated 3" {
			t.Errorf("got %s", line(it))
		}
	}
}

// An entry that names an event which the stream cannot have does not stop a reader for ever.
func TestForgedEntry(t *testing.T) {
	t.Parallel()
	const far = 1_000_000_000_000
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	w.event("shop/production/b", subjects.Created, "ACTIVE")
	bucket, err := w.js.Stream(t.Context(), subjects.BucketStream(w.bucket))
	if err != nil {
		t.Fatal(err)
	}
	entry, err := bucket.GetLastMsgForSubject(t.Context(), subjects.BucketSubject(w.bucket, "shop.production.b"))
	if err != nil {
		t.Fatal(err)
	}
	forged := &nats.Msg{Subject: entry.Subject, Header: nats.Header{}, Data: entry.Data}
	for name, values := range entry.Header {
		forged.Header[name] = values
	}
	forged.Header.Set(subjects.HeaderEventSequence, strconv.Itoa(far))
	w.publish(forged)
	r := watch(t, w.js, appwatch.Options{})
	r.expect("state shop/production/a created 1", fmt.Sprintf("state shop/production/b created %d", far), fmt.Sprintf("mark %d", far))
	last := w.event("shop/production/a", subjects.Updated, "ACTIVE")
	for it := r.next(1)[0]; it.Sequence != last; it = r.next(1)[0] {
	}
	r.expect(fmt.Sprintf("state shop/production/b created %d", far), fmt.Sprintf("mark %d", last))
	w.publish(&nats.Msg{Subject: entry.Subject, Header: entry.Header, Data: entry.Data}) // as a bridge does
	r.expect("restart: "+appwatch.ErrBucket.Error(), "state shop/production/b created 2 changed", fmt.Sprintf("state shop/production/a updated %d", last), fmt.Sprintf("mark %d", last))
	w.event("shop/production/b", subjects.Updated, "ACTIVE")
	if it := r.expect("event shop/production/b updated 4")[0]; it.Position.Owed {
		t.Errorf("got the position %s", it.Position)
	}
}

// A notice of a loss that was none: the events are there. The Restart that it announces comes.
func TestFalseNotice(t *testing.T) {
	t.Parallel()
	for _, pending := range []bool{false, true} {
		t.Run(fmt.Sprintf("pending %v", pending), func(t *testing.T) {
			t.Parallel()
			w := newWriter(t, jetStream(t).ClientURL())
			var states []string
			for i := range 3 {
				app := fmt.Sprintf("shop/production/a%d", i)
				states = append(states, fmt.Sprintf("state %s created %d", app, w.event(app, subjects.Created, "ACTIVE")))
			}
			early := watch(t, w.js, appwatch.Options{})
			early.expect(append(states, "mark 3")...)
			cfg := streamConfig()
			cfg.Metadata[map[bool]string{false: subjects.MetadataLostRanges, true: subjects.MetadataLostPending}[pending]] = "2-3"
			if _, err := w.js.UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			w.notice(2, 3)
			restart := append(append([]string{"loss: " + noticed + " 2-3", "restart: " + noticed + " 2-3"}, states...), "mark 4")
			early.expect(restart...)
			late := watch(t, w.js, appwatch.Options{})
			late.expect(append(append(states[:3:3], "mark 3"), restart...)...)
			w.event("shop/production/a0", subjects.Updated, "ACTIVE")
			for _, r := range []*reader{early, late} {
				if it := r.expect("event shop/production/a0 updated 5")[0]; it.Position.Owed {
					t.Errorf("got the position %s", it.Position)
				}
			}
		})
	}
}

// A range in the metadata that ends behind the stream is none: events in it that are removed unread are
// reported.
func TestRangeBehindEnd(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	cfg := streamConfig()
	cfg.Metadata[subjects.MetadataLostRanges] = fmt.Sprintf("1-%d", uint64(math.MaxUint64))
	if _, err := w.js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	r := watch(t, w.js, appwatch.Options{NoSnapshot: true})
	r.expect("mark 1")
	stream, name := w.consumer()
	if _, err := stream.PauseConsumer(t.Context(), name, time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	deleteMessage(t, w, 2)
	if _, err := stream.ResumeConsumer(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	r.expect("loss: "+appwatch.ErrRemoved.Error()+" 2-2", "event shop/production/a updated 3")
}
