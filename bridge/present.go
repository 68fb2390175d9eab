package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

var (
	// errStorageGone reports that the stream or the bucket has been deleted.
	errStorageGone = errors.New("the stream or the bucket is gone")
	// errLostTail reports that the stream, or the bucket's stream, ends before what it acknowledged.
	errLostTail = errors.New("acknowledged messages are lost")
	// errSizeChanged reports that events may be too large now, or need not be truncated.
	errSizeChanged = errors.New("the largest message that it takes was changed")
)

// checkTail returns errLostTail for a stream that ends at last, before a sequence that it had.
func checkTail(stream string, last, had uint64) error {
	if last >= had {
		return nil
	}
	return fmt.Errorf("%w: stream %s ends at sequence %d, it had acknowledged %d", errLostTail, stream, last, had)
}

// checkTails is checkTail of the stream and of the bucket's stream.
func (w witness) checkTails(stream, bucket *jetstream.StreamInfo) error {
	return cmp.Or(checkTail(stream.Config.Name, stream.State.LastSeq, w.Stream), checkTail(bucket.Config.Name, bucket.State.LastSeq, w.Bucket))
}

// present checks that stream and bucket exist, are the same as before and are fit. Both are nil if
// NATS does not answer.
func (s *storage) present(ctx context.Context) (stream, bucket *jetstream.StreamInfo, err error) {
	if stream, err = s.still(ctx, s.stream); err != nil || stream == nil {
		return nil, nil, err
	}
	if bucket, err = s.still(ctx, s.bucket); err != nil || bucket == nil {
		return nil, nil, err
	}
	if before := s.stream.Config; !sameConfig(stream.Config, before) {
		s.stream = stream
		s.log.Info("the stream's configuration has changed", zap.String("stream", s.cfg.Stream))
		if err := s.inspectStream(); err != nil {
			return nil, nil, err
		}
		if stream.Config.MaxMsgSize != before.MaxMsgSize {
			return nil, nil, fmt.Errorf("%w: stream %s", errSizeChanged, s.cfg.Stream)
		}
	}
	if !sameConfig(bucket.Config, s.bucket.Config) {
		s.bucket = bucket
		s.log.Info("the bucket's configuration has changed", zap.String("bucket", s.cfg.Bucket))
		if err := s.inspectBucket(); err != nil {
			return nil, nil, err
		}
	}
	return stream, bucket, nil
}

func (s *storage) still(ctx context.Context, known *jetstream.StreamInfo) (*jetstream.StreamInfo, error) {
	now, err := s.info(ctx, known.Config.Name)
	switch {
	case err != nil:
		return nil, nil //nolint:nilerr // no answer is none of the findings
	case now == nil:
		return nil, fmt.Errorf("%w: %s", errStorageGone, known.Config.Name)
	}
	if err := checkTail(known.Config.Name, now.State.LastSeq, known.State.LastSeq); err != nil {
		return nil, err
	}
	if !now.Created.Equal(known.Created) {
		return nil, fmt.Errorf("%w: %s is another one than before", errStorageGone, known.Config.Name)
	}
	return now, nil
}

// sameConfig compares all but the metadata, which bridges and servers write.
func sameConfig(a, b jetstream.StreamConfig) bool {
	a.Metadata, b.Metadata = nil, nil
	return reflect.DeepEqual(a, b)
}
