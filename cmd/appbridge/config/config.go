package config

import (
	"time"

	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/client"
	"github.com/appbridge/appbridge/subjects"
)

// Config is the configuration of a command: one field for each option of the table in
// table.go, and what [Load] adds.
type Config struct {
	ConfigFile string

	Kubeconfig string // empty: in-cluster, else the default kubeconfig

	// Of the bridge; see [Config.Bridge] for Namespaces, App and Identity.
	bridge.Config
	BaseDomain  string
	Scheme      string
	IngressPort int

	NATS                 natsconn.Config
	NATSEmbedded         bool
	NATSEmbeddedDir      string
	NATSEmbeddedListen   string
	NATSEmbeddedMaxBytes int64 // 0: a share of the disk

	MaxLogStreams  int
	MaxPodStreams  int
	MaxLogRate     int64
	MaxReply       int64
	LogInboxPrefix string

	MaxAppReads        int
	MaxPendingAppReads int
	MaxAppWrites       int
	EnableWrites       bool
	Deploy             kservice.DeployConfig // empty Namespace: see deployNamespace

	HTTPListen string
	Pprof      bool
	LogLevel   string
	LogFormat  string

	// Of verify, logs and watch.
	Timeout time.Duration // of each wait for an answer

	// Of verify alone.
	ConfirmFor time.Duration
	Repair     bool
	JSON       bool

	// Of logs, and some of watch.
	Follow        bool
	Tail          int
	Since         time.Duration // 0: no limit; SinceStart
	SinceTime     time.Time     // zero: no limit
	Replica       string        // empty: all
	Container     string        // empty: the app's own
	Previous      bool
	Timestamps    bool
	Include       string
	Exclude       string
	MaxDuration   time.Duration // 0: no limit
	Window        int
	Color         When
	ReplicaPrefix When
	RawOutput     bool

	Watch WatchOptions

	// Not options.
	Kube  *rest.Config   // of the cluster; nil for logs and watch
	App   subjects.AppID // the operand of logs
	Lines *int           // of each replica to begin with; nil: all that Since and SinceTime allow
}

// The values of [Config.LogFormat]. Auto: console on a terminal, else JSON.
const (
	LogFormatAuto    = "auto"
	LogFormatConsole = "console"
	LogFormatJSON    = "json"
)

// defaultNamespace is where Flyte puts apps.
const defaultNamespace = "flyte"

// Default is the configuration of a command without arguments, environment and file.
func Default(command Command) Config {
	cfg := Config{
		Config: bridge.Config{
			Namespaces:      []string{defaultNamespace},
			ClusterName:     "default",
			Prefix:          subjects.DefaultPrefix,
			Stream:          subjects.DefaultStream,
			Bucket:          subjects.DefaultBucket,
			StreamReplicas:  1,
			Encoding:        bridge.EncodingJSON,
			WatchBufferSize: 100,
			PendingBytes:    256 << 20,
			FlushTimeout:    10 * time.Second,
			MaxDelay:        30 * time.Second,
			AuditInterval:   10 * time.Minute,
			LeaseName:       "appbridge",
		},
		NATS:               natsconn.Config{URLs: []string{"nats://127.0.0.1:4222"}},
		NATSEmbeddedDir:    "./appbridge-data",
		NATSEmbeddedListen: "127.0.0.1:4222",
		MaxLogStreams:      100,
		MaxPodStreams:      500,
		MaxLogRate:         16 << 20,
		MaxReply:           1 << 20,
		LogInboxPrefix:     "_INBOX",
		MaxAppReads:        4,
		MaxPendingAppReads: 400,
		MaxAppWrites:       1000,
		Deploy: kservice.DeployConfig{
			DefaultRequestTimeout: 5 * time.Minute,
			MaxRequestTimeout:     time.Hour,
			SuffixTemplate:        "{{ project }}-{{ domain }}",
		},
		HTTPListen:    "127.0.0.1:8080",
		LogLevel:      "info",
		LogFormat:     LogFormatAuto,
		ConfirmFor:    5 * time.Second,
		Timeout:       time.Minute,
		Tail:          1000,
		Window:        client.DefaultWindow,
		Color:         WhenAuto,
		ReplicaPrefix: WhenAuto,
		Watch:         WatchOptions{Output: OutputTable},
	}
	if command&Serve == 0 {
		cfg.LogLevel = "warn" // the output of the command matters, not its log
	}
	switch command {
	case Logs:
		cfg.Timeout = 10 * time.Second
	case Watch:
		cfg.Timeout = 5 * time.Minute
	}
	return cfg
}

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
		MaxReply:        c.MaxReply,
		Version:         version,
		ClusterName:     c.ClusterName,
		App:             shared.App,
		EnableWrites:    c.EnableWrites,
		Namespaces:      shared.Namespaces,
		Deploy:          c.Deploy,
	}
	apps.Deploy.Namespace = c.deployNamespace()
	if c.EnableWrites && c.Kube != nil {
		apps.Deploy.Policy.OwnServiceAccount = ownServiceAccount(c.Kube, c.Namespaces)
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
		MaxReply:    c.MaxReply,
	}
}
