package config

import (
	"time"

	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/natsconn"
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
	LogInboxPrefix string

	MaxAppReads        int
	MaxPendingAppReads int
	MaxAppWrites       int
	EnableWrites       bool
	Deploy             kservice.DeployConfig // empty Namespace: see deployNamespace

	HTTPListen string
	LogLevel   string
	LogFormat  string

	// Of verify and logs.
	Timeout time.Duration // of each wait for an answer

	// Of verify alone.
	Settle time.Duration
	Repair bool
	JSON   bool

	// Of logs alone.
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

	// Not options.
	Kube  *rest.Config   // of the cluster; nil for logs
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
		Settle:        5 * time.Second,
		Timeout:       time.Minute,
		Tail:          1000,
		Window:        client.DefaultWindow,
		Color:         WhenAuto,
		ReplicaPrefix: WhenAuto,
	}
	if command&Serve == 0 {
		cfg.LogLevel = "warn" // the output of the command matters, not its log
	}
	if command == Logs {
		cfg.Timeout = 10 * time.Second
	}
	return cfg
}
