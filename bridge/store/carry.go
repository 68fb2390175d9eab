package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// A stream that replaces a missing one goes on behind the sequences that were acknowledged: consumers
// keep their positions. It is made empty and then purged up to there. Its metadata have the first
// sequence from the moment that it exists, so an interrupted bridge is followed by one that goes on.
//
// The setting first_seq is not used: nats-server 2.11.0 and 2.11.1 remove the messages of such a stream
// at their next restart (nats-server #6753).

// beginAt adds the first sequence of a stream that goes on behind sequence known.
func beginAt(metadata map[string]string, known uint64) map[string]string {
	if known > 0 {
		metadata[subjects.MetadataFirstSequence] = strconv.FormatUint(known+1, 10)
	}
	return metadata
}

// begun is the sequence that a stream ends at, or that an empty one has to be carried to before
// anything is appended.
func begun(info *jetstream.StreamInfo) uint64 {
	if info.State.Msgs > 0 {
		return info.State.LastSeq
	}
	return max(info.State.LastSeq, beforeFirst(info))
}

// beforeFirst is the sequence behind which the metadata of a stream have it begin, 0 without one.
func beforeFirst(info *jetstream.StreamInfo) uint64 {
	if first, err := firstSequence(info); err == nil && first > 0 {
		return first - 1
	}
	return 0
}

// firstSequence is the first sequence that the metadata of a stream have, 0 without one. It is an
// error if the stream cannot have been made with it.
func firstSequence(info *jetstream.StreamInfo) (uint64, error) {
	value := metadataOf(info, subjects.MetadataFirstSequence)
	if value == "" {
		return 0, nil
	}
	first, err := strconv.ParseUint(value, 10, 63)
	if last := info.State.LastSeq; err != nil || first == 0 || first > maxSequence || last > 0 && first > last+farAhead {
		return 0, fmt.Errorf("its metadata %s are %q, and it ends at %d", subjects.MetadataFirstSequence, value, last)
	}
	return first, nil
}

// checkFirst refuses metadata that were edited: believed, they would skip sequences without bound.
func checkFirst(field, name string, info *jetstream.StreamInfo) error {
	if _, err := firstSequence(info); err != nil {
		return &app.ConfigError{Field: field, Value: name, Problem: err.Error(), Repair: "correct them, or remove the key"}
	}
	return nil
}

// carryStream carries an empty stream behind the sequences that were acknowledged. One with messages
// that ends earlier has lost its tail.
func (s *Storage) carryStream(ctx context.Context) error {
	to := begun(s.Stream)
	if s.Stream.State.LastSeq >= to {
		return nil
	}
	if err := s.carryEmpty(ctx, "stream", s.Config.Stream, to); err != nil {
		return err
	}
	s.Log.Info("the stream goes on behind what was acknowledged", zap.String("stream", s.Config.Stream), zap.Uint64("firstSequence", to+1))
	return s.ReadStream(ctx)
}

// carryBucket is carryStream of the bucket's stream. One with entries is carried by HealBucket.
func (s *Storage) carryBucket(ctx context.Context) (err error) {
	to := begun(s.Bucket)
	if s.Bucket.State.LastSeq >= to {
		return nil
	}
	if err := s.carryEmpty(ctx, "bucket", s.Bucket.Config.Name, to); err != nil {
		return err
	}
	s.Bucket, err = s.existing(ctx, s.Bucket.Config.Name)
	return err
}

// carryEmpty has a stream without messages go on behind sequence to.
func (s *Storage) carryEmpty(ctx context.Context, what, name string, to uint64) error {
	stream, info, err := LookUp(ctx, s.JS, name)
	switch {
	case err != nil:
	case info.State.Msgs > 0:
		err = errors.New("it has messages by now")
	default:
		err = stream.Purge(ctx, jetstream.WithPurgeSequence(to+1))
	}
	if err != nil {
		return fmt.Errorf("carry %s %s past sequence %d: %w", what, name, to, err)
	}
	return nil
}
