package config

import (
	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/logsvc"
)

// Bridge is the configuration of the bridge. identity names this process in the Lease.
func (c Config) Bridge(identity string) bridge.Config {
	cfg := c.Config
	if allNamespaces(cfg.Namespaces) {
		cfg.Namespaces = nil
	}
	cfg.App = kservice.Config{BaseDomain: c.BaseDomain, Scheme: c.Scheme, Port: int32(c.IngressPort)}
	cfg.Identity = identity
	return cfg
}

// Apps is the configuration of the app operations.
func (c Config) Apps(version string) appsvc.Config {
	shared := c.Bridge("")
	apps := appsvc.Config{
		Prefix:          c.Prefix,
		InboxPrefix:     c.LogInboxPrefix,
		MaxReads:        c.MaxAppReads,
		MaxPendingReads: c.MaxPendingAppReads,
		MaxWrites:       c.MaxAppWrites,
		Version:         version,
		ClusterName:     c.ClusterName,
		App:             shared.App,
		EnableWrites:    c.EnableWrites,
		Namespaces:      shared.Namespaces,
		Deploy:          c.Deploy,
	}
	apps.Deploy.Namespace = c.deployNamespace()
	if c.EnableWrites && c.Kube != nil {
		apps.Deploy.Fence.OwnServiceAccount = ownServiceAccount(c.Kube, c.Namespaces)
	}
	return apps
}

// deployNamespace is the namespace of an app that is deployed for the first time.
func (c Config) deployNamespace() string {
	switch {
	case c.Deploy.Namespace != "":
		return c.Deploy.Namespace
	case allNamespaces(c.Namespaces):
		return defaultNamespace
	default:
		return c.Namespaces[0]
	}
}

// LogService is the configuration of the log service.
func (c Config) LogService(version string) logsvc.Config {
	return logsvc.Config{
		Prefix:      c.Prefix,
		MaxStreams:  c.MaxLogStreams,
		InboxPrefix: c.LogInboxPrefix,
		Version:     version,
		ClusterName: c.ClusterName,
	}
}
