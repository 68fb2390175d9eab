package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// fillChunk is how many fillers a stream holds at most at one time.
	fillChunk = 10_000
	// fillerBytes is what a filler takes of a stream's limit, with some room.
	fillerBytes = 512
	// WriteWindow is how many writes may be unacknowledged.
	WriteWindow = 256
	// CodeWrongLastSequence is the error code of an append: the stream, or the app, ends elsewhere.
	CodeWrongLastSequence jetstream.ErrorCode = 10071
)

// IsRefused reports whether the stream refused an append although it ends where the append expects
// it: it is full, say.
func IsRefused(err error) bool {
	code := ErrorCodeOf(err)
	return code != 0 && code != CodeWrongLastSequence
}

// HealStream fills the lost sequences, so that no event ever gets one of them, and appends a notice
// of the loss. It calls proven once an append that expects the stream's end is acknowledged: before
// that the end may be that of a leader that was cut off from its group.
//
// It can be interrupted at any point: the newest filler names the range until there is a notice.
func (s *Storage) HealStream(ctx context.Context, missing Loss, proven func()) (noticed uint64, err error) {
	lost := missing.Stream
	proven = sync.OnceFunc(proven)
	end, err := s.Fill(ctx, lost, missing.End, proven)
	if err != nil {
		return 0, fmt.Errorf("fill the lost range %s of stream %s: %w", lost, s.Config.Stream, err)
	}
	// Where others appended meanwhile, the loss may be another one by now.
	ack, err := s.JS.PublishMsg(ctx, Addressed(s.JS, s.ofLoss(s.Subjects.Notice(), lost, end)), jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, fmt.Errorf("append the notice of the lost range %s: %w", lost, err)
	}
	proven()
	s.losses.notices, s.losses.filling = append(s.losses.notices, notice{ack.Sequence, lost}), subjects.LostRange{}
	return ack.Sequence, s.RemoveFillers(ctx)
}

// AsOfNotice is a checkpoint that no loss is left of, as of the newest notice.
func (s *Storage) AsOfNotice(known Checkpoint) Checkpoint {
	known.Notice = s.losses.newest()
	if len(s.losses.notices) > 0 {
		known.Stream = max(known.Stream, known.Notice)
	}
	return known
}

// RemoveFillers purges the fillers that have a notice behind them, and drops the range that an older
// version was filling from the metadata.
func (s *Storage) RemoveFillers(ctx context.Context) (err error) {
	if s.losses.filler > 0 && s.losses.filler < s.losses.newest() && !s.Stream.Config.DenyPurge {
		handle, _, err := LookUp(ctx, s.JS, s.Config.Stream)
		if err == nil {
			err = handle.Purge(ctx, jetstream.WithPurgeSubject(s.Subjects.Lost()), jetstream.WithPurgeSequence(s.losses.newest()))
		}
		if err != nil {
			return fmt.Errorf("purge the fillers of stream %s: %w", s.Config.Stream, err)
		}
		s.losses.filler = 0
	}
	s.Stream, err = s.Mark(ctx, "stream", s.Stream, map[string]string{subjects.MetadataLostPending: ""})
	return err
}

// ofLoss is a filler or a notice of a range, which expects the stream to end at a sequence.
func (s *Storage) ofLoss(subject string, lost subjects.LostRange, end uint64) *nats.Msg {
	from, to := subjects.FormatNotice(lost)
	return &nats.Msg{Subject: subject, Header: nats.Header{
		subjects.HeaderExpectedStream:       {s.Config.Stream},
		subjects.HeaderExpectedLastSequence: {strconv.FormatUint(end, 10)},
		subjects.HeaderLostFrom:             {from},
		subjects.HeaderLostTo:               {to},
	}}
}

// Fill carries the stream's end from a sequence to the end of a lost range, and returns it. It calls
// proven once the first filler is acknowledged. The newest filler stays in the stream.
func (s *Storage) Fill(ctx context.Context, lost subjects.LostRange, from uint64, proven func()) (end uint64, err error) {
	handle, info, err := LookUp(ctx, s.JS, s.Config.Stream)
	if err != nil {
		return 0, err
	}
	if end = info.State.LastSeq; end != from {
		// The end was that of a leader that was cut off, or another bridge appends.
		return 0, fmt.Errorf("stream %s has changed meanwhile: it ends at %d, and ended at %d: reading it again", s.Config.Stream, end, from)
	}
	// A call that was interrupted may have left its fillers. One that arrives later makes the first
	// append fail, since that expects end.
	purge := func() error {
		if info.Config.DenyPurge {
			return nil // the fillers stay
		}
		return handle.Purge(ctx, jetstream.WithPurgeSubject(s.Subjects.Lost()), jetstream.WithPurgeKeep(1))
	}
	filler := s.ofLoss(s.Subjects.Lost(), lost, end)
	for n := uint64(1); end < lost.To; n = min(lost.To-end, roomFor(info.Config, info.State)) {
		if err := appendChain(ctx, s.JS, filler, end, n, proven); err != nil {
			return 0, errors.Join(err, purge())
		}
		end += n
		s.losses.filler = end
		if err := purge(); err != nil {
			return 0, err
		}
		if n > 1 || end == lost.To {
			continue // the room is known
		}
		if _, info, err = LookUp(ctx, s.JS, s.Config.Stream); err != nil {
			return 0, err
		}
	}
	return end, nil
}

// roomFor is how many fillers a stream takes without dropping an event, and one at least: a full
// stream that drops its oldest message does so for the next event as well.
func roomFor(cfg jetstream.StreamConfig, state jetstream.StreamState) uint64 {
	room := uint64(fillChunk)
	if cfg.MaxMsgs > 0 {
		room = min(room, uint64(max(0, cfg.MaxMsgs-int64(state.Msgs))))
	}
	if cfg.MaxBytes > 0 {
		room = min(room, uint64(max(0, cfg.MaxBytes-int64(state.Bytes)))/fillerBytes)
	}
	return max(room, 1)
}

// HealBucket carries the end of the bucket's stream past the sequences that it had acknowledged, so
// that none is assigned twice: it writes an existing entry again. It calls proven once a write that
// expects the end is acknowledged.
func (s *Storage) HealBucket(ctx context.Context, snap *Snapshot, to uint64, proven func()) (err error) {
	proven = sync.OnceFunc(proven)
	if snap.smallest == nil {
		err = s.carryEmpty(ctx, "bucket", subjects.BucketStream(s.Config.Bucket), to)
		if err == nil {
			proven()
		}
		return err
	}
	if err = appendChain(ctx, s.JS, snap.smallest, snap.Last, to-snap.Last, proven); err != nil {
		return fmt.Errorf("carry bucket %s past sequence %d: %w", s.Config.Bucket, to, err)
	}
	return nil
}

// appendChain appends a message n times after sequence last. Each append expects the one before. It
// calls proven for each batch, once its first append is acknowledged.
func appendChain(ctx context.Context, js jetstream.JetStream, msg *nats.Msg, last, n uint64, proven func()) error {
	for n > 0 {
		batch := make([]jetstream.PubAckFuture, 0, min(n, WriteWindow))
		for range cap(batch) {
			msg.Header.Set(subjects.HeaderExpectedLastSequence, strconv.FormatUint(last, 10))
			future, err := js.PublishMsgAsync(Addressed(js, msg), jetstream.WithRetryAttempts(0))
			if err != nil {
				return err
			}
			batch = append(batch, future)
			last++
		}
		for _, future := range batch {
			select {
			case <-future.Ok():
				proven()
			case err := <-future.Err():
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		n -= uint64(len(batch))
	}
	return nil
}
