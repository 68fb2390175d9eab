// Command dashboard is a reader that is slower than its apps change: it shows one change at a time,
// for as long as --hold, and always the newest of each app.
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

// show prints the newest state of each app, however slow out is. What waits meanwhile is at most one
// event of each app.
func show(ctx context.Context, js jetstream.JetStream, out io.Writer) error {
	for item, err := range appwatch.Watch(ctx, js, appwatch.Options{Latest: true, HeadersOnly: true}) {
		switch {
		case err != nil:
			return err
		case item.Exists():
			_, err = fmt.Fprintf(out, "%q %s at %d skipped %d\n", item.ID, item.Status(), item.Sequence, item.Skipped)
		case item.Type == appwatch.Event || item.Type == appwatch.State:
			_, err = fmt.Fprintf(out, "%q deleted at %d skipped %d\n", item.ID, item.Sequence, item.Skipped)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// slow is a screen that holds every line for a while.
type slow struct {
	ctx  context.Context //nolint:containedctx // a Writer has no context
	hold time.Duration
}

func (s slow) Write(p []byte) (int, error) {
	n, err := os.Stdout.Write(p)
	select {
	case <-time.After(s.hold):
	case <-s.ctx.Done():
	}
	return n, err
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	url := flag.String("nats-url", "nats://127.0.0.1:4222", "the server")
	hold := flag.Duration("hold", time.Second, "how long a line is shown")
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
	return show(ctx, js, slow{ctx, *hold})
}
