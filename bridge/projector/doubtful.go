package projector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// errEntryLost ends a session: the bucket lost an app's entry, and the stream no longer has the
// event that it was written from. The next session publishes one.
var errEntryLost = errors.New("an app's bucket entry and its event are missing")

// doubtful is an app whose key in the bucket may not reflect the app's last event.
type doubtful struct {
	id   subjects.AppID
	last *plan.Event // nil: the stream has none

	// damaged is the record of a key that is missing or cannot be compared with the stream. The
	// fields below are those of a suspect, which has none.
	damaged *app.Record
	known   bool        // the projector had written the key before
	held    *plan.Entry // nil: the key is gone; also of a damaged record that has an entry
	other   bool        // the stream has another app's event at the entry's sequence, and none of this app
}

// readDoubtful reads, from the leaders, the last events of the apps that are damaged or suspect, and
// the keys of the suspects. It returns them in the order of the stream.
func (p *Projector) readDoubtful(ctx context.Context, snap *store.Snapshot, suspects map[subjects.AppID]bool) ([]*doubtful, error) {
	var apps []*doubtful
	for id, r := range snap.Records {
		if r.Damaged {
			apps = append(apps, &doubtful{id: id, damaged: r})
		}
	}
	for id, known := range suspects {
		apps = append(apps, &doubtful{id: id, known: known})
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(store.ReadWindow)
	for _, d := range apps {
		g.Go(func() error { return p.read(ctx, d) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	slices.SortStableFunc(apps, func(a, b *doubtful) int { return cmp.Compare(a.last.Sequence(), b.last.Sequence()) })
	return apps, nil
}

func (p *Projector) read(ctx context.Context, d *doubtful) error {
	if d.damaged == nil || d.damaged.Held != nil {
		m, err := store.OrNone(p.bucket.Last(ctx, d.id))
		if err != nil {
			return err
		}
		if m != nil {
			d.held = store.EntryOf(m)
		}
	}
	var err error
	sequence := d.held.Sequence()
	if d.last, err = p.reader().LastEvent(ctx, d.id, sequence); err == nil && sequence > 0 && d.last.Published() == nil {
		d.other, err = p.reader().BelongsToAnother(ctx, d.id, sequence)
	}
	return err
}

// repair compares keys that the projector did not write with the events that they should reflect, as
// verify does, and writes again those that differ and those that are damaged.
func (p *projection) repair(ctx context.Context, suspects map[subjects.AppID]bool) error {
	apps, err := p.readDoubtful(ctx, p.snap, suspects)
	if err != nil {
		return err
	}
	for _, d := range apps {
		switch {
		case d.damaged == nil && d.held == nil: // the next read of the bucket finds it missing
		case d.last.Published() == nil:
			err = p.repairWithoutEvent(ctx, d)
		case d.last.Record.Sequence > p.snap.Position: // the event is still to be projected
		default:
			err = p.restore(ctx, d)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// repairWithoutEvent removes the key of an app that has no event, unless it has to stay.
func (p *projection) repairWithoutEvent(ctx context.Context, d *doubtful) error {
	switch plan.WithoutEvent(plan.Key{Damaged: d.damaged, Entry: d.held, Written: d.known, Other: d.other, Followed: p.followed.Load()}) {
	case plan.KeyWaits:
		p.keep(d.id, d.damaged.Held, d.last)
		return nil
	case plan.KeyStays:
		p.trust(d)
		return nil
	}
	var entry uint64
	if d.damaged != nil {
		entry = d.damaged.Entry
	} else {
		entry = d.held.Stored
	}
	if err := p.purge(ctx, d.id, entry); err != nil {
		return err
	}
	p.forget(d.id, d.damaged != nil)
	if d.damaged != nil && d.damaged.Lost {
		return fmt.Errorf("%w: %s", errEntryLost, d.id)
	}
	p.log.Warn("an app's key in the bucket had no event in the stream", zap.Stringer("app", d.id), zap.Bool("removed", entry > 0))
	return nil
}

// restore writes an entry from the app's last event, unless it reflects that.
func (p *projection) restore(ctx context.Context, d *doubtful) error {
	r := d.last.Record
	text, fields := "restored a bucket entry", []zap.Field{zap.Stringer("app", d.id), zap.Uint64("sequence", r.Sequence)}
	if d.damaged != nil {
		p.restored(d.id, lastRecord(d.last))
		if d.damaged.Entry == 0 && plan.KeepsNoMarker(&p.bucket.Entries, d.last, time.Now()) {
			p.forget(d.id, false)
			return nil
		}
		if d.held != nil && plan.Check(&p.bucket.Entries, d.id, d.last, d.held, time.Now()) == nil {
			p.trust(d) // the stream has the entry's event, although a notice names its sequence
			return nil
		}
	} else {
		wrong := plan.Check(&p.bucket.Entries, d.id, d.last, d.held, time.Now())
		if wrong == nil {
			p.trust(d)
			return nil
		}
		text, fields = "restored a bucket entry that another client wrote", append(fields, zap.String("difference", wrong.Detail))
	}
	p.mu.Lock()
	msg := p.entryOf(d.id, r, d.last.Header)
	p.mu.Unlock()
	if msg == nil {
		return nil
	}
	if err := p.send(ctx, entry{msg: msg, app: d.id, exists: r.Exists()}, 0); err != nil {
		return err
	}
	p.log.Warn(text, fields...)
	return nil
}

func (p *Projector) trust(d *doubtful) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setKey(d.id, key{exists: d.held.Record.Exists(), event: d.held.Sequence(), at: store.StoredAt{Sequence: d.held.Stored, Time: d.held.Time}})
}

// forget notes that the bucket has no key of an app and, with record, that the app has no event.
func (p *Projector) forget(id subjects.AppID, record bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.keys, id)
	if record {
		delete(p.records, id)
	}
}
