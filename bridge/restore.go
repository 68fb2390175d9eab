package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/subjects"
)

// errEntryLost ends a session: the bucket lost an app's entry, and the stream
// no longer has the event it was written from. The next session publishes one.
var errEntryLost = errors.New("an app's bucket entry is gone, and its event too")

// damagedApp is an app whose entry could not be read or is not there.
type damagedApp struct {
	id     subjects.AppID
	record *record
	last   *lastEvent // nil: the stream has none
}

// readDamaged reads the last events of the apps that are damaged, and returns
// them in the order of the stream.
func (p *projector) readDamaged(ctx context.Context, snap *snapshot) ([]*damagedApp, error) {
	from := reader{p.nc, p.stream, p.subjects}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readWindow)
	var apps []*damagedApp
	for id, r := range snap.records {
		if !r.damaged {
			continue
		}
		d := &damagedApp{id: id, record: r}
		apps = append(apps, d)
		g.Go(func() (err error) {
			d.last, err = from.lastEventOf(ctx, id, 0)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(apps, func(a, b *damagedApp) int { return cmp.Compare(a.last.sequence(), b.last.sequence()) })
	return apps, nil
}

// restoreDamaged writes again, from the stream, the entries that could not be
// read or are not there.
func (p *projector) restoreDamaged(ctx context.Context, snap *snapshot, send func(entry, uint64) error) error {
	apps, err := p.readDamaged(ctx, snap)
	if err != nil {
		return err
	}
	for _, d := range apps {
		id, r, last := d.id, d.record, d.last
		switch {
		case (last == nil || last.record == nil) && r.held.exists():
			// A reader may know the app from the event that the stream lost. The entry stays until the
			// session has published a create or a delete.
			p.keep(id, r.held, last)
			continue
		case last == nil || last.record == nil:
			if err := p.purge(ctx, id, r.entry); err != nil {
				return err
			}
			p.forget(id)
			if r.lost {
				return fmt.Errorf("%w: %s", errEntryLost, id)
			}
			p.log.Warn("an app's key in the bucket had no event behind it", zap.Stringer("app", id), zap.Bool("removed", r.entry > 0))
			continue
		case last.record.sequence > snap.position:
			continue // still to be projected
		case r.entry == 0 && p.bucket.keepsNoMarker(last, time.Now()):
			p.restored(id, last)
			p.forgetKey(id)
			continue
		}
		p.mu.Lock()
		msg := p.entryOf(id, last.record, last.header)
		p.mu.Unlock()
		p.restored(id, last)
		if msg == nil {
			continue
		}
		if err := send(entry{msg: msg, app: id, exists: last.record.exists()}, 0); err != nil {
			return err
		}
		p.log.Warn("restored a bucket entry", zap.Stringer("app", id), zap.Uint64("sequence", last.record.sequence))
	}
	return nil
}

// forgetKey notes that the bucket has no key of an app.
func (p *projector) forgetKey(id subjects.AppID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.keys, id)
}

// keep takes an app into the records whose only event the stream lost.
func (p *projector) keep(id subjects.AppID, held *record, last *lastEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if had := p.records[id]; p.records == nil || (had != nil && !had.damaged && had.sequence > held.sequence) {
		return
	}
	kept := *held
	kept.eventLost = true
	if last != nil {
		kept.foreign = last.foreign
	}
	p.records[id] = &kept
}

// restored takes what was read of an app into the records.
func (p *projector) restored(id subjects.AppID, last *lastEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if had := p.records[id]; p.records == nil || (had != nil && !had.damaged && had.sequence > last.record.sequence) {
		return
	}
	r := last.record
	if last.foreign > 0 {
		r = r.behind(last.foreign)
	}
	p.collect(id, r)
}

// forget takes an app without an event out of the records.
func (p *projector) forget(id subjects.AppID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.keys, id)
	delete(p.records, id)
}
