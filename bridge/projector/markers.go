package projector

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// sweepMarkers removes old delete markers now and then, until ctx is done.
func (p *Projector) sweepMarkers(ctx context.Context) {
	age := p.bucket.MarkerMaxAge
	if age <= 0 {
		return
	}
	report := retry.Log{Logger: p.log}
	for range retry.Ticks(ctx, max(min(time.Minute, age/10), time.Second)) {
		if err := p.removeMarkers(ctx, time.Now().Add(-age)); err != nil && ctx.Err() == nil {
			report.Warn("cannot remove old delete markers from the bucket", err)
		}
	}
}

type oldMarker struct {
	app subjects.AppID
	at  store.StoredAt
}

// removeMarkers removes the delete markers that were stored before a time,
// oldest first. It keeps the one that reflects the highest sequence, since that
// is the bucket's position, and the newest message of the bucket's stream.
func (p *Projector) removeMarkers(ctx context.Context, before time.Time) error {
	old := p.oldMarkers(before)
	if len(old) == 0 {
		return nil
	}
	newest, err := store.LastSequence(ctx, p.bucket.JS, subjects.BucketStream(p.bucket.Name), subjects.BucketFilter(p.bucket.Name))
	if err != nil {
		return err
	}
	removed := 0
	for _, m := range old {
		if m.at.Sequence >= newest || !p.sweep(m) {
			continue
		}
		// Not what was written since: the app may exist again.
		if err := p.purge(ctx, m.app, m.at.Sequence); err != nil {
			return fmt.Errorf("remove the delete marker of %s: %w", m.app, err)
		}
		p.swept(m)
		removed++
	}
	if removed > 0 {
		p.log.Info("removed old delete markers from the bucket", zap.Int("markers", removed))
	}
	return nil
}

// oldMarkers are the delete markers that were stored before a time, oldest
// first, without the one that reflects the highest sequence.
func (p *Projector) oldMarkers(before time.Time) []oldMarker {
	p.mu.Lock()
	defer p.mu.Unlock()
	var highest uint64
	for _, k := range p.keys {
		if !k.swept {
			highest = max(highest, k.event)
		}
	}
	var old []oldMarker
	for id, k := range p.keys {
		if k.marker() && k.event < highest && k.at.Time.Before(before) {
			old = append(old, oldMarker{id, k.at})
		}
	}
	slices.SortFunc(old, func(a, b oldMarker) int { return cmp.Compare(a.at.Sequence, b.at.Sequence) })
	return old
}

// sweep notes that a marker is about to be removed, so that it does not count as missing. It returns
// false if the app's key has changed.
func (p *Projector) sweep(m oldMarker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.keys[m.app]
	if !k.marker() || k.at.Sequence != m.at.Sequence {
		return false
	}
	k.swept = true
	p.keys[m.app] = k
	return true
}

func (p *Projector) swept(m oldMarker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := p.keys[m.app]; k.swept && k.at.Sequence == m.at.Sequence {
		delete(p.keys, m.app)
	}
}
