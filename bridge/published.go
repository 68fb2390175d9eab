package bridge

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// publishedReader reads what was published of single apps, from the leaders of the streams.
type publishedReader struct {
	reader
	bucket *bucket
}

// publishedOf reads the record of an app that the bucket has no entry of: its last event, or what a
// delete marker shows whose event was removed. It is nil if nothing is known of the app.
func (h publishedReader) publishedOf(ctx context.Context, id subjects.AppID) (*app.Record, error) {
	last, err := h.lastEventOf(ctx, id, 0)
	if err != nil {
		return nil, err
	}
	r := last.published()
	if r == nil || r.Exists() {
		marker, err := h.markerOf(ctx, id, r.Previous())
		if err != nil {
			return nil, err
		}
		if marker != nil {
			r = marker
		}
	}
	if last != nil && last.foreign > 0 {
		r = r.Behind(last.foreign)
	}
	if r != nil && r.Kind == subjects.Deleted && r.App != nil {
		gone := *r
		gone.App = nil // a create follows, which does not need it
		r = &gone
	}
	return r, nil
}

// published is the record of the event, nil if there is none.
func (e *lastEvent) published() *app.Record {
	if e == nil {
		return nil
	}
	return e.record
}

// claimed is what was published of an app, and whether its entry in the bucket names an event of
// another app.
type claimed struct {
	*app.Record
	wrongly bool
}

// confirmedBy reads what was published of an app whose entry shows had; nil: the bucket has no entry.
func (h publishedReader) confirmedBy(ctx context.Context, id subjects.AppID, had *app.Record) (claimed, error) {
	if had == nil || had.Damaged || had.EventLost {
		r, err := h.publishedOf(ctx, id)
		return claimed{Record: r}, err
	}
	last, err := h.lastEventOf(ctx, id, had.Sequence)
	if err != nil {
		return claimed{}, err
	}
	c := claimed{Record: last.published()}
	if c.Previous() < had.Sequence {
		c.wrongly, err = h.belongsToAnother(ctx, id, had.Sequence)
	}
	if last != nil && last.foreign > 0 {
		c.Record = c.Behind(last.foreign)
	}
	return c, err
}

// markerOf reads the delete marker of an app if it reflects an event behind a sequence, which was
// removed then; nil if there is none. An event of a lost range, or of another app, counts for nothing.
func (h publishedReader) markerOf(ctx context.Context, id subjects.AppID, behind uint64) (*app.Record, error) {
	m, err := h.bucket.last(ctx, id)
	if errors.Is(err, errNoMessage) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := app.ReadEntry(m.header, m.data)
	if err != nil || r.Kind != subjects.Deleted || r.Sequence <= behind || contains(h.bucket.lost, r.Sequence) {
		return nil, nil //nolint:nilerr // an unreadable marker does not count
	}
	if other, err := h.belongsToAnother(ctx, id, r.Sequence); err != nil || other {
		return nil, err
	}
	return r, nil
}

// readAll reads what was published of apps, whose entries show records.
func (h publishedReader) readAll(ctx context.Context, ids map[subjects.AppID]struct{}, records map[subjects.AppID]*app.Record) (map[subjects.AppID]claimed, error) {
	var mu sync.Mutex
	read := make(map[subjects.AppID]claimed, len(ids))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readWindow)
	for id := range ids {
		g.Go(func() error {
			c, err := h.confirmedBy(ctx, id, records[id])
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			read[id] = c
			return nil
		})
	}
	return read, g.Wait()
}
