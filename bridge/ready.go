package bridge

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Ready returns nil once the informers are in sync and what was owed at the start is published,
// while NATS and Kubernetes answer and what is observed reaches the stream and the bucket within
// MaxDelay. Otherwise the error says in one line what is missing, and why if that is known.
func (b *Bridge) Ready() error {
	if err := b.disconnected(); err != nil {
		return err
	}
	if err := b.memory.altered.reason(); err != nil {
		if status := b.status.err(); status != nil && status.Error() != err.Error() {
			err = fmt.Errorf("%w; %w", err, status) // a refused setting may be why
		}
		return err
	}
	if s := b.publishing.Load(); s != nil {
		if err := s.publisher.Unfit(); err != nil {
			return err
		}
	}
	if err := b.status.err(); err != nil {
		return err
	}
	if err := b.absent.err(); err != nil {
		return err
	}
	if err := b.lease.trouble(b.cfg.Identity, b.cfg.standAside()); err != nil {
		return err
	}
	if what, since, why := b.conn.Trouble(); what != "" && time.Since(since) > b.cfg.MaxDelay {
		return fmt.Errorf("%s for %s: %s", what, age(since), why)
	}
	if err := b.unrepaired(); err != nil {
		return err
	}
	s := b.publishing.Load()
	if s == nil { // standing by
		if err := b.status.err(); err != nil || b.publishing.Load() == nil {
			return err
		}
		return errors.New("not publishing") // a session has begun meanwhile
	}
	if b.nc.Stats().Reconnects != b.memory.checked.Load() {
		return fmt.Errorf("NATS was disconnected: stream and bucket are compared with what they acknowledged%s", because(s.checked.trouble()))
	}
	if since, why := s.checked.stale(); why != nil {
		return fmt.Errorf("stream and bucket have not been checked for %s%s", age(since), because(why))
	}
	if since, why := s.history.stale(); why != nil && b.conn.Answers() {
		return fmt.Errorf("the cluster's version has not been read for %s%s", age(since), because(why))
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
	// If this session has ended meanwhile, some of the above is of the next one.
	if b.publishing.Load() != s {
		return errors.New("not publishing")
	}
	return b.status.err()
}

// reason is why something is not so, as one line. The zero value is none. Safe for concurrent use.
type reason struct{ said atomic.Pointer[said] }

type said struct {
	text  string
	cause func() *string // the last error of the part that is waited for; nil: none
}

func (r *reason) set(why string) { r.said.Store(&said{text: why}) }

// await sets a reason that lasts until a part of the bridge is done, and ends with its last error.
func (r *reason) await(what string, cause func() *string) { r.said.Store(&said{what, cause}) }

func (r *reason) err() error {
	why := r.said.Load()
	switch {
	case why == nil || why.text == "":
		return nil
	case why.cause == nil:
		return errors.New(why.text)
	}
	return errors.New(why.text + because(why.cause()))
}

func age(since time.Time) time.Duration { return time.Since(since).Round(time.Second) }

func because(why *string) string {
	if why == nil {
		return ""
	}
	return ": " + *why
}
