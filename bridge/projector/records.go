package projector

import (
	"context"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// adopt takes what another bridge has projected, and this one has not followed, into the records. Once
// they are taken it notes the apps, so that the session finds the other writer.
func (p *Projector) adopt(snap *store.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	followed := p.followed.Load()
	for id, r := range snap.Records {
		switch had := p.records[id]; {
		case r.Damaged, r.Sequence <= followed && !had.IsDamaged():
		case p.records == nil:
			p.touched[id] = max(p.touched[id], r.Sequence)
		default:
			p.records[id] = r
			if had != nil && had.Foreign > r.Sequence {
				p.records[id] = r.Behind(had.Foreign)
			}
		}
	}
	for id, m := range snap.Markers {
		switch {
		case m.Event <= followed:
		case p.records == nil:
			p.touched[id] = max(p.touched[id], m.Event)
		default:
			delete(p.records, id)
		}
	}
	if snap.Position > followed {
		p.deleted.Add(snap.Deleted)
	}
}

// apply takes a message of the stream into the records and returns the bucket entry that it leads to.
func (p *Projector) apply(d *delivery) entry {
	switch {
	case p.subjects.IsLost(d.subject):
		return entry{}
	case p.subjects.IsNotice(d.subject):
		p.notice(d.sequence, d.header)
		return entry{}
	case d.foreign != nil:
		p.metrics.foreignMessages.Inc()
		p.log.Error("skipped a message of the stream that is not an app event",
			zap.String("subject", d.subject), zap.Uint64("sequence", d.sequence), zap.Error(d.foreign))
	}
	if d.app == (subjects.AppID{}) {
		return entry{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// After a restart of the projection older events come again.
	again := d.sequence <= p.followed.Load()
	if p.records == nil && !again {
		p.touched[d.app] = max(p.touched[d.app], d.sequence)
	}
	had := p.records[d.app]
	if d.foreign != nil {
		if had != nil {
			// It counts for the fence of the app whose subject it took.
			p.records[d.app] = had.Behind(d.sequence)
		}
		return entry{app: d.app, foreign: true}
	}
	if !again || had.IsDamaged() || had != nil && had.Sequence <= d.sequence {
		p.collect(d.app, d.record)
	}
	return entry{msg: p.entryOf(d.app, d.record, d.header), app: d.app, exists: d.record.Exists()}
}

// collect makes r the record of an app, or takes the app out of the records if r is a delete, while
// they are collected. mu must be held.
func (p *Projector) collect(id subjects.AppID, r *app.Record) {
	switch {
	case p.records == nil:
	case r.Kind == subjects.Deleted:
		delete(p.records, id)
		if r.Sequence > p.accepted {
			p.deleted.Note(id, r.DeletedVersion, r.Sequence)
		}
	default:
		p.records[id] = r
	}
}

// behindForeign makes the entry of an app whose last event the message at
// sequence, which is none, superseded.
func (p *Projector) behindForeign(ctx context.Context, e *entry, sequence uint64) error {
	last, err := p.reader().LastEvent(ctx, e.app, 0)
	if err != nil || last == nil || last.Record == nil || last.Record.Sequence > sequence {
		return err
	}
	p.restored(e.app, lastRecord(last))
	p.mu.Lock()
	defer p.mu.Unlock()
	e.msg, e.exists = p.entryOf(e.app, last.Record, last.Header), last.Record.Exists()
	return nil
}

// keep takes an app into the records whose only event the stream lost.
func (p *Projector) keep(id subjects.AppID, held *app.Record, last *plan.Event) {
	kept := *held
	kept.EventLost = true
	if last != nil {
		kept.Foreign = last.Foreign
	}
	p.restored(id, &kept)
}

// restored takes what was read of an app into the records, unless they have a newer event.
func (p *Projector) restored(id subjects.AppID, r *app.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if had := p.records[id]; had == nil || had.Damaged || had.Sequence <= r.Sequence {
		p.collect(id, r)
	}
}

// lastRecord is the record of an app's last event, with the foreign message behind it.
func lastRecord(last *plan.Event) *app.Record {
	if last.Foreign > 0 {
		return last.Record.Behind(last.Foreign)
	}
	return last.Record
}

// TakeTouched returns the apps that messages came for since the last call.
func (p *Projector) TakeTouched() map[subjects.AppID]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	touched := p.touched
	p.touched = map[subjects.AppID]uint64{}
	return touched
}

// Touch puts an app back for the next call of TakeTouched.
func (p *Projector) Touch(id subjects.AppID, sequence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.touched[id] = max(p.touched[id], sequence)
}
