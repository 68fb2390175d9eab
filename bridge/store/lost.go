package store

import (
	"context"
	"fmt"
	"math"
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
	// RefusedConfirm is how long if the stream refuses fillers, so that no append proves its end. A
	// leader that was cut off from its group steps down after about 10 s.
	RefusedConfirm = 20 * time.Second
)

// Loss is what stream and bucket lack of what they acknowledged.
type Loss struct {
	Stream subjects.LostRange // zero: nothing
	Bucket subjects.LostRange // of sequences of the bucket's stream
	End    uint64             // of the stream when its loss was found, 0 without one
}

// losses is what the stream itself has of its losses.
type losses struct {
	notices []notice           // oldest first
	filler  uint64             // sequence of the newest filler, 0 without one
	filling subjects.LostRange // of the newest filler, if there is no notice behind it; else zero
	pending subjects.LostRange // that an older version was filling, according to the metadata
}

// notice is a notice of loss in the stream.
type notice struct {
	sequence uint64
	lost     subjects.LostRange
}

// ParseNotice reads the notice of loss that the stream has at sequence. Its range ends before it.
func ParseNotice(sequence uint64, header nats.Header) (subjects.LostRange, error) {
	lost, err := subjects.ParseNotice(header.Get(subjects.HeaderLostFrom), header.Get(subjects.HeaderLostTo))
	if err == nil && lost.To >= sequence {
		return subjects.LostRange{}, fmt.Errorf("%w: the range %s does not end before the notice", subjects.ErrMalformed, lost)
	}
	return lost, err
}

// ReadLosses reads from the stream's leader which ranges the stream has lost, and which of them is
// not filled yet.
func (s *Storage) ReadLosses(ctx context.Context) error {
	var found losses
	if s.Stream == nil {
		s.losses = found
		return nil
	}
	// The filler first: a notice that is appended meanwhile is then behind it.
	filler, err := OrNone(LastMessage(ctx, s.JS, s.Config.Stream, s.Subjects.Lost()))
	if err != nil {
		return err
	}
	if err := NewReader(s.JS, s.Config.Stream, s.Subjects).EachMessage(ctx, s.Subjects.Notice(), 1, math.MaxUint64, func(m *Message) {
		lost, err := ParseNotice(m.Sequence, m.Header)
		if err != nil {
			s.Log.Warn("cannot parse a notice of loss in the stream", zap.Uint64("sequence", m.Sequence), zap.Error(err))
			return
		}
		found.notices = append(found.notices, notice{m.Sequence, lost})
	}); err != nil {
		return err
	}
	if filler != nil {
		found.filler = filler.Sequence
		found.filling, err = s.dropPresent(ctx, fillingOf(filler, found.newest()), zap.Uint64("sequence", filler.Sequence))
		if err != nil {
			return err
		}
	}
	if found.pending, err = s.pendingRange(ctx, found); err != nil {
		return err
	}
	s.losses = found
	return nil
}

// fillingOf is the range that the newest filler names, zero if there is a notice behind the filler.
// The fillers of older versions name none.
func fillingOf(filler *Message, noticed uint64) subjects.LostRange {
	lost, err := subjects.ParseNotice(filler.Header.Get(subjects.HeaderLostFrom), filler.Header.Get(subjects.HeaderLostTo))
	if err != nil || noticed > filler.Sequence || lost.From > filler.Sequence {
		return subjects.LostRange{}
	}
	if lost.To < filler.Sequence || lost.To-filler.Sequence > farAhead {
		lost.To = filler.Sequence
	}
	return lost
}

// pendingRange is the range that the metadata name as being filled. Only older versions write it.
// It is zero if a notice names the range, or if the stream has it after all.
func (s *Storage) pendingRange(ctx context.Context, found losses) (subjects.LostRange, error) {
	value := metadataOf(s.Stream, subjects.MetadataLostPending)
	if value == "" {
		return subjects.LostRange{}, nil
	}
	pending, err := subjects.ParseLostRange(value)
	if err != nil {
		s.Log.Warn("cannot parse the stream's metadata", zap.String("key", subjects.MetadataLostPending), zap.Error(err))
		return subjects.LostRange{}, nil
	}
	if found.covers(pending) {
		return subjects.LostRange{}, nil
	}
	return s.dropPresent(ctx, pending, zap.String("key", subjects.MetadataLostPending))
}

// dropPresent returns a range that a filler or the metadata name as lost, zero if the stream has the
// range's first message: in a range that is being filled, that is a filler or it is purged. Where
// retention removed the begin of the range, the stream's first message counts.
func (s *Storage) dropPresent(ctx context.Context, r subjects.LostRange, by zap.Field) (subjects.LostRange, error) {
	if r.To == 0 {
		return r, nil
	}
	first := min(max(r.From, s.Stream.State.FirstSeq), r.To)
	m, err := OrNone(MessageAt(ctx, s.JS, s.Config.Stream, first))
	if err != nil {
		return subjects.LostRange{}, err
	}
	if m != nil && !s.Subjects.IsLost(m.Subject) {
		s.Log.Warn("the range that is named as lost exists", by, zap.Stringer("range", r))
		return subjects.LostRange{}, nil
	}
	return r, nil
}

// newest is the sequence of the newest notice, noNotice without one.
func (l losses) newest() uint64 {
	if len(l.notices) == 0 {
		return noNotice
	}
	return l.notices[len(l.notices)-1].sequence
}

// covers reports whether one notice names the whole range.
func (l losses) covers(r subjects.LostRange) bool {
	for _, n := range l.notices {
		if n.lost.From <= r.From && r.To <= n.lost.To {
			return true
		}
	}
	return false
}

// Lost are the ranges that the stream is known to have lost, oldest loss first, as of ReadLosses.
func (s *Storage) Lost() (ranges []subjects.LostRange) {
	for _, n := range s.losses.notices {
		ranges = MergeRanges(ranges, []subjects.LostRange{n.lost})
	}
	for _, r := range []subjects.LostRange{s.losses.filling, s.losses.pending} {
		if r.To > 0 {
			ranges = MergeRanges(ranges, []subjects.LostRange{r})
		}
	}
	return ranges
}

// LossOf compares what was acknowledged with what exists, and with what ReadLosses found. position is
// the highest in the bucket. The range of the stream begins at the first end that anyone saw: one that
// is being filled, or was filled by a bridge that knew less of it, keeps its begin.
//
// It returns an *OutsideError if a value that was read from outside cannot be.
func (s *Storage) LossOf(acknowledged *Acknowledged, position, bucketLast uint64) (Loss, error) {
	own, lease, reached := acknowledged.Known(s.Checkpoint())
	if err := s.checkOutside(own, lease, position, bucketLast); err != nil {
		return Loss{}, err
	}
	var l Loss
	if to := max(own.Bucket, lease.Bucket); s.Bucket != nil && bucketLast < to && begun(s.Bucket) < to {
		l.Bucket = subjects.LostRange{From: bucketLast + 1, To: to}
	}
	if s.Stream == nil {
		return l, nil // it is created behind what was acknowledged
	}
	last, highest := s.Stream.State.LastSeq, max(own.Stream, lease.Stream, s.Accepted())
	if position > last && (s.madeByHand() || position > max(begun(s.Stream), highest)+farAhead) {
		return Loss{}, s.otherHistory("it reflects sequence %d, but stream %s ends at %d", position, s.Config.Stream, last)
	}
	if highest = max(highest, position, beforeFirst(s.Stream)); highest > begun(s.Stream) {
		if s.madeByHand() {
			return Loss{}, s.otherHistory("it reflects sequence %d, but stream %s ends at %d", highest, s.Config.Stream, last)
		}
		// What was not acknowledged may have been delivered all the same.
		l.Stream = subjects.LostRange{From: last + 1, To: max(highest, reached)}
	}
	for _, r := range append(s.losses.unnamed(own, lease.Checkpoint), s.losses.filling, s.losses.pending) {
		switch {
		case r.To == 0:
		case l.Stream.To == 0:
			l.Stream = r
		default:
			l.Stream = subjects.LostRange{From: min(l.Stream.From, r.From), To: max(l.Stream.To, r.To)}
		}
	}
	if l.Stream.To > 0 {
		l.End = last
	}
	return l, nil
}

// unnamed are the ranges that were lost of what checkpoints know, and that no notice names to their
// end. A checkpoint has another message where the stream has a notice that the checkpoint is not as
// of: another bridge has healed the same loss, and it knew less. What it appended has sequences that
// were used before.
func (l losses) unnamed(checkpoints ...Checkpoint) (ranges []subjects.LostRange) {
	for _, c := range checkpoints {
		for _, n := range l.notices {
			r := subjects.LostRange{From: n.lost.From, To: c.Stream}
			if c.Notice > 0 && c.Notice < n.sequence && n.sequence <= c.Stream && !l.covers(r) {
				ranges = append(ranges, r)
			}
		}
	}
	return ranges
}

// checkOutside checks the values that others can write: the Lease's checkpoint and metadata.
func (s *Storage) checkOutside(own Checkpoint, lease LeaseCheckpoint, position, bucketLast uint64) error {
	e := ends{highest: max(own.Stream, position), bucketLast: max(own.Bucket, bucketLast)}
	// What a start made that was interrupted before it carried it there counts as well.
	if s.Bucket != nil {
		e.bucket, e.bucketLast = s.Config.Bucket, max(e.bucketLast, begun(s.Bucket))
	}
	if s.Stream != nil {
		e.stream, e.highest = s.Config.Stream, max(e.highest, begun(s.Stream))
	}
	if lease.Err != nil {
		return lease.outside("it cannot be parsed: "+lease.Err.Error(), e)
	}
	if problem := tooHigh(position); problem != "" {
		return s.otherHistory("it reflects sequence %d: %s", position, problem)
	}
	for _, problem := range []string{e.checkStream(lease.Stream), e.checkBucket(lease.Bucket)} {
		if problem != "" {
			return lease.outside(problem, e)
		}
	}
	e.highest = max(e.highest, lease.Stream)
	if pending := s.losses.pending; pending.To > 0 {
		if problem := e.checkStream(pending.To); problem != "" {
			return outsideMetadata(subjects.MetadataLostPending, "stream "+s.Config.Stream, pending.String(), problem)
		}
	}
	for name, info := range map[string]*jetstream.StreamInfo{"stream " + s.Config.Stream: s.Stream, "bucket " + s.Config.Bucket: s.Bucket} {
		value := metadataOf(info, subjects.MetadataResetSequence)
		if value == "" {
			continue
		}
		problem := "it is no sequence"
		if sequence, err := strconv.ParseUint(value, 10, 64); err == nil {
			problem = e.checkStream(sequence)
		}
		if problem != "" {
			return outsideMetadata(subjects.MetadataResetSequence, name, value, problem)
		}
	}
	return nil
}

func outsideMetadata(key, of, value, problem string) error {
	return &OutsideError{
		Source: fmt.Sprintf("the metadata %s of %s", key, of), Value: value, Problem: problem,
		Repair: "correct it, or remove the key",
	}
}

func (c LeaseCheckpoint) outside(problem string, e ends) error {
	return &OutsideError{
		Source: c.Source, Value: c.Value, Problem: problem,
		Repair: fmt.Sprintf("delete the annotation, or set its stream to %d and its bucket to %d if nothing was lost", e.highest, e.bucketLast),
	}
}

// ConfirmLoss reads the ends of stream and bucket again after wait; an error: one has changed.
func (s *Storage) ConfirmLoss(ctx context.Context, wait time.Duration, bucketLast uint64) error {
	stream := s.Stream
	if err := retry.Wait(ctx, wait); err != nil {
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
