package appwatch

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A reader since a time that has received nothing yet has not caught up if there is an event of that
// time. A busy server may take a while to deliver it.
func TestSinceBeforeDelivery(t *testing.T) {
	nc, err := nats.Connect(suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL(), nats.Timeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	const filter, subject = subjects.DefaultPrefix + ".events.>", subjects.DefaultPrefix + ".events.shop.production.a.created"
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: subjects.DefaultStream, Subjects: []string{filter}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), subject, nil); err != nil {
		t.Fatal(err)
	}
	event, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		since  time.Time
		marked bool
	}{
		{"of an earlier time", event.Time.Add(-time.Second), false},
		{"of the time of the event", event.Time, false},
		{"of a later time", event.Time.Add(1), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Options{Since: tt.since, NoSnapshot: true}.validate()
			if err != nil {
				t.Fatal(err)
			}
			w := newWatcher(js, p, func(*Item) bool { return true })
			defer w.api.Close()
			if err := w.look(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := w.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := w.inspect(t.Context(), true); err != nil || w.marked != tt.marked {
				t.Errorf("got marked %v and %v, want %v", w.marked, err, tt.marked)
			}
		})
	}
}
