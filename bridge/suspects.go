package bridge

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/subjects"
)

// suspect is an app whose key in the bucket holds something that the projector did not write.
type suspect struct {
	id    subjects.AppID
	known bool // the projector had written the key before
	last  *lastEvent
	held  *held // nil: the key is gone
	other bool  // the stream has no event of the app, but another app's where the entry says it is
}

// suspected reports whether an app's key is suspect.
func (snap *snapshot) suspected(id subjects.AppID) bool {
	return slices.ContainsFunc(snap.suspects, func(s suspect) bool { return s.id == id })
}

// readSuspects reads, from the leaders, the keys that are suspect and the last events of their apps.
// It returns them in the order of the stream.
func (p *projector) readSuspects(ctx context.Context, snap *snapshot) ([]suspect, error) {
	from, stream := reader{p.nc, p.stream, p.subjects}, subjects.BucketStream(p.bucket.name)
	suspects := slices.Clone(snap.suspects)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readWindow)
	for i := range suspects {
		d := &suspects[i]
		subject, err := p.bucket.subject(d.id)
		if err != nil {
			return nil, err
		}
		g.Go(func() error {
			m, err := lastMessage(ctx, p.nc, stream, subject)
			if err == nil {
				d.held = heldBy(m)
			} else if !errors.Is(err, errNoMessage) {
				return err
			}
			if d.last, err = from.lastEventOf(ctx, d.id, d.held.sequence()); err != nil {
				return err
			}
			if sequence := d.held.sequence(); sequence > 0 && d.last.published() == nil {
				d.other, err = from.belongsToAnother(ctx, d.id, sequence)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(suspects, func(a, b suspect) int { return cmp.Compare(a.last.sequence(), b.last.sequence()) })
	return suspects, nil
}

// checkSuspects compares what the projector did not write with the events that it should reflect, as
// verify does. What another bridge wrote is right. What differs is written again. The next look at
// the bucket finds a key that is gone by now.
func (p *projector) checkSuspects(ctx context.Context, snap *snapshot, send func(entry, uint64) error) error {
	suspects, err := p.readSuspects(ctx, snap)
	if err != nil {
		return err
	}
	for _, d := range suspects {
		none := d.last.published() == nil
		switch {
		case d.held == nil, !none && d.last.record.sequence > snap.position:
			continue
		case none && (d.other || !d.known && d.held.sequence() <= p.followed.Load()):
			// It was followed past the entry's event, and no such app was there.
			if err := p.purge(ctx, d.id, d.held.stored); err != nil {
				return err
			}
			p.forgetKey(d.id)
			p.log.Warn("an app's key in the bucket had no event behind it", zap.Stringer("app", d.id), zap.Bool("removed", true))
			continue
		case none: // retention took the event: nothing says that the entry is wrong
			p.trust(d)
			continue
		}
		mismatch := p.bucket.mismatch(d.id, d.last, d.held, time.Now())
		if mismatch == nil {
			p.trust(d)
			continue
		}
		r := d.last.record
		p.mu.Lock()
		msg := p.entryOf(d.id, r, d.last.header)
		p.mu.Unlock()
		if msg == nil {
			continue
		}
		if err := send(entry{msg: msg, app: d.id, exists: r.exists()}, 0); err != nil {
			return err
		}
		p.log.Warn("restored a bucket entry that somebody else wrote", zap.Stringer("app", d.id),
			zap.Uint64("sequence", r.sequence), zap.String("difference", mismatch.detail))
	}
	return nil
}

// trust takes a key as it is.
func (p *projector) trust(d suspect) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setKey(d.id, key{exists: d.held.record.exists(), event: d.held.sequence(), at: storedAt{d.held.stored, d.held.time}})
}
