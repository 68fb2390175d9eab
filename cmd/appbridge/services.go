package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/cmd/appbridge/config"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/pods"
	"github.com/appbridge/appbridge/subjects"
)

// serviceStopGrace is how long a service may take to end.
const serviceStopGrace = 2 * time.Second

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
		return fmt.Errorf("set up %s: %w", names[0], err)
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

// runAppService answers requests for app operations until ctx is done. Every
// replica does so, whether it leads or not.
func runAppService(ctx context.Context, cfg config.Config, cache appsvc.Cache, log *zap.Logger, reg prometheus.Registerer) error {
	apps := cfg.Apps(currentBuild().Version)
	if allowed := apps.Deploy.Policy; apps.EnableWrites {
		log.Info("writes are on: apps can be deployed, stopped and deleted", zap.String("deployNamespace", apps.Deploy.Namespace),
			zap.Strings("allowedServiceAccounts", allowed.ServiceAccounts), zap.Stringers("allowedReferences", allowed.References), zap.String("ownServiceAccount", allowed.OwnServiceAccount))
		if most := apps.Deploy.MaxTimeoutSeconds(); int64(apps.Deploy.DefaultRequestTimeout/time.Second) > most {
			log.Warn("apps without a request timeout cannot be deployed: default-request-timeout is longer than Knative allows; if the cluster allows it, max-request-timeout must be as long",
				zap.Duration("defaultRequestTimeout", apps.Deploy.DefaultRequestTimeout), zap.Int64("knativeAllowsSeconds", most))
		}
	} else {
		log.Info("writes are off: apps can be read alone; --enable-writes turns them on")
	}
	kube := rest.AddUserAgent(rest.CopyConfig(cfg.Kube), "apps")
	return serveOn(ctx, cfg, []string{"apps"}, log, func(conns []*nats.Conn) (service, error) {
		return appsvc.New(apps, cache, kube, conns[0], log, reg)
	})
}

// runLogService answers log requests until ctx is done. Every replica does so,
// whether it leads or not.
func runLogService(ctx context.Context, cfg config.Config, cache appsvc.Cache, log *zap.Logger, reg prometheus.Registerer) error {
	source, err := pods.New(pods.Config{
		REST:              cfg.Kube,
		Namespaces:        cfg.Bridge("").Namespaces,
		MaxPodStreams:     cfg.MaxPodStreams,
		MaxBytesPerSecond: cfg.MaxLogRate,
		// An app is the same Knative Service for its log as for its events and operations.
		Lookup: func(id subjects.AppID) (*kservice.Service, bool) {
			if entry, ok := cache.App(id); ok {
				return entry.Service.Object(), cache.Synced() == nil
			}
			return nil, cache.Synced() == nil
		},
	}, log, reg)
	if err != nil {
		return fmt.Errorf("set up the log service: %w", err)
	}
	return serveOn(ctx, cfg, []string{"logs", "log requests"}, log, func(conns []*nats.Conn) (service, error) {
		return logsvc.New(cfg.LogService(currentBuild().Version), source, conns[1], conns[0], log, reg)
	})
}
