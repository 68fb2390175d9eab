package bridge

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// open makes sure that stream and bucket exist, belong here and fit together, and reads the bucket.
// Everything is looked at before anything is made or marked: what is refused stays as it was.
func (s *session) open(ctx context.Context) (*store.Snapshot, error) {
	st := s.storage
	s.bucket.Lost = nil
	if err := st.Inspect(ctx); err != nil {
		return nil, err
	}
	if err := st.ReadLosses(ctx); err != nil {
		return nil, err
	}
	snap, err := s.loadBucket(ctx)
	if err != nil {
		return nil, err
	}
	// Again: another bridge may have gone on while the bucket was read.
	if err := st.LookUp(ctx); err != nil {
		return nil, err
	}
	if err := st.ReadLosses(ctx); err != nil {
		return nil, err
	}
	if err := st.Identify(s.acknowledged.Checkpoint(), snap.Position); err != nil {
		return nil, err
	}
	missing, err := st.LossOf(s.acknowledged, snap.Position, snap.Last)
	if err != nil {
		return nil, err
	}
	if missing.Stream.To == 0 {
		if err := s.checkShape(ctx, *st); err != nil {
			return nil, err
		}
	} else {
		// What the entries of the lost range reflect cannot be compared with the stream.
		s.bucket.Lost = append(s.bucket.Lost, missing.Stream)
		if snap, err = s.loadBucket(ctx); err != nil {
			return nil, err
		}
	}
	if err := st.CheckPosition(ctx, snap); err != nil {
		return nil, err
	}
	if missing.Stream.To == 0 {
		s.memory.reported.Stream = subjects.LostRange{}
	}
	if missing.Bucket.To == 0 {
		s.memory.reported.Bucket = subjects.LostRange{}
	}
	if missing != (store.Loss{}) {
		if err := st.ConfirmLoss(ctx, store.TailConfirm, snap.Last); err != nil {
			return nil, err
		}
	}
	if missing.Stream.To > 0 {
		s.memory.claim.Forget() // the metadata may be those of an earlier time
	}
	own, lease, reached := s.acknowledged.Known(st.Checkpoint())
	known := st.Checkpoint()
	// What was sent may have been delivered.
	known.Stream, known.Bucket = max(reached, lease.Stream, snap.Position, st.Accepted()), max(own.Bucket, lease.Bucket)
	if err := st.ConfirmMissing(ctx, known, func(name string) {
		s.status.set(fmt.Sprintf("stream %s is missing; it is made again unless it comes back", name))
	}); err != nil {
		return nil, err
	}
	made := st.Bucket == nil
	if err := st.Establish(ctx, known); err != nil {
		return nil, err
	}
	if err := s.claimShape(ctx); err != nil {
		return nil, err
	}
	if made || st.Bucket.State.Msgs == 0 {
		snap.Last = st.Bucket.State.LastSeq
	}
	if err := s.heal(ctx, missing, snap); err != nil {
		return nil, err
	}
	known.Stream = max(own.Stream, lease.Stream, snap.Position)
	s.acknowledged.Adopt(st.AsOfNotice(known))
	return snap, nil
}

func (s *session) loadBucket(ctx context.Context) (*store.Snapshot, error) {
	if s.storage.Bucket == nil {
		return &store.Snapshot{Records: map[subjects.AppID]*app.Record{}}, nil
	}
	s.bucket.Accepted = s.storage.Accepted()
	s.bucket.Lost = store.MergeRanges(s.bucket.Lost, s.storage.Lost())
	return s.bucket.Load(ctx)
}

// reportLoss names what is lost, once for each range.
func (s *session) reportLoss(lost subjects.LostRange, reported *subjects.LostRange, storage, text string, name zap.Field) {
	if isReported(lost, *reported) {
		return // an earlier try to heal it was interrupted
	}
	*reported = lost
	s.metrics.lostSequences.WithLabelValues(storage).Add(float64(lost.To - lost.From + 1))
	s.log.Error(text, name, zap.Uint64("from", lost.From), zap.Uint64("to", lost.To))
}

func isReported(lost, reported subjects.LostRange) bool {
	return reported.Contains(lost.From) && reported.Contains(lost.To)
}

// heal repairs stream and bucket. It names a loss once an append proves that the end is too short.
func (s *session) heal(ctx context.Context, missing store.Loss, snap *store.Snapshot) error {
	if lost := missing.Stream; lost.To > 0 {
		s.status.set(fmt.Sprintf("the stream lost acknowledged events %s; filling the range", lost))
		report := func() {
			s.reportLoss(lost, &s.memory.reported.Stream, storageStream, "the stream lost acknowledged events", zap.String("stream", s.cfg.Stream))
		}
		noticed, err := s.storage.HealStream(ctx, missing, report)
		if err != nil {
			return s.refused(ctx, err, isReported(lost, s.memory.reported.Stream), snap.Last, report)
		}
		s.log.Info("the lost range is filled", zap.Stringer("lost", lost), zap.Uint64("notice", noticed))
		s.memory.reported.Stream = subjects.LostRange{}
	} else if err := s.storage.RemoveFillers(ctx); err != nil {
		return err
	}
	if lost := missing.Bucket; lost.To > 0 {
		s.status.set(fmt.Sprintf("the bucket lost acknowledged entries %s; carrying it past them", lost))
		report := func() {
			s.reportLoss(lost, &s.memory.reported.Bucket, storageBucket, "the bucket lost acknowledged entries", zap.String("bucket", s.cfg.Bucket))
		}
		if err := s.storage.HealBucket(ctx, snap, lost.To, report); err != nil {
			return s.refused(ctx, err, isReported(lost, s.memory.reported.Bucket), snap.Last, report)
		}
		snap.Last = lost.To
		s.memory.reported.Bucket = subjects.LostRange{}
	}
	return nil
}

// refused names a loss that cannot be healed, since the stream or the bucket takes no message: no
// append will prove it. It waits until a leader that was cut off would have stepped down.
func (s *session) refused(ctx context.Context, err error, reported bool, bucketLast uint64, report func()) error {
	if !store.IsRefused(err) || reported {
		return err
	}
	s.status.set(err.Error())
	if changed := s.storage.ConfirmLoss(ctx, store.RefusedConfirm, bucketLast); changed != nil {
		return changed
	}
	report()
	return err
}
