package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
)

// appsConfig is the part of the configuration that the app operations need.
func (c config) appsConfig() appsvc.Config {
	shared := c.bridgeConfig("")
	return appsvc.Config{
		Prefix:          c.Prefix,
		InboxPrefix:     c.LogInboxPrefix,
		MaxReads:        c.MaxAppReads,
		MaxPendingReads: c.MaxPendingAppReads,
		MaxWrites:       c.MaxAppWrites,
		Version:         currentBuild().Version,
		ClusterName:     c.ClusterName,
		App:             shared.App,
		EnableWrites:    c.EnableWrites,
		Namespaces:      shared.Namespaces,
		Deploy: kservice.DeployConfig{
			Namespace:             c.deployNamespace(),
			DefaultRequestTimeout: c.DefaultRequestTimeout,
			MaxRequestTimeout:     c.MaxRequestTimeout,
			DefaultEnv:            c.DefaultEnv,
			DefaultServiceAccount: c.DefaultServiceAccount,
			SuffixTemplate:        c.EndpointSuffix,
			Fence:                 kservice.Fence{ServiceAccounts: c.AllowedServiceAccounts, References: c.AllowedReferences},
		},
	}
}

// checkOwnAccount makes sure that apps do not get the service account of this program by default.
func (c config) checkOwnAccount(kube *rest.Config, found *problems) {
	switch own := ownServiceAccount(kube, c.Namespaces); {
	case !c.EnableWrites || own == "" || own != cmp.Or(c.DefaultServiceAccount, "default"):
	case c.DefaultServiceAccount == "":
		found.add("default-service-account: not set, and apps that name none would run as %q, the service account of appbridge itself: want another one, or a service account of its own for appbridge", own)
	default:
		found.add("default-service-account: %q: the service account of appbridge itself: want another one", own)
	}
}

// deployNamespace is where an app goes that is not there yet.
func (c config) deployNamespace() string {
	switch {
	case c.DeployNamespace != "":
		return c.DeployNamespace
	case allNamespaces(c.Namespaces):
		return defaultNamespace
	default:
		return c.Namespaces[0]
	}
}

// runAppService answers requests for app operations until ctx is done. Every
// replica does so, whether it leads or not.
func runAppService(ctx context.Context, cfg config, urls []string, kube *rest.Config, cache appsvc.Cache, log *zap.Logger, reg prometheus.Registerer) error {
	apps := cfg.appsConfig()
	if fence := &apps.Deploy.Fence; apps.EnableWrites {
		fence.OwnServiceAccount = ownServiceAccount(kube, cfg.Namespaces)
		log.Info("writes are on: apps can be deployed, stopped and deleted", zap.String("deployNamespace", apps.Deploy.Namespace),
			zap.Strings("allowedServiceAccounts", fence.ServiceAccounts), zap.Stringers("allowedReferences", fence.References), zap.String("ownServiceAccount", fence.OwnServiceAccount))
	} else {
		log.Info("writes are off: apps can be read alone; --enable-writes turns them on")
	}
	// The client's own limit would let requests wait where the service, which
	// bounds what it does at one time, cannot see it.
	unlimited := rest.AddUserAgent(rest.CopyConfig(kube), "apps")
	unlimited.QPS = -1
	return serveOn(ctx, cfg, urls, "apps", log, func(nc *nats.Conn) (service, error) {
		s, err := appsvc.New(apps, cache, unlimited, nc, log, reg)
		if err != nil {
			return nil, fmt.Errorf("set up the app operations: %w", err)
		}
		return s, nil
	})
}
