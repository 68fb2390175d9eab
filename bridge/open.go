package bridge

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// open makes sure that stream and bucket exist, belong here and fit together,
// and reads the bucket. Everything is looked at before anything is made or
// marked: what is refused stays as it was.
func (s *session) open(ctx context.Context) (*snapshot, error) {
	st := s.storage
	s.bucket.lost = nil
	if err := st.inspect(ctx); err != nil {
		return nil, err
	}
	snap, err := s.loadBucket(ctx)
	if err != nil {
		return nil, err
	}
	// Again: another bridge may have gone on while the bucket was read.
	if err := st.lookUp(ctx); err != nil {
		return nil, err
	}
	if err := st.identify(s.acknowledged.get(), snap.position); err != nil {
		return nil, err
	}
	missing, err := st.lossOf(s.acknowledged, snap.position, snap.last)
	if err != nil {
		return nil, err
	}
	if missing.stream.To > 0 {
		// What the entries of the lost range reflect cannot be compared with the stream.
		s.bucket.lost = append(s.bucket.lost, missing.stream)
		if snap, err = s.loadBucket(ctx); err != nil {
			return nil, err
		}
	}
	if err := st.checkPosition(ctx, snap); err != nil {
		return nil, err
	}
	if missing.stream.To == 0 {
		s.memory.reported.stream = subjects.LostRange{}
	}
	if missing.bucket.To == 0 {
		s.memory.reported.bucket = subjects.LostRange{}
	}
	if missing != (loss{}) {
		if err := st.confirmLoss(ctx, snap.last); err != nil {
			return nil, err
		}
		s.reportLoss(missing)
	}
	known := s.acknowledged.adopt(st.witness())
	s.acknowledged.noteStream(snap.position)
	known.Stream = max(s.acknowledged.reached(), snap.position) // what was sent may have been delivered
	made := st.bucket == nil
	if err := st.establish(ctx, known); err != nil {
		return nil, err
	}
	if made {
		snap.last = st.bucket.State.LastSeq
	}
	if err := s.heal(ctx, missing, snap); err != nil {
		return nil, err
	}
	return snap, nil
}

// loadBucket reads the bucket, if there is one.
func (s *session) loadBucket(ctx context.Context) (*snapshot, error) {
	if s.storage.bucket == nil {
		return &snapshot{records: map[subjects.AppID]*app.Record{}}, nil
	}
	s.bucket.accepted = s.storage.accepted()
	s.bucket.lost = appendMissing(s.bucket.lost, s.storage.lost())
	return s.bucket.load(ctx)
}

// reportLoss names what is lost, once for each range.
func (s *session) reportLoss(missing loss) {
	for _, l := range []struct {
		lost, reported *subjects.LostRange
		storage, text  string
		name           zap.Field
	}{
		{&missing.stream, &s.memory.reported.stream, storageStream, "the stream lost acknowledged events", zap.String("stream", s.cfg.Stream)},
		{&missing.bucket, &s.memory.reported.bucket, storageBucket, "the bucket lost acknowledged entries", zap.String("bucket", s.cfg.Bucket)},
	} {
		if l.lost.To == 0 || l.reported.Contains(l.lost.From) && l.reported.Contains(l.lost.To) {
			continue // an earlier try to heal it was interrupted
		}
		*l.reported = *l.lost
		s.metrics.lostSequences.WithLabelValues(l.storage).Add(float64(l.lost.To - l.lost.From + 1))
		s.log.Error(l.text, l.name, zap.Uint64("from", l.lost.From), zap.Uint64("to", l.lost.To))
	}
}

// heal carries stream and bucket past what they lost.
func (s *session) heal(ctx context.Context, missing loss, snap *snapshot) error {
	if lost := missing.stream; lost.To > 0 {
		s.setStatus(fmt.Sprintf("the stream lost acknowledged events %s; filling the range", lost))
		noticed, err := s.storage.healStream(ctx, lost)
		if err != nil {
			return err
		}
		s.acknowledged.noteStream(noticed)
		s.log.Info("the lost range is filled", zap.Stringer("lost", lost), zap.Uint64("notice", noticed))
		s.memory.reported.stream = subjects.LostRange{}
	}
	if lost := missing.bucket; lost.To > 0 {
		s.setStatus(fmt.Sprintf("the bucket lost acknowledged entries %s; carrying it past them", lost))
		last, err := s.storage.healBucket(ctx, snap, lost.To)
		if err != nil {
			return err
		}
		snap.last = last
		s.memory.reported.bucket = subjects.LostRange{}
	}
	return nil
}
