package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/cmd/appbridge/config"
)

// connectCommand waits for the connection: an address that does not answer an interactive
// command is more likely wrong than not up yet.
func connectCommand(parent context.Context, cfg config.Config, log *zap.Logger, name string, timeout time.Duration) (*natsconn.Conn, error) {
	ctx, cancel := context.WithTimeout(parent, timeout)
	defer cancel()
	// A stream of logs outlives a break of some seconds; a new one has to read again.
	link, err := natsconn.Connect(ctx, cfg.NATS, name, log.Named("nats"), nats.CustomInboxPrefix(cfg.LogInboxPrefix),
		nats.ReconnectWait(250*time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.PingInterval(5*time.Second), nats.MaxPingsOutstanding(2))
	if err != nil {
		return nil, err
	}
	tick := time.Tick(10 * time.Millisecond)
	for !link.NATS.IsConnected() {
		err := link.Err()
		select {
		case <-tick:
		case <-ctx.Done():
			if err == nil {
				err = noConnection(cfg, link, timeout)
			}
		}
		if parent.Err() != nil {
			err = parent.Err()
		}
		if err != nil {
			link.Close(false)
			return nil, err
		}
	}
	return link, nil
}

func noConnection(cfg config.Config, link *natsconn.Conn, timeout time.Duration) error {
	reason := ""
	if latest := link.Reason(); latest != "" {
		reason = ": " + latest
	}
	return fmt.Errorf("NATS at %s did not answer within %s%s", natsconn.ShowURLs(cfg.NATS.URLs), timeout, reason)
}
