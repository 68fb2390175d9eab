package appwatch_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// A service that keeps a copy of the apps of a project.
func Example() {
	js, done := exampleStream()
	defer done()
	apps := map[subjects.AppID]string{}
	for item, err := range appwatch.Watch(context.Background(), js, appwatch.Options{Project: "shop"}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		switch item.Type {
		case appwatch.Restart:
			clear(apps)
		case appwatch.State, appwatch.Event:
			if item.Exists() {
				apps[item.ID] = item.Status()
			} else {
				delete(apps, item.ID)
			}
		case appwatch.Mark:
			fmt.Println(len(apps), "app at position", item.Position.Sequence)
			return // a service goes on
		}
	}
	// Output: 1 app at position 2
}

// A service that reacts to a transition needs headers alone.
func ExampleItem_Became() {
	js, done := exampleStream()
	defer done()
	opts := appwatch.Options{Since: time.Unix(1, 0), HeadersOnly: true, Statuses: []string{"ACTIVE"}}
	for item, err := range appwatch.Watch(context.Background(), js, opts) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if item.Became("ACTIVE") {
			fmt.Println(item.ID, "became", item.Status())
		}
		if item.Type == appwatch.Mark {
			return
		}
	}
	// Output: shop/production/checkout became ACTIVE
}

// A pipeline stores the position with what it did, and resumes behind it.
func ExamplePosition() {
	js, done := exampleStream()
	defer done()
	from, err := appwatch.ParsePosition("/1") // what was stored
	if err != nil {
		fmt.Println(err)
		return
	}
	for item, err := range appwatch.Watch(context.Background(), js, appwatch.Options{From: from, NoSnapshot: true}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		switch item.Type {
		case appwatch.Event:
			fmt.Println(item.Kind, item.ID, "is stored with", item.Position)
		case appwatch.Loss:
			fmt.Println("lost", item.Lost, item.Reason)
		case appwatch.Mark:
			return
		}
	}
	// Output: updated shop/production/checkout is stored with /2
}

// exampleStream is a stream and a bucket with an app that became active.
func exampleStream() (js jetstream.JetStream, done func()) {
	dir, err := os.MkdirTemp("", "appwatch-")
	check(err)
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	check(err)
	s.Start()
	if !s.ReadyForConnections(patience) {
		check(errors.New("the server is not ready"))
	}
	nc, err := nats.Connect(s.ClientURL(), nats.Timeout(patience))
	check(err)
	js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
	check(err)
	ctx := context.Background()
	for name, subject := range map[string]string{"FLYTE_APPS": "flyte.apps.events.>", "KV_flyte-apps": "$KV.flyte-apps.>"} {
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{subject}})
		check(err)
	}
	created := nats.Header{"ce-type": {"org.flyte.app.created.v1"}, "Flyte-Status": {"PENDING"}}
	updated := nats.Header{
		"ce-type": {"org.flyte.app.updated.v1"}, "Flyte-Status": {"ACTIVE"}, "Flyte-Previous-Status": {"PENDING"},
		"Flyte-Previous-Sequence": {"1"}, "Flyte-Event-Sequence": {"2"},
	}
	for _, msg := range []*nats.Msg{
		{Subject: "flyte.apps.events.shop.production.checkout.created", Header: created},
		{Subject: "flyte.apps.events.shop.production.checkout.updated", Header: updated},
		{Subject: "$KV.flyte-apps.shop.production.checkout", Header: updated},
	} {
		_, err = js.PublishMsg(ctx, msg)
		check(err)
	}
	return js, func() {
		nc.Close()
		s.Shutdown()
		s.WaitForShutdown()
		check(os.RemoveAll(dir))
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
