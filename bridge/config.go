package bridge

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// Encoding is the form of the messages in the stream and in the bucket.
type Encoding string

// The encodings. Every message says which one it has in its
// ce-datacontenttype header.
const (
	EncodingJSON     Encoding = "json"     // protobuf JSON, compacted
	EncodingProtobuf Encoding = "protobuf" // binary, deterministic, keeps unknown fields
)

// contentType is the ce-datacontenttype of an encoding.
func (e Encoding) contentType() string {
	if e == EncodingProtobuf {
		return subjects.ContentTypeProtobuf
	}
	return subjects.ContentTypeJSON
}

// Config is what a Bridge needs to know. The zero value of a field that is
// not mentioned as optional is an error.
type Config struct {
	// ClusterName names the cluster in ce-source and in the metadata of the
	// stream and the bucket.
	ClusterName string
	// Namespaces to watch; empty means all.
	Namespaces []string

	// Prefix of every subject; subjects.DefaultPrefix unless there is a reason.
	Prefix string
	// Stream and Bucket are the names of the event stream and the snapshot.
	Stream, Bucket string
	// StreamReplicas, StreamMaxAge and StreamMaxBytes configure a stream that
	// this bridge creates; an existing one is not changed. Zero age or bytes:
	// no limit.
	StreamReplicas int
	StreamMaxAge   time.Duration
	StreamMaxBytes int64
	// MarkerMaxAge is how long the bucket keeps the delete marker of an app; zero:
	// for ever. A reader of the bucket that was disconnected for longer does not see that
	// the app was deleted.
	MarkerMaxAge time.Duration
	// Encoding of new messages.
	Encoding Encoding

	// App configures the conversion; its zero value gives apps without a URL.
	App kservice.Config

	// WatchBufferSize is how many changes of one app may wait for the stream
	// before its updates are merged.
	WatchBufferSize int
	// PendingBytes is how much memory the waiting changes of all apps may take
	// before updates are merged whatever their number. At four times that the
	// waiting changes are dropped and found again by a resync.
	PendingBytes int64

	// MaxDelay is how old a change may be that is not published, or an event
	// that the bucket does not reflect, and how long Kubernetes may be unavailable,
	// before Ready reports it.
	MaxDelay time.Duration

	// AuditInterval is how often cluster, informers, stream and bucket are compared while the bridge
	// runs; zero: never.
	AuditInterval time.Duration
	// WatchLimits are how long lists and watches on Kubernetes may show nothing; the
	// zero value gives the defaults.
	WatchLimits watch.Limits

	// AcceptReset goes on when the cluster's history is older than what was
	// published, or when the cluster of that name has another identity.
	AcceptReset bool
	// AllowUnsafeStream turns the refusal of a stream whose configuration can
	// lose acknowledged events into a warning.
	AllowUnsafeStream bool

	// LeaderElect lets only the holder of the Lease LeaseName in
	// LeaseNamespace publish. Identity names this replica in it.
	LeaderElect                         bool
	LeaseNamespace, LeaseName, Identity string

	// FlushTimeout bounds how long a shutdown waits for what is queued.
	FlushTimeout time.Duration
}

// Validate reports every field that is wrong, joined.
func (c Config) Validate() error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("%s %q: %s", field, fmt.Sprint(value), want))
	}
	if err := subjects.ValidateClusterName(c.ClusterName); err != nil {
		errs = append(errs, err)
	}
	for _, ns := range c.Namespaces {
		if strings.TrimSpace(ns) == "" {
			bad("Namespaces", ns, "a namespace must not be empty")
		}
	}
	if _, err := subjects.New(c.Prefix); err != nil {
		errs = append(errs, fmt.Errorf("prefix: %w", err))
	}
	if err := subjects.ValidateStream(c.Stream); err != nil {
		errs = append(errs, err)
	}
	if err := subjects.ValidateBucket(c.Bucket); err != nil {
		errs = append(errs, err)
	}
	if c.StreamReplicas < 1 || c.StreamReplicas > 5 {
		bad("StreamReplicas", c.StreamReplicas, "must be 1 to 5")
	}
	if c.StreamMaxAge < 0 {
		bad("StreamMaxAge", c.StreamMaxAge, "must not be negative")
	}
	if c.StreamMaxBytes < 0 {
		bad("StreamMaxBytes", c.StreamMaxBytes, "must not be negative")
	}
	if c.MarkerMaxAge < 0 {
		bad("MarkerMaxAge", c.MarkerMaxAge, "must not be negative")
	}
	if c.Encoding != EncodingJSON && c.Encoding != EncodingProtobuf {
		bad("Encoding", c.Encoding, "must be json or protobuf")
	}
	if c.WatchBufferSize < 1 {
		bad("WatchBufferSize", c.WatchBufferSize, "must be at least 1")
	}
	if c.PendingBytes < 1 {
		bad("PendingBytes", c.PendingBytes, "must be at least 1")
	}
	if c.MaxDelay <= 0 {
		bad("MaxDelay", c.MaxDelay, "must be positive")
	}
	if c.AuditInterval < 0 {
		bad("AuditInterval", c.AuditInterval, "must not be negative")
	}
	if c.LeaderElect && (c.LeaseNamespace == "" || c.LeaseName == "" || c.Identity == "") {
		bad("LeaseNamespace/LeaseName/Identity", c.LeaseNamespace+"/"+c.LeaseName+"/"+c.Identity, "are needed for leader election")
	}
	if c.FlushTimeout < 0 {
		bad("FlushTimeout", c.FlushTimeout, "must not be negative")
	}
	return errors.Join(errs...)
}
