package store

import (
	"context"
	"maps"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// PublishedReader reads what was published of single apps, from the leaders of the streams.
type PublishedReader struct {
	Reader
	Bucket *Bucket
}

// PublishedOf reads the record of an app that the bucket has no entry of: its last event, or what a
// delete marker reflects whose event was removed. It is nil if nothing is known of the app.
func (h PublishedReader) PublishedOf(ctx context.Context, id subjects.AppID) (*app.Record, error) {
	last, err := h.LastEvent(ctx, id, 0)
	if err != nil {
		return nil, err
	}
	r := last.Published()
	if r == nil || r.Exists() {
		marker, err := h.markerOf(ctx, id, r.Previous())
		if err != nil {
			return nil, err
		}
		if marker != nil {
			r = marker
		}
	}
	if last != nil && last.Foreign > 0 {
		r = r.Behind(last.Foreign)
	}
	if r != nil && r.Kind == subjects.Deleted && !r.App.IsZero() {
		gone := *r
		gone.App = app.Encoded{} // a create follows, which does not need it
		r = &gone
	}
	return r, nil
}

// Published is the record of the event, nil if there is none.
func (e *LastEvent) Published() *app.Record {
	if e == nil {
		return nil
	}
	return e.Record
}

// Claimed is what was published of an app; Wrongly: its entry names another app's event.
type Claimed struct {
	*app.Record
	Wrongly bool
}

// confirmedBy reads what was published of an app whose entry is had; nil: it has no entry.
func (h PublishedReader) confirmedBy(ctx context.Context, id subjects.AppID, had *app.Record) (Claimed, error) {
	if had == nil || had.Damaged || had.EventLost {
		r, err := h.PublishedOf(ctx, id)
		return Claimed{Record: r}, err
	}
	last, err := h.LastEvent(ctx, id, had.Sequence)
	if err != nil {
		return Claimed{}, err
	}
	c := Claimed{Record: last.Published()}
	if c.Previous() < had.Sequence {
		c.Wrongly, err = h.BelongsToAnother(ctx, id, had.Sequence)
	}
	if last != nil && last.Foreign > 0 {
		c.Record = c.Behind(last.Foreign)
	}
	return c, err
}

// markerOf reads the delete marker of an app if it reflects an event behind a sequence, which was
// removed then. An event of a lost range, or of another app, does not count.
func (h PublishedReader) markerOf(ctx context.Context, id subjects.AppID, behind uint64) (*app.Record, error) {
	m, err := OrNone(h.Bucket.Last(ctx, id))
	if m == nil {
		return nil, err
	}
	r, err := app.ReadEntry(m.Header, m.Data)
	if err != nil || r.Kind != subjects.Deleted || r.Sequence <= behind || InRanges(h.Bucket.Lost, r.Sequence) {
		return nil, nil //nolint:nilerr // an unreadable marker does not count
	}
	if other, err := h.BelongsToAnother(ctx, id, r.Sequence); err != nil || other {
		return nil, err
	}
	return r, nil
}

// ReadAll reads what was published of apps, whose entries are records.
func (h PublishedReader) ReadAll(ctx context.Context, ids map[subjects.AppID]struct{}, records map[subjects.AppID]*app.Record) (map[subjects.AppID]Claimed, error) {
	claimed := make(map[subjects.AppID]Claimed, len(ids))
	return claimed, ReadEach(ctx, maps.Keys(ids), func(ctx context.Context, id subjects.AppID) (Claimed, error) {
		return h.confirmedBy(ctx, id, records[id])
	}, func(id subjects.AppID, c Claimed) { claimed[id] = c })
}
