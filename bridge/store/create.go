package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/subjects"
)

// DuplicateWindow is how long a stream remembers message ids.
const DuplicateWindow = 2 * time.Minute

// Establish creates and marks the stream and the bucket if they are missing or not marked. Those
// that it creates go on behind the sequences that were acknowledged.
func (s *Storage) Establish(ctx context.Context, known Checkpoint) (err error) {
	if s.Stream == nil {
		if s.Stream, err = s.createStream(ctx, known.Stream); err != nil {
			return err
		}
	}
	if err := s.carryStream(ctx); err != nil {
		return err
	}
	if s.Bucket == nil {
		if s.Bucket, err = s.createBucket(ctx, known.Bucket); err != nil {
			return err
		}
	}
	if err := s.carryBucket(ctx); err != nil {
		return err
	}
	if name := s.OtherName(s.Stream.Config); name != "" {
		s.Log.Warn("the cluster name has changed: new events have another ce-source",
			zap.String("stream", s.Config.Stream), zap.String("before", name), zap.String("clusterName", s.Config.ClusterName))
	}
	if s.Stream, err = s.Mark(ctx, "stream", s.Stream, s.metadata()); err != nil {
		return err
	}
	if s.Bucket, err = s.Mark(ctx, "bucket", s.Bucket, s.bucketMetadata()); err != nil {
		return err
	}
	s.ownBucket = s.Bucket.Created
	s.Log.Info("using the stream", zap.String("stream", s.Config.Stream), zap.Uint64("lastSequence", s.Stream.State.LastSeq),
		zap.String("acknowledged", ackMeaning(s.Stream.Config)))
	s.logStream()
	s.logBucket()
	return nil
}

// missingConfirm is how long a stream or a bucket that is known to have existed has to be missing before
// it is made again. In that time the account must not get another stream: a server that enables
// JetStream for the account again recovers its streams one after the other, and has none of those that
// are still to come. One that is made meanwhile takes the files of the old one over, with other settings
// and without its consumers.
const missingConfirm = 5 * time.Second

// ConfirmMissing waits until a stream or a bucket that is missing counts as gone. waiting is called with
// its name before. An error: it is there by now. known is what was acknowledged.
func (s *Storage) ConfirmMissing(ctx context.Context, known Checkpoint, waiting func(name string)) error {
	var name string
	switch {
	case s.Stream == nil && (known.Stream > 0 || s.Bucket != nil):
		name = s.Config.Stream
	case s.Bucket == nil && (known.Bucket > 0 || metadataOf(s.Stream, subjects.MetadataStreamID) != ""):
		name = subjects.BucketStream(s.Config.Bucket)
	default:
		return nil
	}
	waiting(name)
	for streams := -1; ; {
		now, err := s.countStreams(ctx)
		if err != nil {
			return err
		}
		if info, err := s.Info(ctx, name); err != nil {
			return err
		} else if info != nil {
			return fmt.Errorf("stream %s was missing and is there again: reading it", name)
		}
		if now == streams {
			return nil
		}
		streams = now
		if err := retry.Wait(ctx, missingConfirm); err != nil {
			return err
		}
	}
}

// countStreams returns how many streams the account has.
func (s *Storage) countStreams(ctx context.Context) (n int, err error) {
	names := s.JS.StreamNames(ctx)
	for range names.Name() {
		n++
	}
	if err := names.Err(); err != nil {
		return 0, Unavailable("list the streams", err)
	}
	return n, nil
}

func (s *Storage) metadata() map[string]string {
	return map[string]string{
		subjects.MetadataClusterUID:  s.Config.ClusterUID,
		subjects.MetadataClusterName: s.Config.ClusterName,
		subjects.MetadataStreamID:    s.ID,
	}
}

func (s *Storage) bucketMetadata() map[string]string {
	metadata := s.metadata()
	metadata[subjects.MetadataStream] = s.Config.Stream
	return metadata
}

func (s *Storage) createBucket(ctx context.Context, known uint64) (*jetstream.StreamInfo, error) {
	if _, err := s.JS.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket:      s.Config.Bucket,
		Description: "Current state of Flyte apps, written by appbridge",
		History:     1,
		Storage:     jetstream.FileStorage,
		Replicas:    s.Config.Replicas,
		Metadata:    beginAt(s.bucketMetadata(), known),
	}); err != nil {
		return nil, s.explainCreate("create bucket "+s.Config.Bucket, err)
	}
	s.Log.Info("created the bucket", zap.String("bucket", s.Config.Bucket))
	return s.existing(ctx, subjects.BucketStream(s.Config.Bucket))
}

func (s *Storage) createStream(ctx context.Context, known uint64) (*jetstream.StreamInfo, error) {
	cfg := jetstream.StreamConfig{
		Name:        s.Config.Stream,
		Description: "Changes of Flyte apps, published by appbridge",
		Subjects:    []string{s.Subjects.Events()},
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.FileStorage,
		Discard:     jetstream.DiscardOld,
		Replicas:    s.Config.Replicas,
		MaxAge:      s.Config.MaxAge,
		MaxBytes:    cmp.Or(s.Config.MaxBytes, -1),
		Duplicates:  DuplicateWindow,
		AllowDirect: true,
		Metadata:    beginAt(s.metadata(), known),
	}
	if s.Config.MaxAge > 0 && s.Config.MaxAge < DuplicateWindow {
		cfg.Duplicates = s.Config.MaxAge
	}
	stream, err := s.JS.CreateStream(ctx, cfg)
	if err != nil {
		return nil, s.explainCreate("create stream "+s.Config.Stream, err)
	}
	s.Log.Info("created the stream", zap.String("stream", s.Config.Stream), zap.Int("replicas", cfg.Replicas))
	return stream.CachedInfo(), nil
}

const (
	codeReplicasNotSupported  jetstream.ErrorCode = 10074 // a single server has no replicas
	codeInsufficientResources jetstream.ErrorCode = 10005 // "no suitable peers for placement"
)

// peerOffline is in the error of a cluster that has enough servers, of which one is not there now: it
// has just started, or it will be back.
const peerOffline = "peer offline"

// explainCreate returns a ConfigError for an error that only an operator can fix.
func (s *Storage) explainCreate(what string, err error) error {
	code := ErrorCodeOf(err)
	if code == codeReplicasNotSupported || code == codeInsufficientResources && !strings.Contains(err.Error(), peerOffline) {
		return &app.ConfigError{
			Field: "stream-replicas", Value: strconv.Itoa(s.Config.Replicas),
			Problem: fmt.Sprintf("%s: %v", what, err), Repair: "ask for no more replicas than there are JetStream servers",
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Mark writes metadata that a stream lacks. An empty value removes the key.
//
// The server replaces the whole configuration and compares nothing: what another client changes
// between the read and the update is undone. So only a session's start, and an operator's
// --accept-reset, write metadata, and only those that a stream lacks.
func (s *Storage) Mark(ctx context.Context, what string, info *jetstream.StreamInfo, metadata map[string]string) (*jetstream.StreamInfo, error) {
	lacks := func(of *jetstream.StreamInfo) map[string]string {
		missing := maps.Clone(metadata)
		maps.DeleteFunc(missing, func(k, v string) bool { return of.Config.Metadata[k] == v })
		return missing
	}
	if len(lacks(info)) == 0 {
		return info, nil
	}
	// Read again: the configuration may have changed since.
	now, err := s.existing(ctx, info.Config.Name)
	if err != nil {
		return nil, err
	}
	missing := lacks(now)
	if len(missing) == 0 {
		return now, nil
	}
	cfg := now.Config
	cfg.Metadata = map[string]string{}
	maps.Copy(cfg.Metadata, now.Config.Metadata)
	maps.Copy(cfg.Metadata, missing)
	maps.DeleteFunc(cfg.Metadata, func(_, v string) bool { return v == "" })
	stream, err := s.JS.UpdateStream(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("mark %s %s: %w", what, cfg.Name, err)
	}
	s.Log.Info("updated the metadata", zap.String(what, cfg.Name), zap.Any("before", now.Config.Metadata), zap.Any("now", missing))
	return stream.CachedInfo(), nil
}
