package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/natsconn"
	"github.com/appbridge/appbridge/bridge/projector"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
)

const (
	// storageCheck is how often a session checks its stream and bucket.
	storageCheck = 3 * time.Second
	// reconnectCheck is how soon it does after a reconnect.
	reconnectCheck = 200 * time.Millisecond
)

// guard checks stream and bucket every few seconds and after each reconnect. It ends the session if
// one of them is gone, was replaced or must not be used any more. If another client wrote to the
// bucket or removed keys, the projector reads the bucket again. The audit finds what that does not
// repair.
func (s *session) guard(ctx context.Context, known store.Storage) error {
	messages, last := known.Stream.State.Msgs, time.Now()
	s.checked.note(nil) // they were read a moment ago
	keys := s.projector.NewKeyCheck(known.Bucket.State.NumSubjects)
	payload := s.nc.MaxPayload()
	for range retry.Ticks(ctx, reconnectCheck) {
		if s.nc.IsClosed() {
			return store.ErrClosed
		}
		switch now := s.nc.MaxPayload(); {
		case now > payload:
			return fmt.Errorf("%w: the NATS server takes %d bytes, and took %d", store.ErrSizeChanged, now, payload)
		case now > 0:
			payload = now
		}
		reconnects := s.nc.Stats().Reconnects
		if !s.nc.IsConnected() || (time.Since(last) < storageCheck && reconnects == s.memory.checked.Load()) {
			continue
		}
		last = time.Now()
		// Before the look: what is there by then stays.
		keys.Begin()
		acknowledged, denied := s.acknowledged.Checkpoint(), s.nc.LastError()
		look, cancel := context.WithTimeout(ctx, store.JetStreamTimeout)
		stream, bucket, err := known.Present(look)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, store.ErrUnread):
			s.checked.note(natsconn.Explain(s.nc, denied, err))
			continue
		case err != nil:
			return err
		}
		s.checked.note(nil)
		s.memory.altered.configured(stream.Config)
		if limit := stream.Config.MaxMsgSize; s.live.Load() && limit != s.publisher.MaxMsgSize() {
			// It was changed and changed back, and events were refused in between.
			return fmt.Errorf("%w: stream %s", store.ErrSizeChanged, s.cfg.Stream)
		}
		if err := acknowledged.CheckTails(stream, bucket); err != nil {
			return err
		}
		looked := known
		looked.Stream = stream
		if err := s.checkShape(ctx, looked); err != nil {
			return err
		}
		s.memory.checked.Store(reconnects)
		if cfg := stream.Config; stream.State.Msgs < messages && cfg.MaxAge == 0 && cfg.MaxBytes <= 0 && cfg.MaxMsgs <= 0 {
			s.log.Warn("messages were removed from the stream; their apps go on without them",
				zap.Uint64("had", messages), zap.Uint64("has", stream.State.Msgs), zap.Uint64("firstSequence", stream.State.FirstSeq))
			s.auditNow("messages were removed from the stream")
		}
		messages = stream.State.Msgs
		switch err := keys.Check(bucket.State); {
		case errors.Is(err, projector.ErrKeysVanished):
			s.auditNow("keys were removed from the bucket")
		case err != nil:
			s.auditNow("another client wrote to the bucket")
		}
	}
	return nil
}

// historyCheck is how often a session reads the cluster's version.
const historyCheck = 10 * time.Second

// watchHistory ends the process when the cluster's version steps back: etcd was restored. A watch
// that resumes at a version that the cluster has not reached again shows nothing, perhaps for
// hours, and the informers' caches are of a history that is over. So only a new start can go on.
func (s *session) watchHistory(ctx context.Context, seen string) error {
	s.history.note(nil)
	for range retry.Ticks(ctx, historyCheck) {
		if shown := s.source.Shown.Newest(); shown != "" && app.CompareVersions(shown, seen) > 0 {
			seen = shown
		}
		version, err := s.kube.Version(ctx)
		if err != nil {
			s.history.note(err)
			continue
		}
		s.history.note(nil)
		if app.CompareVersions(version, seen) < 0 {
			return s.otherHistory(ctx, app.SteppedBack(version, seen))
		}
		seen = version
	}
	return nil
}

// otherHistory is the error of a cluster whose history is not the one that was published: that it is
// another cluster, if its uid says so.
func (s *session) otherHistory(ctx context.Context, err error) error {
	if uid, unread := s.kube.UID(ctx); unread == nil && string(uid) != s.storage.Config.ClusterUID {
		return app.OtherCluster(string(uid), s.storage.Config.ClusterUID)
	}
	return err
}
