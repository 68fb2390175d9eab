package main

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/cmd/appbridge/config"
)

// serviceStopGrace is how long a service may take to end.
const serviceStopGrace = 2 * time.Second

// service answers requests until ctx is done.
type service interface {
	Run(ctx context.Context) error
}

// serveOn runs a service on connections of its own: a reader that stalls one connection stalls
// neither the events nor the other services. The server lists them under the cluster's name
// and these names. add makes the service.
func serveOn(ctx context.Context, cfg config.Config, names []string, log *zap.Logger, add func([]*nats.Conn) (service, error)) error {
	var conns []*natsconn.Conn
	defer func() {
		for _, conn := range conns {
			conn.Close(false) // the service has flushed its messages
		}
	}()
	var clients []*nats.Conn
	for _, name := range names {
		conn, err := natsconn.Connect(ctx, cfg.NATS, connectionName(cfg)+" "+name, log.Named("nats"))
		if err != nil {
			if ctx.Err() != nil {
				return nil // the start was interrupted
			}
			return err
		}
		conns, clients = append(conns, conn), append(clients, conn.NATS)
	}
	// A server that reads nothing any more blocks the sender.
	defer killWhenStuck(ctx, serviceStopGrace, func() {
		for _, conn := range conns {
			conn.Cut()
		}
	})()
	s, err := add(clients)
	if err != nil {
		return err
	}
	err = s.Run(ctx)
	for _, conn := range conns {
		if failure := conn.Err(); err != nil && failure != nil {
			return failure
		}
	}
	return err
}

// connectionName is the name of the bridge's connection in the server's list.
func connectionName(cfg config.Config) string { return "appbridge " + cfg.ClusterName }
