package bridge

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// duplicateWindow is how long a stream remembers message ids.
const duplicateWindow = 2 * time.Minute

// establish creates and marks the stream and the bucket if they are missing or not marked. Those that it
// creates go on behind the sequences that were acknowledged.
func (s *storage) establish(ctx context.Context, known witness) (err error) {
	if s.stream == nil {
		if s.stream, err = s.createStream(ctx, known.Stream); err != nil {
			return err
		}
	}
	if s.bucket == nil {
		if s.bucket, err = s.createBucket(ctx, known.Bucket); err != nil {
			return err
		}
	}
	if name := s.otherName(s.stream.Config); name != "" {
		s.log.Warn("the cluster name has changed: new events have another ce-source",
			zap.String("stream", s.cfg.Stream), zap.String("before", name), zap.String("clusterName", s.cfg.ClusterName))
	}
	if s.stream, err = s.mark(ctx, "stream", s.stream, s.metadata()); err != nil {
		return err
	}
	if s.bucket, err = s.mark(ctx, "bucket", s.bucket, s.bucketMetadata()); err != nil {
		return err
	}
	s.log.Info("using the stream", zap.String("stream", s.cfg.Stream), zap.Uint64("lastSequence", s.stream.State.LastSeq),
		zap.String("acknowledged", ackMeaning(s.stream.Config)))
	return nil
}

func (s *storage) metadata() map[string]string {
	return map[string]string{
		subjects.MetadataClusterUID:  s.cfg.ClusterUID,
		subjects.MetadataClusterName: s.cfg.ClusterName,
		subjects.MetadataStreamID:    s.id,
	}
}

func (s *storage) bucketMetadata() map[string]string {
	metadata := s.metadata()
	metadata[subjects.MetadataStream] = s.cfg.Stream
	return metadata
}

func (s *storage) createBucket(ctx context.Context, known uint64) (*jetstream.StreamInfo, error) {
	if _, err := s.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket:      s.cfg.Bucket,
		Description: "Current state of Flyte apps, written by appbridge",
		History:     1,
		Storage:     jetstream.FileStorage,
		Replicas:    s.cfg.Replicas,
		Metadata:    s.bucketMetadata(),
	}); err != nil {
		return nil, s.explainCreate("create bucket "+s.cfg.Bucket, err)
	}
	s.log.Info("created the bucket", zap.String("bucket", s.cfg.Bucket))
	name := subjects.BucketStream(s.cfg.Bucket)
	if known > 0 {
		if err := s.carryEmptyBucket(ctx, known); err != nil {
			return nil, err
		}
	}
	info, err := s.info(ctx, name)
	if err == nil && info == nil {
		err = fmt.Errorf("bucket %s is gone already", s.cfg.Bucket)
	}
	return info, err
}

// carryEmptyBucket has the stream of a bucket without messages go on behind sequence to.
func (s *storage) carryEmptyBucket(ctx context.Context, to uint64) error {
	stream, err := s.js.Stream(ctx, subjects.BucketStream(s.cfg.Bucket))
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSequence(to+1))
	}
	if err != nil {
		return fmt.Errorf("carry bucket %s past sequence %d: %w", s.cfg.Bucket, to, err)
	}
	return nil
}

func (s *storage) createStream(ctx context.Context, known uint64) (*jetstream.StreamInfo, error) {
	cfg := jetstream.StreamConfig{
		Name:        s.cfg.Stream,
		Description: "Changes of Flyte apps, published by appbridge",
		Subjects:    []string{s.subjects.Events()},
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.FileStorage,
		Discard:     jetstream.DiscardOld,
		Replicas:    s.cfg.Replicas,
		MaxAge:      s.cfg.MaxAge,
		MaxBytes:    -1,
		Duplicates:  duplicateWindow,
		AllowDirect: true,
		Metadata:    s.metadata(),
	}
	if s.cfg.MaxAge > 0 && s.cfg.MaxAge < duplicateWindow {
		cfg.Duplicates = s.cfg.MaxAge
	}
	if s.cfg.MaxBytes > 0 {
		cfg.MaxBytes = s.cfg.MaxBytes
	}
	if known > 0 {
		// Positions never step back: consumers keep theirs.
		cfg.FirstSeq = known + 1
	}
	stream, err := s.js.CreateStream(ctx, cfg)
	if err != nil {
		return nil, s.explainCreate("create stream "+s.cfg.Stream, err)
	}
	s.log.Info("created the stream", zap.String("stream", s.cfg.Stream), zap.Uint64("firstSequence", known+1),
		zap.Int("replicas", cfg.Replicas))
	return stream.CachedInfo(), nil
}

const (
	codeReplicasNotSupported  jetstream.ErrorCode = 10074 // a single server has no replicas
	codeInsufficientResources jetstream.ErrorCode = 10005 // "no suitable peers for placement"
)

// explainCreate returns a ConfigError for an error that only an operator can fix.
func (s *storage) explainCreate(what string, err error) error {
	if code := errorCode(err); code == codeReplicasNotSupported || code == codeInsufficientResources {
		return &app.ConfigError{
			Field: "stream-replicas", Value: strconv.Itoa(s.cfg.Replicas),
			Problem: fmt.Sprintf("%s: %v", what, err), Repair: "ask for no more replicas than there are JetStream servers",
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// mark writes metadata that a stream lacks. An empty value removes the key.
func (s *storage) mark(ctx context.Context, what string, info *jetstream.StreamInfo, metadata map[string]string) (*jetstream.StreamInfo, error) {
	missing := map[string]string{}
	for k, v := range metadata {
		if info.Config.Metadata[k] != v {
			missing[k] = v
		}
	}
	if len(missing) == 0 {
		return info, nil
	}
	// Read again: the configuration may have changed since.
	now, err := s.info(ctx, info.Config.Name)
	if err == nil && now == nil {
		err = fmt.Errorf("%s %s is gone", what, info.Config.Name)
	}
	if err != nil {
		return nil, err
	}
	cfg := now.Config
	cfg.Metadata = maps.Clone(cfg.Metadata)
	if cfg.Metadata == nil {
		cfg.Metadata = map[string]string{}
	}
	maps.Copy(cfg.Metadata, missing)
	maps.DeleteFunc(cfg.Metadata, func(_, v string) bool { return v == "" })
	stream, err := s.js.UpdateStream(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("mark %s %s: %w", what, cfg.Name, err)
	}
	s.log.Info("updated the metadata", zap.String(what, cfg.Name), zap.Any("before", now.Config.Metadata), zap.Any("now", missing))
	return stream.CachedInfo(), nil
}
