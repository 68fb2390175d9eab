// Command audit writes every event of the stream into one SQLite file, exactly once, and answers from
// it what an app was.
//
//	audit --file apps.db record                                          until it is stopped
//	audit --file apps.db at shop/production/x 2026-11-23T10:00:00Z       one app at an instant
//	audit --file apps.db replay 2026-11-23T10:00:00Z 2026-11-23T12:00:00Z   all events in between
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects/appwatch"
)

// record writes what the stream has behind the file's position, and then every new event. The stream
// alone is read: an auditor needs no bucket. A batch is what arrived while the one before was written.
func record(ctx context.Context, js jetstream.JetStream, file *store, opts appwatch.Options) error {
	from, err := file.position(ctx)
	if err != nil {
		return err
	}
	opts.From, opts.Since, opts.NoSnapshot = from, time.Unix(0, 0), true
	ctx, stop := context.WithCancel(ctx)
	items, done := make(chan appwatch.Item, batchSize), make(chan error, 1)
	go func() {
		defer stop()
		done <- file.writeAll(ctx, from, items)
	}()
	for item, failed := range appwatch.Watch(ctx, js, opts) {
		if err = failed; err != nil {
			break
		}
		select {
		case items <- item:
		case <-ctx.Done():
		}
	}
	close(items)
	return errors.Join(err, <-done)
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	url := flag.String("nats-url", "nats://127.0.0.1:4222", "the server")
	path := flag.String("file", "apps.db", "the SQLite file")
	name := flag.String("stream", "", "the stream (default: appbridge's)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	args := flag.Args()
	if len(args) == 3 { // a report makes no file
		if _, err := os.Stat(*path); err != nil {
			return err
		}
	}
	file, err := open(ctx, *path)
	if err != nil {
		return err
	}
	defer func() { _ = file.close() }()
	switch {
	case len(args) == 3 && args[0] == "at":
		at, err := time.Parse(time.RFC3339Nano, args[2])
		if err != nil {
			return err
		}
		return file.at(ctx, os.Stdout, args[1], at)
	case len(args) == 3 && args[0] == "replay":
		from, err := time.Parse(time.RFC3339Nano, args[1])
		to, wrong := time.Parse(time.RFC3339Nano, args[2])
		if err := errors.Join(err, wrong); err != nil {
			return err
		}
		return file.replay(ctx, os.Stdout, from, to)
	case len(args) == 1 && args[0] == "record":
		nc, err := nats.Connect(*url, nats.MaxReconnects(-1))
		if err != nil {
			return err
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		return record(ctx, js, file, appwatch.Options{Stream: *name})
	}
	return fmt.Errorf("arguments %q: want record, at PROJECT/DOMAIN/APP TIME, or replay FROM TO", args)
}
