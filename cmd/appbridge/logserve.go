package main

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/pods"
	"github.com/appbridge/appbridge/subjects"
)

// logsConfig is the part of the configuration that the log service needs.
func (c config) logsConfig() logsvc.Config {
	return logsvc.Config{
		Prefix:      c.Prefix,
		MaxStreams:  c.MaxLogStreams,
		InboxPrefix: c.LogInboxPrefix,
		Version:     currentBuild().Version,
		ClusterName: c.ClusterName,
	}
}

// newLogSource is what the log service reads from.
func newLogSource(c config, kube *rest.Config, cache appsvc.Cache, log *zap.Logger, reg prometheus.Registerer) (*pods.Source, error) {
	return pods.New(pods.Config{
		REST:              kube,
		Namespaces:        c.bridgeConfig("").Namespaces,
		MaxPodStreams:     c.MaxPodStreams,
		MaxBytesPerSecond: c.MaxLogRate,
		// An app is the same Knative Service for its log as for its events and operations.
		Lookup: func(id subjects.AppID) (*kservice.Service, bool) {
			entry, _ := cache.App(id)
			return entry.Service, cache.Synced() == nil
		},
	}, log, reg)
}

// runLogService answers log requests until ctx is done. Every replica does so,
// whether it leads or not.
func runLogService(ctx context.Context, cfg config, urls []string, kube *rest.Config, cache appsvc.Cache, log *zap.Logger, reg prometheus.Registerer) error {
	source, err := newLogSource(cfg, kube, cache, log, reg)
	if err != nil {
		return fmt.Errorf("set up the log service: %w", err)
	}
	return serveOn(ctx, cfg, urls, "logs", log, func(streams *nats.Conn) (service, error) {
		return serviceFunc(func(ctx context.Context) error {
			return serveOn(ctx, cfg, urls, "log requests", log, func(requests *nats.Conn) (service, error) {
				s, err := logsvc.New(cfg.logsConfig(), source, requests, streams, log, reg)
				if err != nil {
					return nil, fmt.Errorf("set up the log service: %w", err)
				}
				return s, nil
			})
		}), nil
	})
}
