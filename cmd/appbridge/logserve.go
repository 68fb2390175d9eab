package main

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/cmd/appbridge/config"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/pods"
	"github.com/appbridge/appbridge/subjects"
)

// newLogSource is what the log service reads from.
func newLogSource(cfg config.Config, cache appsvc.Cache, log *zap.Logger, reg prometheus.Registerer) (*pods.Source, error) {
	return pods.New(pods.Config{
		REST:              cfg.Kube,
		Namespaces:        cfg.Bridge("").Namespaces,
		MaxPodStreams:     cfg.MaxPodStreams,
		MaxBytesPerSecond: cfg.MaxLogRate,
		// An app is the same Knative Service for its log as for its events and operations.
		Lookup: func(id subjects.AppID) (*kservice.Service, bool) {
			entry, _ := cache.App(id)
			return entry.Service, cache.Synced() == nil
		},
	}, log, reg)
}

// runLogService answers log requests until ctx is done. Every replica does so,
// whether it leads or not.
func runLogService(ctx context.Context, cfg config.Config, cache appsvc.Cache, log *zap.Logger, reg prometheus.Registerer) error {
	source, err := newLogSource(cfg, cache, log, reg)
	if err != nil {
		return fmt.Errorf("set up the log service: %w", err)
	}
	return serveOn(ctx, cfg, []string{"logs", "log requests"}, log, func(conns []*nats.Conn) (service, error) {
		s, err := logsvc.New(cfg.LogService(currentBuild().Version), source, conns[1], conns[0], log, reg)
		if err != nil {
			return nil, fmt.Errorf("set up the log service: %w", err)
		}
		return s, nil
	})
}
