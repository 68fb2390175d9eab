package main

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/cmd/appbridge/config"
)

// runAppService answers requests for app operations until ctx is done. Every
// replica does so, whether it leads or not.
func runAppService(ctx context.Context, cfg config.Config, cache appsvc.Cache, log *zap.Logger, reg prometheus.Registerer) error {
	apps := cfg.Apps(currentBuild().Version)
	if fence := apps.Deploy.Fence; apps.EnableWrites {
		log.Info("writes are on: apps can be deployed, stopped and deleted", zap.String("deployNamespace", apps.Deploy.Namespace),
			zap.Strings("allowedServiceAccounts", fence.ServiceAccounts), zap.Stringers("allowedReferences", fence.References), zap.String("ownServiceAccount", fence.OwnServiceAccount))
	} else {
		log.Info("writes are off: apps can be read alone; --enable-writes turns them on")
	}
	// The service bounds its requests itself; those pending in the client's rate limit would be
	// invisible to it.
	unlimited := rest.AddUserAgent(rest.CopyConfig(cfg.Kube), "apps")
	unlimited.QPS = -1
	return serveOn(ctx, cfg, []string{"apps"}, log, func(conns []*nats.Conn) (service, error) {
		s, err := appsvc.New(apps, cache, unlimited, conns[0], log, reg)
		if err != nil {
			return nil, fmt.Errorf("set up the app operations: %w", err)
		}
		return s, nil
	})
}
