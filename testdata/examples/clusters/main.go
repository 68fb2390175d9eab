// Command clusters follows the apps of many clusters in one stream, CENTRAL, which has the streams of
// the clusters as sources: under the subjects <cluster>.apps.events.>, with the bucket of each cluster
// beside it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects/appwatch"
)

// follow calls handle for every item of each cluster: in the order of a cluster, between clusters in
// none. Positions are those of the cluster's own stream, so each cluster has one of its own.
func follow(ctx context.Context, js jetstream.JetStream, buckets map[string]string, handle func(cluster string, item appwatch.Item)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wait sync.WaitGroup
	errs := make(chan error, len(buckets))
	for cluster, bucket := range buckets {
		wait.Go(func() {
			defer stop()
			for item, err := range appwatch.Watch(ctx, js, appwatch.Options{Prefix: cluster + ".apps", Stream: "CENTRAL", Bucket: bucket, HeadersOnly: true}) {
				if err != nil {
					errs <- fmt.Errorf("%s: %w", cluster, err)
					return
				}
				handle(cluster, item)
			}
		})
	}
	wait.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	url := flag.String("nats-url", "nats://127.0.0.1:4222", "the server")
	buckets := map[string]string{}
	flag.Func("cluster", "name=bucket (may be repeated)", func(text string) error {
		name, bucket, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("want name=bucket")
		}
		buckets[name] = bucket
		return nil
	})
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
	return follow(ctx, js, buckets, func(cluster string, item appwatch.Item) {
		fmt.Printf("%s %s %q %s %d\n", cluster, item.Type, item.ID, item.Kind, item.Sequence)
	})
}
