// Command queue is a worker of a work queue: it writes a report of every event. Start as many as
// needed; each event goes to one of them, and to another one if that does not acknowledge it. It uses
// JetStream alone.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
)

// work takes events from a durable consumer, which all workers share. do may be called again for an
// event that was not acknowledged in time.
func work(ctx context.Context, js jetstream.JetStream, ackWait time.Duration, do func(jetstream.Msg) error) error {
	consumer, err := js.CreateOrUpdateConsumer(ctx, subjects.DefaultStream, jetstream.ConsumerConfig{
		Durable:       "reports",
		FilterSubject: "flyte.apps.events.*.*.*.*", // events alone: no notice, no filler
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       ackWait,
		MaxAckPending: 100, // of all workers
	})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(1)) // AckWait runs for each that is pulled
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, messages.Stop)()
	for {
		msg, err := messages.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return nil
		}
		if errors.Is(err, jetstream.ErrNoHeartbeat) {
			log.Print(err) // the server is silent: Next pulls again
			continue
		}
		if err != nil {
			return err
		}
		err = do(msg)
		if err == nil {
			err = msg.DoubleAck(ctx)
		} else {
			err = errors.Join(err, msg.NakWithDelay(time.Second))
		}
		if err != nil && ctx.Err() == nil {
			log.Print(err) // it is delivered again
		}
	}
}

// report writes a report under the event's id. The second one of an event is refused by the server.
func report(ctx context.Context, reports jetstream.KeyValue, msg jetstream.Msg) error {
	h := msg.Headers()
	text := h.Get(subjects.CESubject) + " " + h.Get(subjects.HeaderPreviousAppStatus) + " -> " + h.Get(subjects.HeaderAppStatus)
	_, err := reports.Create(ctx, h.Get(subjects.CEID), []byte(text))
	if errors.Is(err, jetstream.ErrKeyExists) {
		return nil // done before, by a worker that did not get to its acknowledgement
	}
	return err
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	url := flag.String("nats-url", "nats://127.0.0.1:4222", "the server")
	ackWait := flag.Duration("ack-wait", 30*time.Second, "how long a worker has for an event")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	nc, err := nats.Connect(*url, nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	reports, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "reports"})
	if err != nil {
		return err
	}
	return work(ctx, js, *ackWait, func(msg jetstream.Msg) error { return report(ctx, reports, msg) })
}
