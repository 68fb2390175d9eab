package store

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/subjects"
)

// ReadWindow is how many messages are requested at one time.
const ReadWindow = 64

// Subjects lists the subjects that a stream holds messages of.
func Subjects(ctx context.Context, js jetstream.JetStream, stream, filter string) ([]string, error) {
	_, info, err := LookUp(ctx, js, stream, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(info.State.Subjects)), nil
}

// ReadEach reads something for each name, up to ReadWindow at one time, and calls visit with the
// results, one at a time. It ignores ErrNoMessage.
func ReadEach[K, V any](ctx context.Context, names iter.Seq[K], read func(context.Context, K) (V, error), visit func(K, V)) error {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(ReadWindow)
	for name := range names {
		g.Go(func() error {
			v, err := read(ctx, name)
			if errors.Is(err, ErrNoMessage) {
				return nil
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			visit(name, v)
			return nil
		})
	}
	return g.Wait()
}

// Reader reads single events of the stream, from its leader.
type Reader struct {
	js       jetstream.JetStream
	stream   string
	subjects subjects.Subjects
}

// NewReader returns a Reader of a stream.
func NewReader(js jetstream.JetStream, stream string, s subjects.Subjects) Reader {
	return Reader{js: js, stream: stream, subjects: s}
}

// LastEvent reads an app's last event, nil if the stream has no message of it. hint is where its
// last event is supposed to be.
func (r Reader) LastEvent(ctx context.Context, id subjects.AppID, hint uint64) (*plan.Event, error) {
	filter, err := r.subjects.EventFilter(id)
	if err != nil {
		return nil, err
	}
	last, err := OrNone(LastMessage(ctx, r.js, r.stream, filter))
	if last == nil {
		return nil, err
	}
	if record, err := last.Record(r.subjects); err == nil {
		return &plan.Event{Record: record, Header: last.Header, Stored: last.Stored}, nil
	}
	// A foreign message is behind it. The stream can only be read forwards: from the hint if that
	// leads to an event, else from the start.
	e := &plan.Event{Foreign: last.Sequence}
	for _, from := range []uint64{hint, 1} {
		if from == 0 || from >= last.Sequence || e.Record != nil {
			continue
		}
		if err := r.EachMessage(ctx, filter, from, last.Sequence, func(m *Message) {
			if record, err := m.Record(r.subjects); err == nil {
				e.Record, e.Header, e.Stored = record, m.Header, m.Stored
			}
		}); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// BelongsToAnother reports whether the event at a sequence of the stream is another app's.
func (r Reader) BelongsToAnother(ctx context.Context, id subjects.AppID, sequence uint64) (bool, error) {
	m, err := OrNone(MessageAt(ctx, r.js, r.stream, sequence))
	if m == nil {
		return false, err // nil: it was removed
	}
	of, _, err := r.subjects.ParseEvent(m.Subject)
	return err == nil && of != id, nil
}

// EachMessage hands the messages that match filter from sequence from on, and before end, to visit.
func (r Reader) EachMessage(ctx context.Context, filter string, from, end uint64, visit func(*Message)) error {
	for from < end {
		m, err := OrNone(NextMessage(ctx, r.js, r.stream, filter, from))
		if m == nil || m.Sequence >= end {
			return err
		}
		visit(m)
		from = m.Sequence + 1
	}
	return nil
}

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
