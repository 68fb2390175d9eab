// Command operator prints what happens to the apps of a project: those that exist, then each change.
// With --since it begins with the changes of that time. Users choose the names of apps: %q keeps what
// a terminal would obey from it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects/appwatch"
)

// follow prints the apps that opts select, and what happens to them.
func follow(ctx context.Context, js jetstream.JetStream, out io.Writer, opts appwatch.Options) error {
	for item, err := range appwatch.Watch(ctx, js, opts) {
		if err != nil {
			return err
		}
		switch item.Type {
		case appwatch.State:
			fmt.Fprintf(out, "%q is %s\n", item.ID, item.Status())
		case appwatch.Mark:
			fmt.Fprintln(out, "# up to date at", item.Position)
		case appwatch.Event:
			fmt.Fprintf(out, "%s %q %s %s -> %s\n", item.Stored().Format(time.TimeOnly), item.ID, item.Kind, item.PreviousStatus(), item.Status())
		case appwatch.Loss, appwatch.Restart:
			fmt.Fprintf(out, "# %s %q\n", item.Type, item.Reason)
		}
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	url := flag.String("nats-url", "nats://127.0.0.1:4222", "the server")
	since := flag.Duration("since", 0, "begin with the changes of this time, 2h for example")
	flag.Parse()
	opts := appwatch.Options{Project: flag.Arg(0), HeadersOnly: true}
	if *since > 0 {
		opts.Since = time.Now().Add(-*since)
	}
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
	return follow(ctx, js, os.Stdout, opts)
}
