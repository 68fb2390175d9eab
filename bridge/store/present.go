package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

var (
	// ErrGone reports that the stream or the bucket has been deleted.
	ErrGone = errors.New("the stream or the bucket is gone")
	// ErrLostTail reports that a stream ends before what it acknowledged.
	ErrLostTail = errors.New("acknowledged messages are lost")
	// ErrUnread reports that stream or bucket could not be read: nothing is known of their state.
	ErrUnread = errors.New("stream and bucket cannot be read")
	// ErrSizeChanged reports that events may be too large now, or need not be truncated.
	ErrSizeChanged = errors.New("the largest message that it takes was changed")
)

// CheckTail returns ErrLostTail for a stream that ends at last, before a sequence that it had.
func CheckTail(stream string, last, had uint64) error {
	if last >= had {
		return nil
	}
	return fmt.Errorf("%w: stream %s ends at sequence %d, it had acknowledged %d", ErrLostTail, stream, last, had)
}

// CheckTails is CheckTail of the stream and of the bucket's stream.
func (c Checkpoint) CheckTails(stream, bucket *jetstream.StreamInfo) error {
	return cmp.Or(CheckTail(stream.Config.Name, stream.State.LastSeq, c.Stream), CheckTail(bucket.Config.Name, bucket.State.LastSeq, c.Bucket))
}

// Present checks that stream and bucket are there and fit. It returns ErrUnread without an answer.
// Their settings are checked at each call: one may have changed between the checks of the start and
// the first call.
func (s *Storage) Present(ctx context.Context) (stream, bucket *jetstream.StreamInfo, err error) {
	stream, unknownStream, err := s.still(ctx, s.Stream)
	if err != nil {
		return nil, nil, err
	}
	bucket, unknownBucket, err := s.still(ctx, s.Bucket)
	if err != nil {
		return nil, nil, err
	}
	size := s.Stream.Config.MaxMsgSize
	if !sameConfig(stream.Config, s.Stream.Config) || !slices.Equal(unknownStream, s.unknownStream) {
		s.Stream, s.unknownStream = stream, unknownStream
		s.Log.Info("the stream's configuration has changed", zap.String("stream", s.Config.Stream))
		s.logStream()
	}
	if !sameConfig(bucket.Config, s.Bucket.Config) || !slices.Equal(unknownBucket, s.unknownBucket) {
		s.Bucket, s.unknownBucket = bucket, unknownBucket
		s.Log.Info("the bucket's configuration has changed", zap.String("bucket", s.Config.Bucket))
		s.logBucket()
	}
	if err := cmp.Or(s.InspectStream(), s.InspectBucket(), s.CheckIdentity(stream, bucket)); err != nil {
		return nil, nil, err
	}
	if stream.Config.MaxMsgSize != size {
		return nil, nil, fmt.Errorf("%w: stream %s", ErrSizeChanged, s.Config.Stream)
	}
	return stream, bucket, nil
}

func (s *Storage) still(ctx context.Context, known *jetstream.StreamInfo) (*jetstream.StreamInfo, []string, error) {
	now, unknown, err := s.read(ctx, known.Config.Name)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("%w: %w", ErrUnread, err)
	case now == nil:
		return nil, nil, fmt.Errorf("%w: %s", ErrGone, known.Config.Name)
	}
	if err := CheckTail(known.Config.Name, now.State.LastSeq, known.State.LastSeq); err != nil {
		return nil, nil, err
	}
	if !now.Created.Equal(known.Created) {
		return nil, nil, fmt.Errorf("%w: %s is another one than before", ErrGone, known.Config.Name)
	}
	return now, unknown, nil
}

// sameConfig compares all but the metadata, which bridges and servers write.
func sameConfig(a, b jetstream.StreamConfig) bool {
	a.Metadata, b.Metadata = nil, nil
	return reflect.DeepEqual(a, b)
}
