// Command react is a service that reacts to apps: it calls a webhook for each app that becomes ACTIVE
// or FAILED. Killed at any instant it goes on where it was. It may then call for the same event again,
// with the same Idempotency-Key.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects/appwatch"
)

// react calls act for every app that becomes ACTIVE or FAILED, and keeps its position in a bucket.
func react(ctx context.Context, js jetstream.JetStream, positions jetstream.KeyValue, act func(appwatch.Item) error) error {
	var from appwatch.Position
	stored, err := positions.Get(ctx, "react")
	if err == nil {
		err = from.UnmarshalText(stored.Value())
	}
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return err
	}
	for item, err := range appwatch.Watch(ctx, js, appwatch.Options{From: from, HeadersOnly: true}) {
		if err == nil && reached(item, "ACTIVE", "FAILED") {
			err = act(item)
		}
		if err == nil && !item.Position.IsZero() {
			_, err = positions.PutString(ctx, "react", item.Position.String())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reached reports whether an app became one of statuses. After a restart of the snapshot the events
// in between are missing: a state that changed stands for them.
func reached(item appwatch.Item, statuses ...string) bool {
	for _, status := range statuses {
		if item.Became(status) && item.Type == appwatch.Event || item.Changed && item.Status() == status {
			return true
		}
	}
	return false
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	url := flag.String("nats-url", "nats://127.0.0.1:4222", "the server")
	hook := flag.String("hook", "http://127.0.0.1:8000/", "the webhook")
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
	positions, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "positions"})
	if err != nil {
		return err
	}
	err = react(ctx, js, positions, func(item appwatch.Item) error {
		return call(ctx, *hook, item.MessageID(), fmt.Sprintf("%s is %s", item.ID, item.Status()))
	})
	if ctx.Err() != nil {
		return nil // stopped, perhaps in a call
	}
	return err
}

func call(ctx context.Context, hook, key, text string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, hook, strings.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", key)
	client := http.Client{Timeout: 30 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s answers %s", hook, resp.Status)
	}
	return errors.Join(err, resp.Body.Close())
}
