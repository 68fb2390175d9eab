package projector

import (
	"context"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
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
		p.deleted.Note(snap.Deleted.App, snap.Deleted.Version)
	}
}

// apply takes a message of the stream into the records and returns the bucket entry that it leads to.
func (p *Projector) apply(subject string, sequence uint64, h nats.Header, data []byte) entry {
	switch {
	case p.subjects.IsLost(subject):
		return entry{}
	case p.subjects.IsNotice(subject):
		p.notice(sequence, h.Get(subjects.HeaderLostFrom), h.Get(subjects.HeaderLostTo))
		return entry{}
	}
	id, kind, err := p.subjects.ParseEvent(subject)
	if err != nil {
		p.foreign(subject, sequence, err)
		return entry{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// After a restart of the projection older events come again.
	again := sequence <= p.followed.Load()
	if p.records == nil && !again {
		p.touched[id] = max(p.touched[id], sequence)
	}
	had := p.records[id]
	r, err := app.ReadEvent(kind, sequence, h, data)
	if err != nil {
		p.foreign(subject, sequence, err)
		if had != nil {
			// It counts for the fence of the app whose subject it took.
			p.records[id] = had.Behind(sequence)
		}
		return entry{app: id, foreign: true}
	}
	if !again || had.IsDamaged() || had != nil && had.Sequence <= sequence {
		p.collect(id, r)
	}
	return entry{msg: p.entryOf(id, r, h), app: id, exists: r.Exists()}
}

// collect makes r the record of an app, or takes the app out of the records if r is a delete, while
// they are collected. mu must be held.
func (p *Projector) collect(id subjects.AppID, r *app.Record) {
	switch {
	case p.records == nil:
	case r.Kind == subjects.Deleted:
		delete(p.records, id)
		if r.Sequence > p.accepted {
			p.deleted.Note(id, r.DeletedVersion)
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
	p.restored(e.app, last)
	p.mu.Lock()
	defer p.mu.Unlock()
	e.msg, e.exists = p.entryOf(e.app, last.Record, last.Header), last.Record.Exists()
	return nil
}

// keep takes an app into the records whose only event the stream lost.
func (p *Projector) keep(id subjects.AppID, held *app.Record, last *store.LastEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if had := p.records[id]; p.records == nil || (had != nil && !had.Damaged && had.Sequence > held.Sequence) {
		return
	}
	kept := *held
	kept.EventLost = true
	if last != nil {
		kept.Foreign = last.Foreign
	}
	p.records[id] = &kept
}

// restored takes what was read of an app into the records.
func (p *Projector) restored(id subjects.AppID, last *store.LastEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if had := p.records[id]; p.records == nil || (had != nil && !had.Damaged && had.Sequence > last.Record.Sequence) {
		return
	}
	r := last.Record
	if last.Foreign > 0 {
		r = r.Behind(last.Foreign)
	}
	p.collect(id, r)
}

// forgetRecord takes an app without an event out of the records.
func (p *Projector) forgetRecord(id subjects.AppID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.records, id)
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

func (p *Projector) foreign(subject string, sequence uint64, err error) {
	p.metrics.foreignMessages.Inc()
	p.log.Error("skipped a message of the stream that is not an app event",
		zap.String("subject", subject), zap.Uint64("sequence", sequence), zap.Error(err))
}
