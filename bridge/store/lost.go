package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// TailConfirm is how long a stream has to end before what it acknowledged to count as lost: a
	// leader that was just elected may not have applied everything yet.
	TailConfirm = time.Second
	// farAhead is how far the bucket may be ahead of everything else that is known. Entries beyond
	// that are not of this stream, or were made up.
	farAhead = 1_000_000
	// fillChunk is how many fillers a stream holds at most at one time.
	fillChunk = 10_000
	// fillerBytes is what a filler takes of a stream's limit, with some room.
	fillerBytes = 512
	// WriteWindow is how many writes may be unacknowledged.
	WriteWindow = 256
	// lostRanges is how many ranges the stream's metadata keep.
	lostRanges = 16
)

// Loss is what stream and bucket lack of what they acknowledged.
type Loss struct {
	Stream subjects.LostRange // zero: nothing
	Bucket subjects.LostRange // of sequences of the bucket's stream
}

// LossOf compares what was acknowledged with what exists. position is the highest in the bucket.
func (s *Storage) LossOf(acknowledged *Acknowledged, position, bucketLast uint64) (Loss, error) {
	var l Loss
	known, reached := acknowledged.Checkpoint(), acknowledged.Reached()
	if !known.SameHistory(s.Checkpoint()) {
		known, reached = Checkpoint{}, 0
	}
	if s.Bucket != nil && bucketLast < known.Bucket && (s.Bucket.State.Msgs > 0 || begun(s.Bucket) < known.Bucket) {
		l.Bucket = subjects.LostRange{From: bucketLast + 1, To: known.Bucket}
	}
	if s.Stream == nil {
		return l, nil // it is created behind what was acknowledged
	}
	pending, unfinished := s.pendingRange()
	highest, last := max(position, known.Stream), s.Stream.State.LastSeq
	for _, r := range s.Lost() {
		highest = max(highest, r.To) // the metadata may outlive the messages
	}
	switch {
	case last >= highest && unfinished:
		l.Stream = pending // filled, but there is no notice yet
	case begun(s.Stream) >= highest:
	case s.madeByHand(), position > max(last, known.Stream)+farAhead:
		return Loss{}, s.otherHistory("it reflects sequence %d, but stream %s ends at %d",
			highest, s.Config.Stream, last)
	default:
		// What was not acknowledged may have been delivered all the same.
		l.Stream = subjects.LostRange{From: last + 1, To: max(highest, reached)}
		if unfinished {
			l.Stream.From = min(l.Stream.From, pending.From)
		}
	}
	return l, nil
}

// pendingRange is the lost range of which there is no notice yet.
func (s *Storage) pendingRange() (subjects.LostRange, bool) {
	pending, err := subjects.ParseLostRange(metadataOf(s.Stream, subjects.MetadataLostPending))
	return pending, err == nil
}

// Lost are the ranges that the stream is known to have lost, oldest first.
func (s *Storage) Lost() []subjects.LostRange {
	ranges, err := subjects.ParseLostRanges(metadataOf(s.Stream, subjects.MetadataLostRanges))
	if err != nil {
		s.Log.Warn("cannot parse the stream's metadata", zap.String("key", subjects.MetadataLostRanges), zap.Error(err))
	}
	if pending, ok := s.pendingRange(); ok {
		ranges = MergeRanges(ranges, []subjects.LostRange{pending})
	}
	return ranges
}

// ConfirmLoss reads the ends of stream and bucket again later; an error: one has changed.
func (s *Storage) ConfirmLoss(ctx context.Context, bucketLast uint64) error {
	stream := s.Stream
	if err := retry.Wait(ctx, TailConfirm); err != nil {
		return err
	}
	if err := s.LookUp(ctx); err != nil {
		return err
	}
	if (stream == nil) != (s.Stream == nil) || (stream != nil && s.Stream.State.LastSeq != stream.State.LastSeq) {
		return fmt.Errorf("stream %s has changed meanwhile: reading it again", s.Config.Stream)
	}
	if s.Bucket != nil && s.Bucket.State.LastSeq != bucketLast {
		return fmt.Errorf("bucket %s has changed meanwhile: reading it again", s.Config.Bucket)
	}
	return nil
}

// HealStream fills the lost sequences, so that no event ever gets one of them, and appends a notice
// of the loss. It can be interrupted at any point: the next call goes on.
func (s *Storage) HealStream(ctx context.Context, lost subjects.LostRange) (noticed uint64, err error) {
	pending := map[string]string{subjects.MetadataLostPending: lost.String()}
	if s.Stream, err = s.Mark(ctx, "stream", s.Stream, pending); err != nil {
		return 0, err
	}
	if err := s.Fill(ctx, lost.To); err != nil {
		return 0, fmt.Errorf("fill the lost range %s of stream %s: %w", lost, s.Config.Stream, err)
	}
	noticed, err = s.notice(ctx, lost)
	if err != nil {
		return 0, fmt.Errorf("append the notice of the lost range %s: %w", lost, err)
	}
	// Another bridge may have marked its own range as pending meanwhile: this one counts as well.
	ranges := MergeRanges(s.Lost(), []subjects.LostRange{lost})
	ranges = ranges[max(0, len(ranges)-lostRanges):]
	s.Stream, err = s.Mark(ctx, "stream", s.Stream, map[string]string{
		subjects.MetadataLostRanges: subjects.FormatLostRanges(ranges), subjects.MetadataLostPending: "",
	})
	return noticed, err
}

// Fill carries the stream's end to sequence to.
func (s *Storage) Fill(ctx context.Context, to uint64) error {
	handle, info, err := LookUp(ctx, s.JS, s.Config.Stream)
	if err != nil {
		return err
	}
	last, cfg := info.State.LastSeq, info.Config
	purge := func() error {
		if cfg.DenyPurge {
			return nil // the fillers stay
		}
		return handle.Purge(ctx, jetstream.WithPurgeSubject(s.Subjects.Lost()))
	}
	// A call that was interrupted may have left its fillers. One that arrives later makes the first
	// append fail, since that expects last.
	if err := purge(); err != nil || last >= to {
		return err
	}
	if _, info, err = LookUp(ctx, s.JS, s.Config.Stream); err != nil {
		return err
	}
	if info.State.Msgs == 0 && !cfg.DenyPurge {
		return handle.Purge(ctx, jetstream.WithPurgeSequence(to+1))
	}
	filler := &nats.Msg{Subject: s.Subjects.Lost(), Header: nats.Header{subjects.HeaderExpectedStream: {s.Config.Stream}}}
	for last < to {
		n := min(to-last, roomFor(cfg, info.State))
		if err := appendChain(ctx, s.JS, filler, last, int(n)); err != nil {
			return errors.Join(err, purge())
		}
		last += n
		if err := purge(); err != nil {
			return err
		}
	}
	return nil
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

// notice appends the notice of a lost range, unless the newest is of it, and returns its sequence.
func (s *Storage) notice(ctx context.Context, lost subjects.LostRange) (uint64, error) {
	from, to := subjects.FormatNotice(lost)
	m, err := OrNone(LastMessage(ctx, s.JS, s.Config.Stream, s.Subjects.Notice()))
	switch {
	case err != nil:
		return 0, err
	case m != nil && m.Header.Get(subjects.HeaderLostFrom) == from && m.Header.Get(subjects.HeaderLostTo) == to:
		return m.Sequence, nil
	}
	if err := s.ReadStream(ctx); err != nil {
		return 0, err
	}
	ack, err := s.JS.PublishMsg(ctx, &nats.Msg{Subject: s.Subjects.Notice(), Header: nats.Header{
		subjects.HeaderExpectedStream:       {s.Config.Stream},
		subjects.HeaderExpectedLastSequence: {strconv.FormatUint(s.Stream.State.LastSeq, 10)},
		subjects.HeaderLostFrom:             {from},
		subjects.HeaderLostTo:               {to},
	}}, jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// HealBucket carries the end of the bucket's stream past the sequences that it had acknowledged, so
// that none is assigned twice: it writes an existing entry again.
func (s *Storage) HealBucket(ctx context.Context, snap *Snapshot, to uint64) error {
	if snap.smallest == nil {
		return s.carryEmptyBucket(ctx, to)
	}
	if err := appendChain(ctx, s.JS, snap.smallest, snap.Last, int(to-snap.Last)); err != nil {
		return fmt.Errorf("carry bucket %s past sequence %d: %w", s.Config.Bucket, to, err)
	}
	return nil
}

// appendChain appends a message n times after sequence last. Each append expects the one before.
func appendChain(ctx context.Context, js jetstream.JetStream, msg *nats.Msg, last uint64, n int) error {
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
			case err := <-future.Err():
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		n -= len(batch)
	}
	return nil
}

// InRanges reports whether a sequence is in one of the ranges.
func InRanges(ranges []subjects.LostRange, sequence uint64) bool {
	return slices.ContainsFunc(ranges, func(r subjects.LostRange) bool { return r.Contains(sequence) })
}

// MergeRanges appends the ranges that are not there yet.
func MergeRanges(ranges, more []subjects.LostRange) []subjects.LostRange {
	for _, r := range more {
		if !slices.Contains(ranges, r) {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

// WithoutRanges returns what is left of a range without others, in order.
func WithoutRanges(r subjects.LostRange, others []subjects.LostRange) (left []subjects.LostRange) {
	for _, o := range slices.SortedFunc(slices.Values(others), func(a, b subjects.LostRange) int { return cmp.Compare(a.From, b.From) }) {
		if o.To < r.From || r.To < o.From {
			continue
		}
		if r.From < o.From {
			left = append(left, subjects.LostRange{From: r.From, To: o.From - 1})
		}
		r.From = o.To + 1
	}
	if r.From <= r.To {
		left = append(left, r)
	}
	return left
}
