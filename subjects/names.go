package subjects

import (
	"fmt"
	"strings"
)

// The names used when nothing else is configured.
const (
	// DefaultPrefix begins every subject of ours except the bucket's.
	DefaultPrefix = "flyte.apps"
	// DefaultStream is the JetStream stream that holds the events.
	DefaultStream = "FLYTE_APPS"
	// DefaultBucket is the KV bucket that holds the current state.
	DefaultBucket = "flyte-apps"
)

// Keys in the metadata of stream and bucket. They say whose history it is, so
// that the bridge of another cluster leaves it alone.
const (
	// MetadataClusterUID holds the uid of the namespace kube-system.
	MetadataClusterUID = "appbridge-cluster-uid"
	// MetadataClusterName holds the configured name of the cluster.
	MetadataClusterName = "appbridge-cluster-name"
	// MetadataStream, on the bucket, holds the name of the stream that it
	// reflects.
	MetadataStream = "appbridge-stream"
	// MetadataResetSequence holds the sequence of the newest event that was
	// published before the cluster's history was reset.
	MetadataResetSequence = "appbridge-reset-sequence"
	// MetadataStreamID holds the identity of the event stream, on the stream and
	// on the bucket: random, set when they are made or first marked. A stream that
	// is created again in the place of a missing one keeps it, a restored one too.
	MetadataStreamID = "appbridge-stream-id"
	// MetadataLostRanges, on the stream, holds the newest ranges of sequences
	// that were lost, in the form of FormatLostRanges, oldest first.
	MetadataLostRanges = "appbridge-lost-ranges"
	// MetadataLostPending, on the stream, holds the range that a bridge is
	// filling and of which there is no notice yet, in the form of LostRange.String.
	MetadataLostPending = "appbridge-lost-pending"
)

const (
	// MaxPrefixBytes is the longest prefix that is accepted. Together with
	// MaxKeyBytes it keeps every subject, also as a consumer's filter, below a
	// server's limit for one protocol line.
	MaxPrefixBytes = 255
	// MaxStreamBytes is the longest stream name that a JetStream server takes.
	MaxStreamBytes = 255
	// MaxBucketBytes is the longest bucket name: its stream's name has a prefix.
	MaxBucketBytes = MaxStreamBytes - len(bucketStreamPrefix)
	// MaxClusterNameBytes is the longest cluster name that is accepted.
	MaxClusterNameBytes = 128
)

// ValidatePrefix reports whether prefix can begin our subjects: tokens of
// [A-Za-z0-9_-] joined by single dots, at most MaxPrefixBytes. Wildcards,
// spaces and a leading '$', which belongs to the server, are thus refused. The
// error wraps ErrEmptyPart, ErrInvalidName or ErrTooLong and names the value.
func ValidatePrefix(prefix string) error {
	if prefix == "" {
		return fmt.Errorf("subject prefix \"\": %w", ErrEmptyPart)
	}
	if len(prefix) > MaxPrefixBytes {
		return fmt.Errorf("subject prefix %s: %w: at most %d bytes", quote(prefix), ErrTooLong, MaxPrefixBytes)
	}
	if prefix[0] == '$' {
		return fmt.Errorf("subject prefix %s: %w: subjects that begin with '$' belong to the NATS server",
			quote(prefix), ErrInvalidName)
	}
	for token := range strings.SplitSeq(prefix, ".") {
		if token == "" {
			return fmt.Errorf("subject prefix %s: %w: a dot at the start, at the end or beside another dot",
				quote(prefix), ErrEmptyPart)
		}
		if c, bad := firstNonWord(token); bad {
			return fmt.Errorf("subject prefix %s: %w: byte %q, allowed are letters, digits, '-' and '_' in tokens joined by '.'",
				quote(prefix), ErrInvalidName, c)
		}
	}
	return nil
}

// ValidateStream reports whether name can name a stream: [A-Za-z0-9_-]+, at
// most MaxStreamBytes. The error wraps ErrEmptyPart, ErrInvalidName or
// ErrTooLong and names the value.
func ValidateStream(name string) error {
	return validateName("stream name", name, MaxStreamBytes)
}

// ValidateBucket reports whether name can name a KV bucket: [A-Za-z0-9_-]+, at
// most MaxBucketBytes. The error wraps ErrEmptyPart, ErrInvalidName or
// ErrTooLong and names the value.
func ValidateBucket(name string) error {
	return validateName("bucket name", name, MaxBucketBytes)
}

// ValidateClusterName reports whether name can name a cluster: letters, digits
// and . _ ~ -, at most MaxClusterNameBytes. It stands in a URI inside a header
// that CloudEvents percent-encodes, so that anything else would be escaped
// twice. The error wraps ErrEmptyPart, ErrInvalidName or ErrTooLong and names
// the value.
func ValidateClusterName(name string) error {
	if name == "" {
		return fmt.Errorf("cluster name \"\": %w", ErrEmptyPart)
	}
	if len(name) > MaxClusterNameBytes {
		return fmt.Errorf("cluster name %s: %w: at most %d bytes", quote(name), ErrTooLong, MaxClusterNameBytes)
	}
	for i := range len(name) {
		if !isUnreserved(name[i]) {
			return fmt.Errorf("cluster name %s: %w: byte %q, allowed are letters, digits and . _ ~ -",
				quote(name), ErrInvalidName, name[i])
		}
	}
	return nil
}

func validateName(what, name string, limit int) error {
	if name == "" {
		return fmt.Errorf("%s \"\": %w", what, ErrEmptyPart)
	}
	if len(name) > limit {
		return fmt.Errorf("%s %s: %w: at most %d bytes", what, quote(name), ErrTooLong, limit)
	}
	if c, bad := firstNonWord(name); bad {
		return fmt.Errorf("%s %s: %w: byte %q, allowed are letters, digits, '-' and '_'",
			what, quote(name), ErrInvalidName, c)
	}
	return nil
}

// firstNonWord returns the first byte of s outside [A-Za-z0-9_-].
func firstNonWord(s string) (c byte, found bool) {
	for i := range len(s) {
		if !isWord(s[i]) {
			return s[i], true
		}
	}
	return 0, false
}
