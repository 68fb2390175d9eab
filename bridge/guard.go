package bridge

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

const (
	// storageCheck is how often a session looks at its stream and bucket.
	storageCheck = 3 * time.Second
	// reconnectCheck is how soon it does after a reconnect.
	reconnectCheck = 200 * time.Millisecond
)

var (
	errSizeChanged  = errors.New("somebody changed the largest message that it takes")
	errForeignWrite = errors.New("somebody else wrote to the bucket")
	errKeysVanished = errors.New("keys have vanished from the bucket")
)

// guard looks now and then whether stream and bucket are still what the
// session stands on. It ends the session when one of them is gone, has become
// another or is no longer fit, and has the projector look again at a bucket that
// somebody else wrote to or took keys from. The audit looks for what that does not mend.
func (s *session) guard(ctx context.Context, known storage) error {
	tick := time.NewTicker(reconnectCheck)
	defer tick.Stop()
	messages, last := known.stream.State.Msgs, time.Now()
	keys, purged := known.bucket.State.NumSubjects, uint64(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if s.nc.IsClosed() {
			return errClosed
		}
		reconnects := s.nc.Stats().Reconnects
		if !s.nc.IsConnected() || (time.Since(last) < storageCheck && reconnects == s.looked.Load()) {
			continue
		}
		last = time.Now()
		// Before the look: what is there by then stays.
		before, atLeast, acknowledged := s.projector.purged.Load(), s.projector.atLeast.Load(), s.acknowledged.get()
		look, cancel := context.WithTimeout(ctx, jetStreamTimeout)
		stream, bucket, err := known.present(look)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case stream == nil || bucket == nil:
			continue // NATS is away for the moment, which is not this check's business
		}
		if err := endsBefore(acknowledged, stream, bucket); err != nil {
			return err
		}
		s.looked.Store(reconnects)
		if cfg := stream.Config; stream.State.Msgs < messages && cfg.MaxAge == 0 && cfg.MaxBytes <= 0 && cfg.MaxMsgs <= 0 {
			s.log.Warn("messages were taken out of the stream; the apps they were of go on without",
				zap.Uint64("had", messages), zap.Uint64("has", stream.State.Msgs), zap.Uint64("firstSequence", stream.State.FirstSeq))
			s.lookNow("messages were taken out of the stream")
		}
		messages = stream.State.Msgs
		now := bucket.State.NumSubjects
		// Without what the projector may have removed itself.
		had := max(int64(keys)-int64(s.projector.purging.Load()-purged), min(atLeast, s.projector.atLeast.Load()))
		switch {
		case int64(now) < had:
			s.projector.lookAgain(fmt.Errorf("%w: it holds %d of %d", errKeysVanished, now, had))
			s.lookNow("keys were taken out of the bucket")
		case bucket.State.LastSeq > s.projector.sent.Load():
			s.projector.lookAgain(errForeignWrite)
			s.lookNow("somebody else wrote to the bucket")
		}
		keys, purged = now, before
	}
}

// endsBefore is the error of a stream, or a bucket's stream, that ends before what it acknowledged.
func endsBefore(acknowledged witness, stream, bucket *jetstream.StreamInfo) error {
	for _, s := range []struct {
		info *jetstream.StreamInfo
		want uint64
	}{{stream, acknowledged.Stream}, {bucket, acknowledged.Bucket}} {
		if s.info.State.LastSeq < s.want {
			return fmt.Errorf("%w: stream %s ends at sequence %d, it had acknowledged %d", errLostTail, s.info.Config.Name, s.info.State.LastSeq, s.want)
		}
	}
	return nil
}

// present looks whether stream and bucket are still there, the same as before,
// and fit. Both are nil when that cannot be told at the moment.
func (s *storage) present(ctx context.Context) (stream, bucket *jetstream.StreamInfo, err error) {
	if stream, err = s.still(ctx, s.stream); err != nil || stream == nil {
		return nil, nil, err
	}
	if bucket, err = s.still(ctx, s.bucket); err != nil || bucket == nil {
		return nil, nil, err
	}
	if before := s.stream.Config; !sameConfig(stream.Config, before) {
		s.stream = stream
		s.log.Info("somebody changed the configuration", zap.String("stream", s.cfg.Stream))
		if err := s.inspectStream(); err != nil {
			return nil, nil, err
		}
		if stream.Config.MaxMsgSize != before.MaxMsgSize {
			return nil, nil, fmt.Errorf("%w: stream %s", errSizeChanged, s.cfg.Stream)
		}
	}
	if !sameConfig(bucket.Config, s.bucket.Config) {
		s.bucket = bucket
		s.log.Info("somebody changed the configuration", zap.String("bucket", s.cfg.Bucket))
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
	case now.State.LastSeq < known.State.LastSeq:
		return nil, fmt.Errorf("%w: stream %s ends at sequence %d, it had ended at %d", errLostTail, known.Config.Name, now.State.LastSeq, known.State.LastSeq)
	case !now.Created.Equal(known.Created):
		return nil, fmt.Errorf("%w: %s is another one than before", errStorageGone, known.Config.Name)
	}
	return now, nil
}

// sameConfig compares all but the metadata, which bridges and servers write.
func sameConfig(a, b jetstream.StreamConfig) bool {
	a.Metadata, b.Metadata = nil, nil
	return reflect.DeepEqual(a, b)
}
