package appwatch_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A mirror of some events keeps the sequences: a gap between them is no loss.
func TestMirror(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	w.event("bank/production/a", subjects.Created, "ACTIVE")
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	for _, cfg := range []jetstream.StreamConfig{
		{Name: "MIRROR", Mirror: &jetstream.StreamSource{Name: w.stream, FilterSubject: "flyte.apps.events.shop.>"}},
		{Name: "states", Mirror: &jetstream.StreamSource{Name: subjects.BucketStream(w.bucket), FilterSubject: "$KV.flyte-apps.shop.>"}},
	} {
		if _, err := w.js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		w.holds(cfg.Name, 1)
	}
	opts := appwatch.Options{Stream: "MIRROR", BucketStream: "states"}
	r := watch(t, w.js, opts)
	r.expect("state shop/production/a created 2", "mark 2")
	for range 3 {
		w.event("bank/production/a", subjects.Updated, "ACTIVE")
		w.event("shop/production/a", subjects.Updated, "ACTIVE")
	}
	first := r.expect("event shop/production/a updated 4", "event shop/production/a updated 6", "event shop/production/a updated 8")[0]
	opts.From = first.Position
	resumed := watch(t, w.js, opts)
	resumed.expect("event shop/production/a updated 6", "event shop/production/a updated 8", "mark 8")

	// A mirror that is made again is behind for a while. That is no rollback.
	if err := w.js.DeleteStream(t.Context(), "MIRROR"); err != nil {
		t.Fatal(err)
	}
	suite.Recreate(t, w.js, jetstream.StreamConfig{
		Name: "MIRROR", Mirror: &jetstream.StreamSource{Name: w.stream, FilterSubject: "flyte.apps.events.shop.>"},
	})
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	r.expect("event shop/production/a updated 9")
	resumed.expect("event shop/production/a updated 9")
}

func (w *writer) holds(stream string, messages uint64) {
	w.t.Helper()
	suite.Eventually(w.t, patience, "the copy "+stream, func() error {
		s, err := w.js.Stream(w.t.Context(), stream)
		if err != nil {
			return err
		}
		if got := s.CachedInfo().State.Msgs; got < messages {
			return fmt.Errorf("it has %d of %d messages", got, messages)
		}
		return nil
	})
}

// A stream with sources gives messages other sequences. Positions are those of the origin.
func TestSources(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	east := newWriter(t, s.ClientURL())
	var sources []*jetstream.StreamSource
	if _, err := east.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "WEST", Subjects: []string{"west.>"}}); err != nil {
		t.Fatal(err)
	}
	for prefix, stream := range map[string]string{"flyte.apps": east.stream, "west": "WEST"} {
		sources = append(sources, &jetstream.StreamSource{Name: stream, SubjectTransforms: []jetstream.SubjectTransformConfig{
			{Source: prefix + ".events.>", Destination: prefix[:4] + ".apps.events.>"},
		}})
	}
	if _, err := east.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "CENTRAL", Sources: sources}); err != nil {
		t.Fatal(err)
	}
	noise := func() {
		for range 3 {
			east.publish(&nats.Msg{Subject: "west.events.shop.production.a.created", Header: nats.Header{subjects.CEType: {subjects.Created.Type()}}})
		}
	}
	noise()
	east.event("shop/production/a", subjects.Created, "ACTIVE")
	noise()
	east.event("shop/production/b", subjects.Created, "ACTIVE")
	east.holds("CENTRAL", 8)
	opts := appwatch.Options{Stream: "CENTRAL", Prefix: "flyt.apps"}
	r := watch(t, east.js, opts)
	r.expect("state shop/production/a created 1", "state shop/production/b created 2", "mark 2")
	for range 3 {
		noise()
		east.event("shop/production/a", subjects.Updated, "ACTIVE")
		noise()
	}
	items := r.expect("event shop/production/a updated 3", "event shop/production/a updated 4", "event shop/production/a updated 5")
	for i, it := range items {
		opts.From = it.Position
		resumed := watch(t, east.js, opts)
		for sequence := i + 4; sequence <= 5; sequence++ {
			resumed.expect(fmt.Sprintf("event shop/production/a updated %d", sequence))
		}
		resumed.expect("mark 5")
		resumed.stop()
	}
	east.event("shop/production/a", subjects.Deleted, "")
	east.notice(3, 3)
	r.expect("event shop/production/a deleted 6", "loss: "+noticed+" 3-3", "restart: "+noticed+" 3-3", "state shop/production/b created 2", "mark 7")
	next := opts
	next.From, next.NoSnapshot = appwatch.Position{}, true
	watch(t, east.js, next).expect("mark 7")
}

// A stream with two sources under one prefix has two histories. A reader does not know which
// it has.
func TestTwoOrigins(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "WEST", Subjects: []string{"west.>"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "CENTRAL", Sources: []*jetstream.StreamSource{
		{Name: w.stream},
		{Name: "WEST", SubjectTransforms: []jetstream.SubjectTransformConfig{{Source: "west.>", Destination: "flyte.apps.>"}}},
	}}); err != nil {
		t.Fatal(err)
	}
	r := watch(t, w.js, appwatch.Options{Stream: "CENTRAL", NoSnapshot: true})
	r.expect("mark 0")
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	w.event("shop/production/a", subjects.Updated, "ACTIVE")
	r.expect("event shop/production/a created 1", "event shop/production/a updated 2")
	w.publish(&nats.Msg{Subject: "west.events.shop.production.b.created", Header: nats.Header{subjects.CEType: {subjects.Created.Type()}}})
	suite.Eventually(t, patience, "the loop ends", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !errors.Is(r.err, appwatch.ErrOptions) {
			return fmt.Errorf("the error is %w", r.err)
		}
		return nil
	})
}

// A reader of a stream with sources that goes on with the oldest event is at a sequence of the origin.
func TestSourcesWithoutSnapshot(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	for range 5 {
		w.event("shop/production/a", subjects.Updated, "ACTIVE")
	}
	w.purge(w.stream, jetstream.WithPurgeSequence(4))
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "CENTRAL", Sources: []*jetstream.StreamSource{{Name: w.stream}}, Metadata: map[string]string{subjects.MetadataStreamID: "another"},
	}); err != nil {
		t.Fatal(err)
	}
	w.holds("CENTRAL", 2)
	r := watch(t, w.js, appwatch.Options{Stream: "CENTRAL", NoSnapshot: true, From: appwatch.Position{StreamID: streamID, Sequence: 3}})
	items := r.expect("loss: "+appwatch.ErrOtherStream.Error(), "event shop/production/a updated 4", "event shop/production/a updated 5", "mark 5")
	if at := items[0].Position; at.Sequence != 3 || at.StreamID != "another" {
		t.Errorf("got the position %v", at)
	}
}

// A reader of an empty mirror has a position, from which it gets what comes.
func TestEmptyMirror(t *testing.T) {
	t.Parallel()
	w := newWriter(t, jetStream(t).ClientURL())
	if _, err := w.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "MIRROR", Mirror: &jetstream.StreamSource{Name: w.stream}}); err != nil {
		t.Fatal(err)
	}
	opts := appwatch.Options{Stream: "MIRROR", NoSnapshot: true}
	r := watch(t, w.js, opts)
	at := r.expect("mark 0")[0].Position
	r.stop()
	from, err := appwatch.ParsePosition(at.String())
	if err != nil || from != at || from.IsZero() {
		t.Fatalf("got the position %q, %v", at, err)
	}
	w.event("shop/production/a", subjects.Created, "ACTIVE")
	w.holds("MIRROR", 1)
	opts.From = from
	watch(t, w.js, opts).expect("event shop/production/a created 1", "mark 1")
}
