package config

import (
	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/logsvc"
)

// NATS is where and how to connect to NATS.
func (c Config) NATS() natsconn.Config {
	return natsconn.Config{
		URLs: c.NATSURL, Creds: c.NATSCreds, NKey: c.NATSNKey,
		TLSCA: c.NATSTLSCA, TLSCert: c.NATSTLSCert, TLSKey: c.NATSTLSKey,
	}
}

// Bridge is the configuration of the bridge. identity names this process in the Lease.
func (c Config) Bridge(identity string) bridge.Config {
	namespaces := c.Namespaces
	if allNamespaces(namespaces) {
		namespaces = nil
	}
	return bridge.Config{
		ClusterName:    c.ClusterName,
		Namespaces:     namespaces,
		Prefix:         c.Prefix,
		Stream:         c.Stream,
		Bucket:         c.Bucket,
		StreamReplicas: c.StreamReplicas,
		StreamMaxAge:   c.StreamMaxAge,
		StreamMaxBytes: c.StreamMaxBytes,
		MarkerMaxAge:   c.MarkerMaxAge,
		Encoding:       c.Encoding,
		App: kservice.Config{
			BaseDomain: c.BaseDomain,
			Scheme:     c.Scheme,
			Port:       int32(c.IngressPort),
		},
		WatchBufferSize:   c.WatchBufferSize,
		PendingBytes:      c.PendingBytes,
		AcceptReset:       c.AcceptReset,
		AllowUnsafeStream: c.AllowUnsafeStream,
		LeaderElect:       c.LeaderElect,
		LeaseNamespace:    c.LeaseNamespace,
		LeaseName:         c.LeaseName,
		Identity:          identity,
		FlushTimeout:      c.FlushTimeout,
		MaxDelay:          c.MaxDelay,
		AuditInterval:     c.AuditInterval,
	}
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
	if c.EnableWrites && c.Kube != nil {
		apps.Deploy.Fence.OwnServiceAccount = ownServiceAccount(c.Kube, c.Namespaces)
	}
	return apps
}

// deployNamespace is the namespace of an app that is deployed for the first time.
func (c Config) deployNamespace() string {
	switch {
	case c.DeployNamespace != "":
		return c.DeployNamespace
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
