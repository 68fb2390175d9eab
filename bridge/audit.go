package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// auditBetween is the least time between two looks of the audit that have to agree.
const auditBetween = 2 * time.Second

// errAudit ends a session: the audit found that the stream, or a record, is wrong.
var errAudit = errors.New("the audit found that the stream lacks what was published, or should have been")

func (b *Bridge) newSourceAudit(k *watch.Cluster) *audit.SourcePart {
	return &audit.SourcePart{
		Source: b.source.Shown, Kube: k, Wait: audit.ReachWait,
		Synced: func() bool { return b.Synced() == nil },
		Disturbed: func(kind, namespace string) bool {
			return b.conn.Disturbs(kind, namespace) || k.Watches.Listing(kind, namespace)
		},
	}
}

func (b *Bridge) newStorageAudit(namespaces []string) *audit.StoragePart {
	target := b.target(namespaces)
	target.Storage = func() *store.Storage {
		s := b.newStorage()
		s.Log = zap.NewNop() // the session logs what is wrong with their configuration
		return s
	}
	target.Shape = nil // the session compares it, and knows which one is newer
	return &audit.StoragePart{Target: target, Session: b.audited}
}

// audits runs the audit until ctx is done, if there is one.
func (b *Bridge) audits(ctx context.Context, k *watch.Cluster) {
	if b.cfg.AuditInterval <= 0 {
		return
	}
	// Informers against cluster first: what they show is what stream and bucket are compared with.
	a := audit.New(audit.Config{
		Interval: b.cfg.AuditInterval, Between: auditBetween, Log: b.log, Metrics: b.metrics.audit,
		Parts: []audit.Part{b.newSourceAudit(k), b.newStorageAudit(k.Namespaces)},
	})
	b.auditor.Store(a)
	a.Run(ctx)
}

// auditNow asks for a round of the audit at once. It does not wait.
func (b *Bridge) auditNow(why string) {
	b.log.Debug("an audit of stream and bucket is requested", zap.String("why", why))
	if a := b.auditor.Load(); a != nil {
		a.LookNow(why)
	}
}

// auditSoon requests a round of the audit soon: a session is live.
func (b *Bridge) auditSoon() {
	if a := b.auditor.Load(); a != nil {
		a.Soon()
	}
}

// unrepaired returns what the audit found and has not seen repaired yet.
func (b *Bridge) unrepaired() error {
	a := b.auditor.Load()
	if a == nil {
		return nil
	}
	n, first := a.Unrepaired()
	switch n {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("the audit found 1 difference that is not repaired yet: %s: %s", store.Printable(first.Name()), first.Detail)
	default:
		return fmt.Errorf("the audit found %d differences that are not repaired yet: %s: %s", n, store.Printable(first.Name()), first.Detail)
	}
}

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
	acknowledged := s.acknowledged.Checkpoint()
	return func(stream, bucket *jetstream.StreamInfo) error {
		if stream == nil || bucket == nil || s.nc.Stats().Reconnects != s.memory.checked.Load() ||
			!stream.Created.Equal(s.storage.Stream.Created) || !bucket.Created.Equal(s.storage.Bucket.Created) ||
			acknowledged.CheckTails(stream, bucket) != nil {
			return audit.ErrInactive
		}
		return nil
	}
}

func (a auditedSession) Followed() uint64            { return a.s.projector.Delivered() }
func (a auditedSession) Published() []subjects.AppID { return a.s.queue.Known() }
func (a auditedSession) Present() []subjects.AppID   { return a.s.source.Present() }
func (a auditedSession) Blocked() string {
	if err := cmp.Or(a.s.memory.altered.reason(), a.s.publisher.Unfit()); err != nil {
		return err.Error()
	}
	return ""
}

func (a auditedSession) Rewrite(ids []subjects.AppID) { a.s.projector.Distrust(false, ids...) }
func (a auditedSession) Purge(ids []subjects.AppID)   { a.s.projector.Disown(ids...) }

func (a auditedSession) Believe(ids []subjects.AppID) map[subjects.AppID]audit.Belief {
	beliefs := make(map[subjects.AppID]audit.Belief, len(ids))
	// A change goes from the source to the queue: it is seen in one of them.
	a.s.source.Read(func(v watch.View) {
		for _, id := range ids {
			r, pending := a.s.queue.Published(id)
			now, present := v.States()[id]
			b := audit.Belief{Record: r, State: now, Present: present, Pending: pending || v.Awaits(id)}
			if since := a.s.queue.Since(id); !since.IsZero() && a.s.publisher.Trouble() == nil {
				b.Queued, b.Waits = true, "a change waits for the stream since "+since.UTC().Format(time.RFC3339Nano)
			}
			beliefs[id] = b
		}
	})
	keys, written := a.s.projector.KeyStates(ids)
	for id, b := range beliefs {
		beliefs[id] = b.WithKey(keys[id], written)
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
