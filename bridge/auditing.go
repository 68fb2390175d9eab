package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
)

// auditBetween is the least time between two looks of the audit that have to agree.
const auditBetween = 2 * time.Second

// errAudit ends a session: the audit found that the stream, or a record, is wrong.
var errAudit = errors.New("the audit found that the stream lacks what was published, or should have been")

// newAuditor makes the auditor of a bridge: informers against cluster first, since what the
// informers show is what stream and bucket are compared with.
func (b *Bridge) newAuditor(k *watch.Cluster, between time.Duration) *audit.Auditor {
	return audit.New(audit.Config{
		Interval: b.cfg.AuditInterval, Between: between, Log: b.log, Metrics: b.metrics.audit,
		Parts: []audit.Part{b.newSourceAudit(k), b.newStorageAudit(k.Namespaces)},
	})
}

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
	return &audit.StoragePart{Target: target, Session: b.audited}
}

// audits runs the audit until ctx is done, if there is one.
func (b *Bridge) audits(ctx context.Context, k *watch.Cluster) {
	if b.cfg.AuditInterval <= 0 {
		return
	}
	a := b.newAuditor(k, auditBetween)
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
		return fmt.Errorf("the audit found 1 difference that is not repaired yet: %s: %s", store.Printable(first.Name), first.Detail)
	default:
		return fmt.Errorf("the audit found %d differences that are not repaired yet: %s: %s", n, store.Printable(first.Name), first.Detail)
	}
}
