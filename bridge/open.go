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
	snap, err := s.loadBucket(ctx)
	if err != nil {
		return nil, err
	}
	// Again: another bridge may have gone on while the bucket was read.
	if err := st.LookUp(ctx); err != nil {
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
		if err := st.ConfirmLoss(ctx, snap.Last); err != nil {
			return nil, err
		}
		s.reportLoss(missing)
	}
	if missing.Stream.To > 0 {
		s.memory.claim.Forget() // the metadata may be those of an earlier time
	}
	known := s.acknowledged.Adopt(st.Checkpoint())
	s.acknowledged.NoteStream(snap.Position)
	known.Stream = max(s.acknowledged.Reached(), snap.Position) // what was sent may have been delivered
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
func (s *session) reportLoss(missing store.Loss) {
	for _, l := range []struct {
		lost, reported *subjects.LostRange
		storage, text  string
		name           zap.Field
	}{
		{&missing.Stream, &s.memory.reported.Stream, storageStream, "the stream lost acknowledged events", zap.String("stream", s.cfg.Stream)},
		{&missing.Bucket, &s.memory.reported.Bucket, storageBucket, "the bucket lost acknowledged entries", zap.String("bucket", s.cfg.Bucket)},
	} {
		if l.lost.To == 0 || l.reported.Contains(l.lost.From) && l.reported.Contains(l.lost.To) {
			continue // an earlier try to heal it was interrupted
		}
		*l.reported = *l.lost
		s.metrics.lostSequences.WithLabelValues(l.storage).Add(float64(l.lost.To - l.lost.From + 1))
		s.log.Error(l.text, l.name, zap.Uint64("from", l.lost.From), zap.Uint64("to", l.lost.To))
	}
}

func (s *session) heal(ctx context.Context, missing store.Loss, snap *store.Snapshot) error {
	if lost := missing.Stream; lost.To > 0 {
		s.status.set(fmt.Sprintf("the stream lost acknowledged events %s; filling the range", lost))
		noticed, err := s.storage.HealStream(ctx, lost)
		if err != nil {
			return err
		}
		s.acknowledged.NoteStream(noticed)
		s.log.Info("the lost range is filled", zap.Stringer("lost", lost), zap.Uint64("notice", noticed))
		s.memory.reported.Stream = subjects.LostRange{}
	}
	if lost := missing.Bucket; lost.To > 0 {
		s.status.set(fmt.Sprintf("the bucket lost acknowledged entries %s; carrying it past them", lost))
		if err := s.storage.HealBucket(ctx, snap, lost.To); err != nil {
			return err
		}
		snap.Last = lost.To
		s.memory.reported.Bucket = subjects.LostRange{}
	}
	return nil
}
