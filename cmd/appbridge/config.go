package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/appbridge/appbridge/bridge"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/logsvc/client"
	"github.com/appbridge/appbridge/subjects"
)

// config is everything that the commands can be told, one field for each
// option of the table in options.go.
type config struct {
	ConfigFile string

	Kubeconfig  string // empty: in-cluster, else the default kubeconfig
	Namespaces  []string
	ClusterName string

	NATSURL              []string
	NATSCreds            string
	NATSNKey             string
	NATSTLSCA            string
	NATSTLSCert          string
	NATSTLSKey           string
	NATSEmbedded         bool
	NATSEmbeddedDir      string
	NATSEmbeddedListen   string
	NATSEmbeddedMaxBytes int64 // 0: see embedded.maxStore

	Prefix            string
	Stream            string
	Bucket            string
	StreamReplicas    int
	StreamMaxAge      time.Duration // 0: for ever
	MarkerMaxAge      time.Duration // 0: for ever
	StreamMaxBytes    int64         // 0: no limit
	Encoding          bridge.Encoding
	AllowUnsafeStream bool
	AcceptReset       bool

	BaseDomain  string
	Scheme      string
	IngressPort int

	WatchBufferSize int
	PendingBytes    int64
	FlushTimeout    time.Duration
	MaxDelay        time.Duration
	AuditInterval   time.Duration // 0: never

	LeaderElect    bool
	LeaseNamespace string // empty: the pod's own
	LeaseName      string

	MaxLogStreams  int
	MaxPodStreams  int
	MaxLogRate     int64
	LogInboxPrefix string

	MaxAppReads           int
	MaxPendingAppReads    int
	MaxAppWrites          int
	EnableWrites          bool
	DeployNamespace       string        // empty: see deployNamespace
	DefaultRequestTimeout time.Duration // 0: that of Knative
	MaxRequestTimeout     time.Duration
	DefaultEnv            map[string]string
	DefaultServiceAccount string
	EndpointSuffix        string

	AllowedServiceAccounts []string
	AllowedReferences      []kservice.Reference

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
	Since         time.Duration // 0: no limit; sinceStart
	SinceTime     time.Time     // zero: no limit
	Replica       string        // empty: all
	Container     string        // empty: the app's own
	Previous      bool
	Timestamps    bool
	Include       string
	Exclude       string
	MaxDuration   time.Duration // 0: no limit
	Window        int
	Color         when
	ReplicaPrefix when
	RawOutput     bool
}

// defaultNamespace is where Flyte puts apps.
const defaultNamespace = "flyte"

// defaults is the one place where a default is written down.
func defaults() config {
	return config{
		Namespaces:            []string{defaultNamespace},
		ClusterName:           "default",
		NATSURL:               []string{"nats://127.0.0.1:4222"},
		NATSEmbeddedDir:       "./appbridge-data",
		NATSEmbeddedListen:    "127.0.0.1:4222",
		Prefix:                subjects.DefaultPrefix,
		Stream:                subjects.DefaultStream,
		Bucket:                subjects.DefaultBucket,
		StreamReplicas:        1,
		Encoding:              bridge.EncodingJSON,
		WatchBufferSize:       100,
		PendingBytes:          256 << 20,
		FlushTimeout:          10 * time.Second,
		MaxDelay:              30 * time.Second,
		AuditInterval:         10 * time.Minute,
		LeaseName:             "appbridge",
		MaxLogStreams:         100,
		MaxPodStreams:         500,
		MaxLogRate:            16 << 20,
		LogInboxPrefix:        "_INBOX",
		MaxAppReads:           4,
		MaxPendingAppReads:    400,
		MaxAppWrites:          1000,
		DefaultRequestTimeout: 5 * time.Minute,
		MaxRequestTimeout:     time.Hour,
		EndpointSuffix:        "{{ project }}-{{ domain }}",
		HTTPListen:            "127.0.0.1:8080",
		LogLevel:              "info",
		LogFormat:             logFormatAuto,
		Settle:                5 * time.Second,
		Timeout:               time.Minute,
		Tail:                  1000,
		Window:                client.DefaultWindow,
		Color:                 whenAuto,
		ReplicaPrefix:         whenAuto,
	}
}

// bridgeConfig is the part of the configuration that the bridge needs.
// Identity names this process in the Lease.
func (c config) bridgeConfig(identity string) bridge.Config {
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

// newIdentity names this process in the Lease. The host name alone would not
// do: containers that share a host's network share its name and have the same
// process ids.
func newIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read the host name for the lease: %w", err)
	}
	return host + "_" + strings.ToLower(rand.Text()[:12]), nil
}
