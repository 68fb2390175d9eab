package subjects

import (
	"fmt"
	"strings"
)

// The names used when nothing else is configured.
const (
	DefaultPrefix = "flyte.apps" // begins every subject of ours except the bucket's
	DefaultStream = "FLYTE_APPS" // the JetStream stream that holds the events
	DefaultBucket = "flyte-apps" // the KV bucket that holds the current state
)

// Keys in the metadata of stream and bucket. The bridge of another cluster leaves both alone.
const (
	MetadataClusterUID  = "appbridge-cluster-uid"  // the uid of the namespace kube-system
	MetadataClusterName = "appbridge-cluster-name" // the configured name of the cluster
	MetadataStream      = "appbridge-stream"       // on the bucket: the stream that it reflects
	MetadataStreamID    = "appbridge-stream-id"    // the identity of the event stream
	// MetadataResetSequence holds the sequence of the last event before a reset of the cluster.
	MetadataResetSequence = "appbridge-reset-sequence"
	// MetadataFirstSequence holds where a stream begins that was made in place of a missing one.
	MetadataFirstSequence = "appbridge-first-sequence"
	// MetadataShape, on the stream, has the options that decide how an App looks, of the bridge that
	// began to lead last; MetadataShapeOf the random text of the term in which they were written.
	MetadataShape   = "appbridge-shape"
	MetadataShapeOf = "appbridge-shape-of"
	// Older versions wrote these to the stream; its notices of loss have the ranges.
	MetadataLostRanges  = "appbridge-lost-ranges"  // as of FormatLostRanges
	MetadataLostPending = "appbridge-lost-pending" // a LostRange being filled
)

// Limits of names.
const (
	// MaxPrefixBytes is the longest prefix that is accepted. Together with MaxKeyBytes it keeps
	// every subject, also as a consumer's filter, below a server's limit for one protocol line.
	MaxPrefixBytes = 255
	MaxStreamBytes = 255 // the longest stream name that a JetStream server takes
	// MaxBucketBytes is the longest bucket name: its stream's name has a prefix.
	MaxBucketBytes      = MaxStreamBytes - len(bucketStreamPrefix)
	MaxDomainBytes      = 255 // the longest JetStream domain that is accepted
	MaxClusterNameBytes = 128 // the longest cluster name that is accepted
)

// The errors of the functions below wrap ErrEmptyPart, ErrInvalidName or ErrTooLong and name the
// value.

// ValidatePrefix reports whether prefix can begin our subjects: tokens of [A-Za-z0-9_-] joined by
// single dots, at most MaxPrefixBytes.
func ValidatePrefix(prefix string) error {
	if strings.HasPrefix(prefix, "$") {
		return fmt.Errorf("subject prefix %s: %w: subjects that begin with '$' belong to the NATS server",
			quote(prefix), ErrInvalidName)
	}
	allowed := func(c byte) bool { return isWord(c) || c == '.' }
	err := validateName("subject prefix", prefix, MaxPrefixBytes, allowed, "letters, digits, '-' and '_' in tokens joined by '.'")
	if err == nil && strings.Contains("."+prefix+".", "..") {
		return fmt.Errorf("subject prefix %s: %w: a dot at the start, at the end or beside another dot", quote(prefix), ErrEmptyPart)
	}
	return err
}

// ValidateStream reports whether name can name a stream: [A-Za-z0-9_-]+, at most MaxStreamBytes.
func ValidateStream(name string) error {
	return validateName("stream name", name, MaxStreamBytes, isWord, "letters, digits, '-' and '_'")
}

// ValidateBucket reports whether name can name a KV bucket: [A-Za-z0-9_-]+, at most MaxBucketBytes.
func ValidateBucket(name string) error {
	return validateName("bucket name", name, MaxBucketBytes, isWord, "letters, digits, '-' and '_'")
}

// ValidateDomain reports whether name can name a JetStream domain: [A-Za-z0-9_-]+, at most
// MaxDomainBytes.
func ValidateDomain(name string) error {
	return validateName("JetStream domain", name, MaxDomainBytes, isWord, "letters, digits, '-' and '_'")
}

// ValidateClusterName reports whether name can name a cluster: letters, digits and . _ ~ -, at most
// MaxClusterNameBytes. It stands in a URI inside a header that CloudEvents percent-encodes, so that
// anything else would be escaped twice.
func ValidateClusterName(name string) error {
	return validateName("cluster name", name, MaxClusterNameBytes, isUnreserved, "letters, digits and . _ ~ -")
}

// validateName checks a name that has at most limit bytes, all of them allowed.
func validateName(what, name string, limit int, allowed func(byte) bool, want string) error {
	if name == "" {
		return fmt.Errorf("%s \"\": %w", what, ErrEmptyPart)
	}
	if len(name) > limit {
		return fmt.Errorf("%s %s: %w: at most %d bytes", what, quote(name), ErrTooLong, limit)
	}
	for i := range len(name) {
		if !allowed(name[i]) {
			return fmt.Errorf("%s %s: %w: byte %q, allowed are %s", what, quote(name), ErrInvalidName, name[i], want)
		}
	}
	return nil
}

const (
	bucketStreamPrefix  = "KV_"
	bucketSubjectPrefix = "$KV."
	apiSubjectPrefix    = "$JS.API."
)

// JetStreamAPI begins the subjects of the JetStream API in a domain, "$JS.<domain>.API."; empty: in
// that of the server, "$JS.API.". The domain must be valid or empty: nothing is checked here.
func JetStreamAPI(domain string) string {
	if domain == "" {
		return apiSubjectPrefix
	}
	return "$JS." + domain + ".API."
}

// ReadMessage is the subject of the JetStream API on which the leader of a stream returns one
// message. Domain and stream must be valid, the domain may be empty: nothing is checked here.
func ReadMessage(domain, stream string) string {
	return JetStreamAPI(domain) + "STREAM.MSG.GET." + stream
}

// PullMessages is the subject of the JetStream API on which a consumer of a stream takes requests for
// messages. Domain, stream and consumer must be valid, the domain may be empty: nothing is checked
// here.
func PullMessages(domain, stream, consumer string) string {
	return JetStreamAPI(domain) + "CONSUMER.MSG.NEXT." + stream + "." + consumer
}

// ReadStreamInfo is the subject of the JetStream API that returns the configuration and state of a
// stream. Domain and stream must be valid, the domain may be empty: nothing is checked here.
func ReadStreamInfo(domain, stream string) string {
	return JetStreamAPI(domain) + "STREAM.INFO." + stream
}

// InDomain is the subject to publish to so that a stream in a JetStream domain stores the message
// under subject. Servers pass no bucket's entry from one domain to another: it is published below the
// domain's API, "$JS.<domain>.API.$KV.<bucket>.<key>". Any other subject, and each one without a
// domain, stays as it is. The subject in an expectation's header is always the stored one. The domain
// must be valid or empty: nothing is checked here.
func InDomain(domain, subject string) string {
	if domain == "" || !strings.HasPrefix(subject, bucketSubjectPrefix) {
		return subject
	}
	return JetStreamAPI(domain) + subject
}

// BucketStream is the name of the stream behind a KV bucket, "KV_<bucket>".
func BucketStream(bucket string) string { return bucketStreamPrefix + bucket }

// BucketSubject is the subject on which the entry of a key is stored, "$KV.<bucket>.<key>". Entries
// are published there directly, since a KV client sets no headers; InDomain has the subject for a
// bucket in another JetStream domain. The bucket must be valid, the key come from AppID.Key: nothing
// is checked here.
func BucketSubject(bucket, key string) string {
	return bucketSubjectPrefix + bucket + "." + key
}

// BucketFilter matches all entries of a bucket, "$KV.<bucket>.>".
func BucketFilter(bucket string) string { return bucketSubjectPrefix + bucket + ".>" }

// ParseBucketSubject is the inverse of BucketSubject for the given bucket. It takes every key that
// NATS takes, bytes of [A-Za-z0-9/_=.-] without an empty token. It need not be the key of an app,
// which ParseKey checks. The error wraps ErrMalformed.
func ParseBucketSubject(bucket, subject string) (key string, err error) {
	key, ok := strings.CutPrefix(subject, BucketSubject(bucket, ""))
	if !ok {
		return "", fmt.Errorf("parse bucket subject %s: %w: not of bucket %s", quote(subject), ErrMalformed, quote(bucket))
	}
	for token := range strings.SplitSeq(key, ".") {
		if token == "" {
			return "", fmt.Errorf("parse bucket subject %s: %w: empty token in the key", quote(subject), ErrMalformed)
		}
		for i := range len(token) {
			if c := token[i]; !isWord(c) && c != '/' && c != '=' {
				return "", fmt.Errorf("parse bucket subject %s: %w: byte %q in the key", quote(subject), ErrMalformed, c)
			}
		}
	}
	return key, nil
}
