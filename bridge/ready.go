package bridge

import (
	"errors"
	"fmt"
	"time"
)

// Ready returns nil once the informers are in sync and what was owed at the
// start is published, while NATS and Kubernetes answer and what is observed
// reaches the stream and the bucket within MaxDelay. Otherwise the error says
// in one line what is missing, and why if that is known.
func (b *Bridge) Ready() error {
	if err := b.disconnected(); err != nil {
		return err
	}
	if status := b.status.Load(); status != nil {
		return errors.New(*status)
	}
	if what, since, why := b.conn.Trouble(); what != "" && time.Since(since) > b.cfg.MaxDelay {
		return fmt.Errorf("%s for %s: %s", what, age(since), why)
	}
	if err := b.unrepaired(); err != nil {
		return err
	}
	s := b.publishing.Load()
	if s == nil {
		return nil // standing by
	}
	if b.nc.Stats().Reconnects != b.memory.checked.Load() {
		return errors.New("NATS was disconnected: stream and bucket are compared with what they acknowledged")
	}
	if waiting, since := s.queue.Oldest(); waiting > 0 && time.Since(since) > b.cfg.MaxDelay {
		return fmt.Errorf("the oldest of %d unpublished changes has waited for %s%s", waiting, age(since), because(s.publisher.Trouble()))
	}
	written := s.projector.Position()
	if since := s.projector.BehindSince(); !since.IsZero() && time.Since(since) > b.cfg.MaxDelay {
		return fmt.Errorf("the bucket is behind by %s: it reflects sequence %d of %d%s",
			age(since), written, s.publisher.Highest(), because(s.projector.LastTrouble()))
	}
	if s.projector.IsStuck() {
		return fmt.Errorf("the bucket cannot be written, it stands at sequence %d%s", written, because(s.projector.LastTrouble()))
	}
	return nil
}

func age(since time.Time) time.Duration { return time.Since(since).Round(time.Second) }

func because(why *string) string {
	if why == nil {
		return ""
	}
	return ": " + *why
}

// snapshotLag is how many acknowledged events the bucket does not reflect yet.
func (b *Bridge) snapshotLag() uint64 {
	s := b.publishing.Load()
	if s == nil {
		return 0
	}
	if highest, written := s.publisher.Highest(), s.projector.Position(); highest > written {
		return highest - written
	}
	return 0
}

// snapshotDelay is how long ago the oldest of these was acknowledged.
func (b *Bridge) snapshotDelay() time.Duration {
	s := b.publishing.Load()
	if s == nil {
		return 0
	}
	if since := s.projector.BehindSince(); !since.IsZero() {
		return time.Since(since)
	}
	return 0
}
