package bridge

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// auditedSession is a session as the audit reads it.
type auditedSession struct{ s *session }

// audited returns the session that is live, nil if none is.
func (b *Bridge) audited() audit.Session {
	if s := b.publishing.Load(); s != nil && s.live.Load() {
		return auditedSession{s}
	}
	return nil
}

func (a auditedSession) Anchor() func(stream, bucket *jetstream.StreamInfo) error {
	s := a.s
	acknowledged := s.acknowledged.Witness()
	return func(stream, bucket *jetstream.StreamInfo) error {
		if stream == nil || bucket == nil || s.nc.Stats().Reconnects != s.memory.checked.Load() ||
			!stream.Created.Equal(s.storage.Stream.Created) || !bucket.Created.Equal(s.storage.Bucket.Created) ||
			acknowledged.CheckTails(stream, bucket) != nil {
			return audit.ErrInactive
		}
		return nil
	}
}

func (a auditedSession) Followed() uint64             { return a.s.projector.Delivered() }
func (a auditedSession) Published() []subjects.AppID  { return a.s.queue.Known() }
func (a auditedSession) Present() []subjects.AppID    { return a.s.source.Present() }
func (a auditedSession) Rewrite(ids []subjects.AppID) { a.s.projector.Distrust(false, ids...) }
func (a auditedSession) Purge(ids []subjects.AppID)   { a.s.projector.Disown(ids...) }

func (a auditedSession) Believe(ids []subjects.AppID) map[subjects.AppID]audit.Belief {
	beliefs := make(map[subjects.AppID]audit.Belief, len(ids))
	// A change goes from the source to the queue: it is seen in one of them.
	a.s.source.Read(func(v watch.View) {
		for _, id := range ids {
			r, pending := a.s.queue.Published(id)
			now, present := v.States()[id]
			beliefs[id] = audit.Belief{Record: r, State: now, Present: present, Pending: pending || v.Awaits(id)}
		}
	})
	keys, written := a.s.projector.KeyStates(ids)
	for id, b := range beliefs {
		k := keys[id]
		beliefs[id] = b.WithKey(audit.BelievedKey{Known: k.Known, Exists: k.Exists, Event: k.Event, Entry: k.Entry}, written, k.Touched)
	}
	return beliefs
}

func (a auditedSession) Restart(ctx context.Context, ids []subjects.AppID) error {
	if err := a.s.leads(ctx); err != nil {
		return fmt.Errorf("confirm that this bridge leads: %w", err)
	}
	a.s.memory.doubts.add(ids)
	a.s.cancel(errAudit)
	return nil
}
