package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/subjects"
)

const (
	duplicateWindow  = 2 * time.Minute
	jetStreamTimeout = 10 * time.Second
)

// storage creates and checks the stream and the bucket.
type storage struct {
	js         jetstream.JetStream
	log        *zap.Logger
	cfg        Config
	subjects   subjects.Subjects
	clusterUID string
}

func (s *storage) metadata() map[string]string {
	return map[string]string{
		subjects.MetadataClusterUID:  s.clusterUID,
		subjects.MetadataClusterName: s.cfg.ClusterName,
	}
}

// ensureBucket makes sure that the bucket exists and may be used.
func (s *storage) ensureBucket(ctx context.Context) error {
	name := subjects.BucketStream(s.cfg.Bucket)
	stream, err := s.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if _, err := s.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:      s.cfg.Bucket,
			Description: "Current state of Flyte apps, written by appbridge",
			History:     1,
			Storage:     jetstream.FileStorage,
			Replicas:    s.cfg.StreamReplicas,
			Metadata:    s.metadata(),
		}); err != nil {
			return s.explainCreate("create bucket "+s.cfg.Bucket, err)
		}
		s.log.Info("created the bucket", zap.String("bucket", s.cfg.Bucket))
		stream, err = s.js.Stream(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("look up bucket %s: %w", s.cfg.Bucket, err)
	}
	cfg := stream.CachedInfo().Config
	var problems []string
	if cfg.MaxAge != 0 {
		problems = append(problems, fmt.Sprintf("ttl %s makes entries vanish", cfg.MaxAge))
	}
	if cfg.Retention != jetstream.LimitsPolicy {
		problems = append(problems, fmt.Sprintf("retention %s, want limits", cfg.Retention))
	}
	if len(cfg.Sources) > 0 || cfg.Mirror != nil {
		problems = append(problems, "it is fed by another stream")
	}
	if cfg.Sealed {
		problems = append(problems, "it is sealed")
	}
	if cfg.MaxMsgs > 0 || cfg.MaxBytes > 0 {
		problems = append(problems, fmt.Sprintf("a limit (%d entries, %d bytes) would refuse or drop apps", cfg.MaxMsgs, cfg.MaxBytes))
	}
	if len(problems) > 0 {
		return &ConfigError{
			Field: "bucket", Value: s.cfg.Bucket, Problem: strings.Join(problems, "; "),
			Repair: "choose another --bucket or change this one",
		}
	}
	return s.checkCluster(ctx, "bucket", s.cfg.Bucket, cfg)
}

// checkStream looks at the stream, if there is one, and returns it.
func (s *storage) checkStream(ctx context.Context) (jetstream.Stream, error) {
	stream, err := s.js.Stream(ctx, s.cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up stream %s: %w", s.cfg.Stream, err)
	}
	cfg := stream.CachedInfo().Config
	if got, want := cfg.Subjects, []string{s.subjects.Events()}; !slices.Equal(got, want) {
		return nil, &ConfigError{
			Field: "stream", Value: s.cfg.Stream,
			Problem: fmt.Sprintf("it holds the subjects %s, want %s", strings.Join(got, ", "), want[0]),
			Repair:  "choose another --stream, or the --prefix that belongs to it",
		}
	}
	if err := s.checkDurability(cfg); err != nil {
		return nil, err
	}
	return stream, s.checkCluster(ctx, "stream", s.cfg.Stream, cfg)
}

// ensureStream makes sure that the stream exists and is the one the bucket
// reflects up to position. stream is what checkStream found; known is the
// highest sequence that this process has seen acknowledged: a stream that has
// to be made anew continues behind both.
func (s *storage) ensureStream(ctx context.Context, stream jetstream.Stream, known, position uint64) (*jetstream.StreamInfo, error) {
	if stream == nil {
		var err error
		if stream, err = s.createStream(ctx, max(known, position)); err != nil {
			return nil, err
		}
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("look up stream %s: %w", s.cfg.Stream, err)
	}
	// A stream that was just made is empty, and its sequences go on from known.
	if position > info.State.LastSeq {
		return nil, &ConfigError{
			Field: "bucket", Value: s.cfg.Bucket,
			Problem: fmt.Sprintf("it reflects sequence %d, but stream %s ends at %d: they do not belong together",
				position, s.cfg.Stream, info.State.LastSeq),
			Repair: fmt.Sprintf("restore the stream, or delete the bucket (nats kv del %s) to have it written anew", s.cfg.Bucket),
		}
	}
	s.log.Info("what an acknowledgement means here",
		zap.String("stream", s.cfg.Stream), zap.Stringer("storage", info.Config.Storage),
		zap.Int("replicas", info.Config.Replicas), zap.Uint64("lastSequence", info.State.LastSeq))
	return info, nil
}

// present looks whether stream and bucket still exist and hold everything
// up to the sequence followed; created tells the stream from one of the same name.
func (s *storage) present(ctx context.Context, created time.Time, followed uint64) error {
	stream, err := s.js.Stream(ctx, s.cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w: stream %s", errStorageGone, s.cfg.Stream)
	}
	if err != nil {
		return nil //nolint:nilerr // NATS is away for the moment, which is not this check's business
	}
	if info := stream.CachedInfo(); info.State.LastSeq < followed || !info.Created.Equal(created) {
		return fmt.Errorf("%w: stream %s is another one than before", errStorageGone, s.cfg.Stream)
	}
	if _, err := s.js.Stream(ctx, subjects.BucketStream(s.cfg.Bucket)); errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w: bucket %s", errStorageGone, s.cfg.Bucket)
	}
	return nil
}

func (s *storage) createStream(ctx context.Context, known uint64) (jetstream.Stream, error) {
	cfg := jetstream.StreamConfig{
		Name:        s.cfg.Stream,
		Description: "Changes of Flyte apps, published by appbridge",
		Subjects:    []string{s.subjects.Events()},
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.FileStorage,
		Discard:     jetstream.DiscardOld,
		Replicas:    s.cfg.StreamReplicas,
		MaxAge:      s.cfg.StreamMaxAge,
		MaxBytes:    -1,
		Duplicates:  duplicateWindow,
		AllowDirect: true,
		Metadata:    s.metadata(),
	}
	if s.cfg.StreamMaxAge > 0 && s.cfg.StreamMaxAge < duplicateWindow {
		cfg.Duplicates = s.cfg.StreamMaxAge
	}
	if s.cfg.StreamMaxBytes > 0 {
		cfg.MaxBytes = s.cfg.StreamMaxBytes
	}
	if known > 0 {
		// Positions never step back: consumers keep theirs.
		cfg.FirstSeq = known + 1
	}
	stream, err := s.js.CreateStream(ctx, cfg)
	if err != nil {
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return nil, fmt.Errorf("create stream %s: %w", s.cfg.Stream, err) // another replica was faster: look again
		}
		if errorCode(err) == codeSubjectOverlap {
			return nil, &ConfigError{
				Field: "prefix", Value: s.cfg.Prefix,
				Problem: fmt.Sprintf("another stream already holds %s", s.subjects.Events()),
				Repair:  "choose another --prefix, or the --stream that holds it",
			}
		}
		return nil, s.explainCreate("create stream "+s.cfg.Stream, err)
	}
	s.log.Info("created the stream", zap.String("stream", s.cfg.Stream), zap.Uint64("firstSequence", known+1),
		zap.Int("replicas", cfg.Replicas))
	return stream, nil
}

const (
	codeSubjectOverlap        jetstream.ErrorCode = 10065
	codeReplicasNotSupported  jetstream.ErrorCode = 10074 // a single server has no replicas
	codeInsufficientResources jetstream.ErrorCode = 10005 // "no suitable peers for placement"
)

// explainCreate turns what only an operator can mend into a ConfigError.
func (s *storage) explainCreate(what string, err error) error {
	if code := errorCode(err); code == codeReplicasNotSupported || code == codeInsufficientResources {
		return &ConfigError{
			Field: "stream-replicas", Value: strconv.Itoa(s.cfg.StreamReplicas),
			Problem: fmt.Sprintf("%s: %v", what, err), Repair: "ask for no more replicas than there are JetStream servers",
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// checkDurability refuses what loses acknowledged events or breaks the fence.
func (s *storage) checkDurability(cfg jetstream.StreamConfig) error {
	var broken, unsafe []string
	if cfg.Sealed {
		broken = append(broken, "it is sealed")
	}
	if cfg.NoAck {
		broken = append(broken, "no_ack: publishes are not acknowledged")
	}
	if cfg.Mirror != nil || len(cfg.Sources) > 0 {
		broken = append(broken, "it is fed by another stream")
	}
	switch cfg.Retention {
	case jetstream.LimitsPolicy:
	case jetstream.WorkQueuePolicy:
		broken = append(broken, "its retention is a work queue, which one reader empties for all others")
	default:
		unsafe = append(unsafe, fmt.Sprintf("retention %s drops events that nobody waits for", cfg.Retention))
	}
	if cfg.Storage != jetstream.FileStorage {
		unsafe = append(unsafe, "memory storage forgets at a restart")
	}
	if cfg.MaxMsgsPerSubject > 0 {
		unsafe = append(unsafe, fmt.Sprintf("max_msgs_per_subject %d drops history", cfg.MaxMsgsPerSubject))
	}
	if cfg.PersistMode == jetstream.AsyncPersistMode {
		unsafe = append(unsafe, "persist_mode async acknowledges before it writes")
	}
	if len(broken) > 0 {
		return &ConfigError{Field: "stream", Value: s.cfg.Stream, Problem: strings.Join(broken, "; "), Repair: "choose another --stream or change this one"}
	}
	if len(unsafe) > 0 {
		if !s.cfg.AllowUnsafeStream {
			return &ConfigError{
				Field: "stream", Value: s.cfg.Stream, Problem: strings.Join(unsafe, "; "),
				Repair: "change the stream, or accept the loss with --allow-unsafe-stream",
			}
		}
		s.log.Warn("the stream can lose acknowledged events", zap.String("stream", s.cfg.Stream), zap.Strings("because", unsafe))
	}
	return nil
}

// checkCluster compares the cluster that a stream was made for with ours. One
// that names none (an operator made it) is marked.
func (s *storage) checkCluster(ctx context.Context, field, value string, cfg jetstream.StreamConfig) error {
	uid, name := cfg.Metadata[subjects.MetadataClusterUID], cfg.Metadata[subjects.MetadataClusterName]
	switch {
	case uid == s.clusterUID && name == s.cfg.ClusterName:
		return nil
	case uid == "" || uid == s.clusterUID || (s.cfg.AcceptReset && name == s.cfg.ClusterName):
	default:
		return &ConfigError{
			Field: field, Value: value,
			Problem: fmt.Sprintf("it belongs to cluster %q (uid %s), this is %q (uid %s)", name, uid, s.cfg.ClusterName, s.clusterUID),
			Repair:  "give each cluster a stream, bucket and prefix of its own; if this cluster was rebuilt under its old name, start once with --accept-reset",
		}
	}
	if cfg.Metadata == nil {
		cfg.Metadata = map[string]string{}
	}
	maps.Copy(cfg.Metadata, s.metadata())
	if _, err := s.js.UpdateStream(ctx, cfg); err != nil {
		return fmt.Errorf("mark %s %s as this cluster's: %w", field, value, err)
	}
	s.log.Info("marked as this cluster's", zap.String(field, value), zap.String("cluster", s.cfg.ClusterName))
	return nil
}

// acceptReset marks the stream: what was published up to here belongs to a
// history of the cluster that is over.
func (s *storage) acceptReset(ctx context.Context) error {
	stream, err := s.js.Stream(ctx, s.cfg.Stream)
	if err != nil {
		return fmt.Errorf("look up stream %s: %w", s.cfg.Stream, err)
	}
	cfg, last := stream.CachedInfo().Config, stream.CachedInfo().State.LastSeq
	if cfg.Metadata == nil {
		cfg.Metadata = map[string]string{}
	}
	cfg.Metadata[subjects.MetadataResetSequence] = strconv.FormatUint(last, 10)
	if _, err := s.js.UpdateStream(ctx, cfg); err != nil {
		return fmt.Errorf("mark the reset in stream %s: %w", s.cfg.Stream, err)
	}
	s.log.Warn("accepted that the cluster's history was reset", zap.Uint64("publishedUpTo", last))
	return nil
}

// resetSequence is the newest sequence of a history that is over, 0 if none is.
func resetSequence(info *jetstream.StreamInfo) uint64 {
	sequence, err := strconv.ParseUint(info.Config.Metadata[subjects.MetadataResetSequence], 10, 64)
	if err != nil {
		return 0
	}
	return sequence
}

// ConfigError is something that only an operator can mend: a stream of
// another shape, another cluster's, another history.
type ConfigError struct {
	Field, Value    string
	Problem, Repair string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("%s %q: %s; %s", e.Field, e.Value, e.Problem, e.Repair)
}
