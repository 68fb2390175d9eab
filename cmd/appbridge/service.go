package main

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

// serviceStopGrace is how long a service may take to end.
const serviceStopGrace = 2 * time.Second

// service answers requests until ctx is done.
type service interface {
	Run(ctx context.Context) error
}

// serviceFunc is a service that is a function.
type serviceFunc func(ctx context.Context) error

// Run is that of service.
func (f serviceFunc) Run(ctx context.Context) error { return f(ctx) }

// serveOn runs a service on a connection of its own, which the server lists under
// the cluster's name and this one: what holds up one connection, as a reader that
// stalls does, must hold up neither the events nor the other services. add makes
// the service.
func serveOn(ctx context.Context, cfg config, urls []string, name string, log *zap.Logger, add func(*nats.Conn) (service, error)) error {
	cfg.ClusterName += " " + name
	link, err := connectNATS(ctx, cfg, urls, log.Named("nats"))
	if err != nil {
		if ctx.Err() != nil {
			return nil // the start was given up
		}
		return err
	}
	defer link.close(false) // the service has flushed what it said
	// A server that takes nothing any more holds up whoever sends.
	defer killWhenStuck(ctx, serviceStopGrace, link.cut)()
	s, err := add(link.nc)
	if err != nil {
		return err
	}
	err = s.Run(ctx)
	if failure := link.failure(); err != nil && failure != nil {
		return failure
	}
	return err
}
