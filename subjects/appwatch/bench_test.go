package appwatch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

const benchEvents = 20000

// BenchmarkWatch reads a stream with Watch, and with a bare ordered consumer of the client. Compare
// both in the same run.
func BenchmarkWatch(b *testing.B) {
	w := newWriter(b, jetStream(b).ClientURL())
	for i := range benchEvents {
		w.event(fmt.Sprintf("shop/production/app-%d", i%500), map[bool]subjects.EventKind{true: subjects.Created, false: subjects.Updated}[i < 500], "ACTIVE")
	}
	for _, headers := range []bool{false, true} {
		kind := map[bool]string{false: "bodies", true: "headers"}[headers]
		b.Run("consumer/"+kind, func(b *testing.B) { perEvent(b, func() { readBare(b, w.js, headers) }) })
		b.Run("watch/"+kind, func(b *testing.B) { perEvent(b, func() { readWatch(b, w.js, headers) }) })
	}
}

func perEvent(b *testing.B, read func()) {
	b.ReportAllocs()
	began := time.Now()
	for b.Loop() {
		read()
	}
	b.ReportMetric(float64(b.N*benchEvents)/time.Since(began).Seconds(), "events/s")
}

func readWatch(b *testing.B, js jetstream.JetStream, headers bool) {
	n := 0
	for it, err := range appwatch.Watch(b.Context(), js, appwatch.Options{Since: time.Unix(1, 0), HeadersOnly: headers}) {
		if err != nil {
			b.Fatal(err)
		}
		if it.Type == appwatch.Event {
			n++
		}
		if n == benchEvents {
			break
		}
	}
}

func readBare(b *testing.B, js jetstream.JetStream, headers bool) {
	consumer, err := js.OrderedConsumer(b.Context(), subjects.DefaultStream, jetstream.OrderedConsumerConfig{HeadersOnly: headers})
	if err != nil {
		b.Fatal(err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		b.Fatal(err)
	}
	defer messages.Stop()
	for range benchEvents {
		if _, err := messages.Next(); err != nil {
			b.Fatal(err)
		}
	}
}
