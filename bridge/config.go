package bridge

import (
	"time"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// Encoding is the form of the messages in the stream and in the bucket.
type Encoding string

// The encodings. Every message says which one it has in its ce-datacontenttype header.
const (
	EncodingJSON     Encoding = "json"     // protobuf JSON, compacted
	EncodingProtobuf Encoding = "protobuf" // binary, deterministic, keeps unknown fields
)

func (e Encoding) contentType() string {
	if e == EncodingProtobuf {
		return subjects.ContentTypeProtobuf
	}
	return subjects.ContentTypeJSON
}

// Config is what a Bridge needs to know. It is not checked: package config does that where the
// values come in.
type Config struct {
	ClusterName string   // in ce-source and in the metadata of the stream and the bucket
	Namespaces  []string // to watch; empty means all

	Prefix         string // of every subject
	Stream, Bucket string // the names of the event stream and the snapshot
	// JetStreamDomain is the domain that stream and bucket are in; empty: that of the server.
	JetStreamDomain string
	// StreamReplicas, StreamMaxAge and StreamMaxBytes configure a stream that this bridge creates; an
	// existing one is not changed. Zero age or bytes: no limit.
	StreamReplicas int
	StreamMaxAge   time.Duration
	StreamMaxBytes int64
	// MarkerMaxAge is how long the bucket keeps the delete marker of an app; zero: for ever. A reader
	// that was disconnected for longer does not see that the app was deleted.
	MarkerMaxAge time.Duration
	Encoding     Encoding        // of new messages
	App          kservice.Config // of the conversion; zero gives apps without a URL
	// PodConditions makes what pods say a part of their App.
	PodConditions bool

	// WatchBufferSize is how many changes of one app may wait for the stream before its updates are
	// merged.
	WatchBufferSize int
	// PendingBytes is how much memory the waiting changes of all apps may take before updates are
	// merged whatever their number. At four times that the waiting changes are dropped and found again
	// by a resync.
	PendingBytes int64
	// MaxDelay is how old a change may be that is not published, or an event that the bucket does not
	// reflect, and how long Kubernetes may be unavailable, before Ready reports it.
	MaxDelay time.Duration
	// AuditInterval is how often cluster, informers, stream and bucket are compared while the bridge
	// runs; zero: never.
	AuditInterval time.Duration
	// WatchLimits are how long lists and watches on Kubernetes may show nothing; zero: the defaults.
	WatchLimits watch.Limits

	// AcceptReset goes on when the cluster's history is older than what was published, or when the
	// cluster of that name has another identity.
	AcceptReset bool
	// AllowUnsafeStream turns the refusal of a stream whose configuration can lose acknowledged events
	// into a warning.
	AllowUnsafeStream bool

	// LeaderElect lets only the holder of the Lease LeaseName in LeaseNamespace publish. Identity names
	// this replica in it.
	LeaderElect                         bool
	LeaseNamespace, LeaseName, Identity string
	// StandAside is for how long a replica does not compete for the Lease after it found that a bridge
	// with other options had begun to lead later, and for how long it is ready while a bridge of another
	// stream holds the Lease; zero: ten minutes.
	StandAside time.Duration

	FlushTimeout time.Duration // bounds how long a shutdown waits for what is queued
}
