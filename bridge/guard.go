package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

const (
	// storageCheck is how often a session looks at its stream and bucket.
	storageCheck = 3 * time.Second
	// reconnectCheck is how soon it does after a reconnect.
	reconnectCheck = 200 * time.Millisecond
)

var (
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
		if err := acknowledged.checkTails(stream, bucket); err != nil {
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

// historyCheck is how often a session looks whether the cluster's history is
// still the one that it follows.
const historyCheck = 10 * time.Second

// watchHistory ends the process when the cluster's version steps back: etcd was
// restored. A watch that resumes at a version which is not reached again yet
// shows nothing, for hours perhaps, and the informers' caches are of a history
// that is over. So only a new start can go on.
func (s *session) watchHistory(ctx context.Context, seen string) error {
	tick := time.NewTicker(historyCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if shown := s.source.shown.newest(); shown != "" && order(shown, seen) > 0 {
			seen = shown
		}
		version, err := s.kube.version(ctx)
		if err != nil {
			continue // Kubernetes is away for the moment, which readiness tells
		}
		if order(version, seen) < 0 {
			return steppedBack(version, seen)
		}
		seen = version
	}
}
