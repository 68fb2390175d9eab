package subjects

import (
	"fmt"
	"strings"
)

const (
	bucketStreamPrefix  = "KV_"
	bucketSubjectPrefix = "$KV."
)

// BucketStream is the name of the stream behind a KV bucket, "KV_<bucket>".
func BucketStream(bucket string) string { return bucketStreamPrefix + bucket }

// BucketSubject is the subject on which the entry of a key is stored, "$KV.<bucket>.<key>". Entries
// are published there directly, since a KV client sets no headers. The bucket must be valid, the
// key come from AppID.Key: nothing is checked here.
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
