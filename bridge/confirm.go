package bridge

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/subjects"
)

// publishedReader reads what was published of single apps, from the leaders of the streams.
type publishedReader struct {
	reader
	bucket *bucket
}

func (s *session) published() publishedReader {
	return publishedReader{reader{s.nc, s.cfg.Stream, s.subjects}, s.bucket}
}

// publishedOf reads the record of an app that the bucket has no entry of: its last event, or what a
// delete marker shows whose event was removed. It is nil if nothing is known of the app.
func (h publishedReader) publishedOf(ctx context.Context, id subjects.AppID) (*record, error) {
	last, err := h.lastEventOf(ctx, id, 0)
	if err != nil {
		return nil, err
	}
	r := last.published()
	if r == nil || r.exists() {
		marker, err := h.markerOf(ctx, id, r.previous())
		if err != nil {
			return nil, err
		}
		if marker != nil {
			r = marker
		}
	}
	if last != nil && last.foreign > 0 {
		r = r.behind(last.foreign)
	}
	if r != nil && r.kind == subjects.Deleted && r.app != nil {
		gone := *r
		gone.app = nil // a create follows, which does not need it
		r = &gone
	}
	return r, nil
}

// published is the record of the event, nil if there is none.
func (e *lastEvent) published() *record {
	if e == nil {
		return nil
	}
	return e.record
}

// claimed is what was published of an app, and whether its entry in the bucket says to reflect an event
// of another app.
type claimed struct {
	*record
	wrongly bool
}

// confirmedBy reads what was published of an app whose entry shows had; nil: the bucket has no entry.
func (h publishedReader) confirmedBy(ctx context.Context, id subjects.AppID, had *record) (claimed, error) {
	if had == nil || had.damaged || had.eventLost {
		r, err := h.publishedOf(ctx, id)
		return claimed{record: r}, err
	}
	last, err := h.lastEventOf(ctx, id, had.sequence)
	if err != nil {
		return claimed{}, err
	}
	c := claimed{record: last.published()}
	if c.previous() < had.sequence {
		c.wrongly, err = h.belongsToAnother(ctx, id, had.sequence)
	}
	if last != nil && last.foreign > 0 {
		c.record = c.behind(last.foreign)
	}
	return c, err
}

// markerOf reads the delete marker of an app if it reflects an event behind a sequence, which was
// removed then; nil if there is none. An event of a lost range, or of another app, counts for nothing.
func (h publishedReader) markerOf(ctx context.Context, id subjects.AppID, behind uint64) (*record, error) {
	subject, err := h.bucket.subject(id)
	if err != nil {
		return nil, err
	}
	m, err := lastMessage(ctx, h.nc, subjects.BucketStream(h.bucket.name), subject)
	if errors.Is(err, errNoMessage) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := recordOfEntry(m.header, m.data)
	if err != nil || r.kind != subjects.Deleted || r.sequence <= behind || contains(h.bucket.lost, r.sequence) {
		return nil, nil //nolint:nilerr // what cannot be read says nothing
	}
	if other, err := h.belongsToAnother(ctx, id, r.sequence); err != nil || other {
		return nil, err
	}
	return r, nil
}

// confirm reads from the stream's leader what was published of each app that the session would
// publish a change of, and corrects the records by that: a key that was taken from the bucket, or an
// entry that was written by hand, leads to no event. The projector writes these keys again. It
// returns the states that are published, as the records show.
func (s *session) confirm(ctx context.Context, records map[subjects.AppID]*record) (map[subjects.AppID]state, error) {
	current, before := s.source.states(), s.waiting.Load()
	if s.empty {
		// Nothing was published of any app, or nobody knows of it.
		for id := range current {
			if _, known := records[id]; !known {
				records[id] = nil
			}
		}
		for _, id := range before.waitingFor(records, true) {
			records[id] = nil
		}
		return nil, nil
	}
	published := maps.Clone(current)
	ids := map[subjects.AppID]struct{}{}
	changes, unwatched := reconcile(records, current, s.cfg.App, watching(s.kube.namespaces))
	for _, o := range changes {
		ids[o.app] = struct{}{}
		delete(published, o.app)
	}
	for _, id := range slices.Concat(before.waitingFor(records, false), unwatched) {
		ids[id] = struct{}{}
	}
	for id := range s.found {
		if _, known := records[id]; !known {
			ids[id] = struct{}{}
		}
	}
	read, err := s.published().readAll(ctx, ids, records)
	if err != nil {
		return nil, err
	}
	var missing, wrong, never []subjects.AppID
	for id, c := range read {
		last := c.record
		had, known := records[id]
		switch {
		case !known:
			records[id] = last
			if last.exists() && last.sequence <= s.publishFrom {
				missing = append(missing, id)
			}
		case had == nil || had.damaged || had.eventLost || last.previous() > s.publishFrom:
			// Another bridge has published.
		case c.wrongly && last.previous() == 0:
			records[id] = last
			never = append(never, id)
		case last.previous() < had.sequence && !c.wrongly:
			// Its event was removed since.
		case last.sequence != had.sequence || last.kind == subjects.Deleted || !sameRecord(had, last):
			records[id] = last
			wrong = append(wrong, id)
		}
	}
	if n := len(missing) + len(wrong) + len(never); n > 0 {
		s.log.Warn("the bucket does not show what was published last; it is compared with the stream",
			zap.Int("missing", len(missing)), zap.Int("different", len(wrong)), zap.Int("neverPublished", len(never)))
	}
	s.projector.distrust(true, missing...)
	s.projector.distrust(false, wrong...)
	s.projector.disown(never...)
	return published, nil
}

// sameRecord reports whether an entry shows what its event does. An entry may lack what did not fit.
func sameRecord(entry, event *record) bool {
	return entry.uid == event.uid && entry.resourceVersion == event.resourceVersion && entry.namespace == event.namespace && entry.truncated == event.truncated &&
		sameApp(entry.app, event.app, weakerForm(entry.contentType, event.contentType))
}

// readAll reads what was published of apps, whose entries show records.
func (h publishedReader) readAll(ctx context.Context, ids map[subjects.AppID]struct{}, records map[subjects.AppID]*record) (map[subjects.AppID]claimed, error) {
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

// states are the states of all apps.
func (s *source) states() map[subjects.AppID]state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.current)
}
