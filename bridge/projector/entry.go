package projector

import (
	"errors"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// entryOf makes the bucket's message for an event, nil if it cannot be made:
// one app must not keep the others out of the bucket. mu must be held.
func (p *Projector) entryOf(id subjects.AppID, r *app.Record, h nats.Header) *nats.Msg {
	limit := p.bucket.Limit()
	if refused := p.refused[id]; refused > 0 && (limit <= 0 || refused <= limit) {
		limit = refused - 1
	}
	msg, err := p.bucket.EntryWithin(id, r, h, limit)
	if err != nil {
		p.metrics.skipped.Inc()
		p.log.Error("skipped a bucket entry that cannot be encoded or does not fit", zap.Stringer("app", id), zap.Uint64("sequence", r.Sequence), zap.Error(err))
		return nil
	}
	if truncated := msg.Header.Get(subjects.HeaderTruncated); truncated != r.Truncated {
		p.log.Warn("truncated a bucket entry that does not fit",
			zap.Stringer("app", id), zap.Uint64("sequence", r.Sequence), zap.String("truncated", truncated), zap.Int("limit", limit))
	}
	return msg
}

// tooLarge notes that a write of this size was refused, so that the app's entry is made smaller.
func (p *Projector) tooLarge(id subjects.AppID, size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if had := p.refused[id]; had == 0 || size < had {
		p.refused[id] = size
	}
}

// wasRefused reports whether an entry of that size was refused.
func (p *Projector) wasRefused(e entry) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	refused := p.refused[e.app]
	return refused > 0 && app.SizeOfEntry(e.msg) >= refused
}

// isTooLarge reports whether the client or the server refused a message for its size.
func isTooLarge(err error) bool {
	return errors.Is(err, nats.ErrMaxPayload) || store.ErrorCodeOf(err) == store.CodeMessageTooLarge
}
