package main

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/logsvc"
)

// logStopGrace is how long the log service may take to end.
const logStopGrace = 2 * time.Second

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
func newLogSource(c config, kube *rest.Config, log *zap.Logger, reg prometheus.Registerer) (*logsvc.Kubernetes, error) {
	return logsvc.NewKubernetes(logsvc.KubernetesConfig{
		REST:          kube,
		Namespaces:    c.bridgeConfig("").Namespaces,
		MaxPodStreams: c.MaxPodStreams,
	}, log, reg)
}

// runLogService answers log requests until ctx is done, on a connection of its own:
// a reader that stalls must not hold up the events. Every replica does so,
// whether it leads or not.
func runLogService(ctx context.Context, cfg config, urls []string, kube *rest.Config, log *zap.Logger, reg prometheus.Registerer) error {
	source, err := newLogSource(cfg, kube, log, reg)
	if err != nil {
		return fmt.Errorf("set up the log service: %w", err)
	}
	named := cfg
	named.ClusterName += " logs" // as the server lists the connection
	link, err := connectNATS(ctx, named, urls, log.Named("nats"))
	if err != nil {
		if ctx.Err() != nil {
			return nil // the start was given up
		}
		return err
	}
	defer link.close(false) // the service has flushed what it said
	// A server that takes nothing any more holds up whoever sends.
	defer killWhenStuck(ctx, logStopGrace, link.cut)()
	service, err := logsvc.New(cfg.logsConfig(), source, link.nc, log, reg)
	if err != nil {
		return fmt.Errorf("set up the log service: %w", err)
	}
	err = service.Run(ctx)
	if failure := link.failure(); err != nil && failure != nil {
		return failure
	}
	return err
}
