package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/subjects"
)

// storageAudit compares stream and bucket with each other and with what the live session believes.
// Its subjects are keys of apps, and subjects of the bucket's stream that are no app's key.
type storageAudit struct {
	bridge  *Bridge
	watched func(namespace string) bool
}

// session is the one that is live, nil if none is.
func (a *storageAudit) session() *session {
	if s := a.bridge.newest.Load(); s != nil && s.live.Load() {
		return s
	}
	return nil
}

func (a *storageAudit) Active() bool { return a.session() != nil }

// ends reads the ends of stream and bucket from their leaders. It returns audit.ErrInactive if they
// are not those of the session, or end before what they acknowledged: that is for the guard.
func (a *storageAudit) ends(ctx context.Context, s *session) (stream, bucket *jetstream.StreamInfo, err error) {
	if !s.nc.IsConnected() {
		return nil, nil, audit.ErrInactive
	}
	acknowledged := s.acknowledged.get()
	if stream, err = s.storage.info(ctx, s.cfg.Stream); err != nil {
		return nil, nil, err
	}
	if bucket, err = s.storage.info(ctx, subjects.BucketStream(s.cfg.Bucket)); err != nil {
		return nil, nil, err
	}
	return stream, bucket, a.fits(s, acknowledged, stream, bucket)
}

// fits returns audit.ErrInactive unless stream and bucket are those that the session stands on.
func (a *storageAudit) fits(s *session, acknowledged witness, stream, bucket *jetstream.StreamInfo) error {
	if stream == nil || bucket == nil || s.nc.Stats().Reconnects != s.looked.Load() ||
		!stream.Created.Equal(s.storage.stream.Created) || !bucket.Created.Equal(s.storage.bucket.Created) ||
		endsBefore(acknowledged, stream, bucket) != nil {
		return audit.ErrInactive
	}
	return nil
}

func (a *storageAudit) Screen(ctx context.Context, pace *audit.Pace) ([]string, error) {
	s := a.session()
	if s == nil {
		return nil, audit.ErrInactive
	}
	stream, _, err := a.ends(ctx, s)
	if err != nil {
		return nil, err
	}
	screen := audit.NewScreen(s.subjects, s.cfg.Bucket, stream.State.FirstSeq, stream.State.LastSeq, func(stored time.Time) bool {
		return s.bucket.outlived(stored, time.Now())
	})
	if err := a.headers(ctx, s, s.cfg.Stream, s.subjects.Events(), pace, screen.AddEvent); err != nil {
		return nil, err
	}
	_, bucket, err := a.ends(ctx, s)
	if err != nil {
		return nil, err
	}
	known := s.queue.known()
	beliefs := make([]audit.Belief, 0, len(known))
	doubtful := map[string]struct{}{}
	for _, ids := range [][]subjects.AppID{known, s.source.present()} {
		for id, b := range s.believe(ids) {
			screened := b.screened(id)
			if b.doubtful(a.watched) {
				doubtful[screened.Key] = struct{}{}
			}
			if b.record != nil && len(beliefs) < cap(beliefs) {
				beliefs = append(beliefs, screened)
			}
		}
	}
	screen.Believe(beliefs, bucket.State.LastSeq)
	for key := range doubtful {
		screen.Suspect(key)
	}
	// Whatever the bucket's stream holds, also what is no key.
	if err := a.headers(ctx, s, subjects.BucketStream(s.cfg.Bucket), allMessages, pace, screen.AddEntry); err != nil {
		return nil, err
	}
	if a.session() != s {
		return nil, audit.ErrInactive
	}
	return screen.Suspects(func(sequence uint64) (string, error) {
		m, err := messageAt(ctx, s.nc, s.cfg.Stream, sequence)
		if errors.Is(err, errNoMessage) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		id, _, err := s.subjects.ParseEvent(m.subject)
		if err != nil {
			return "", nil //nolint:nilerr // it is another message by now, and no event
		}
		return id.Key()
	})
}

// headers reads the headers of the newest messages of each subject, at least as far as the leader
// has them.
func (a *storageAudit) headers(ctx context.Context, s *session, stream, filter string, pace *audit.Pace, visit func(audit.Message)) error {
	return followLast(ctx, s.js, stream, filter, true, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
		visit(audit.Message{Subject: msg.Subject(), Header: msg.Headers(), Sequence: meta.Sequence.Stream, Stored: meta.Timestamp})
		return pace.Step(ctx)
	})
}

// selected are the apps and foreign keys that subjects name.
func (a *storageAudit) selected(names []string) (*selection, []subjects.AppID) {
	only := &selection{apps: map[subjects.AppID]struct{}{}, keys: map[string]struct{}{}}
	var ids []subjects.AppID
	for _, name := range names {
		if id, err := subjects.ParseKey(name); err == nil {
			only.apps[id] = struct{}{}
			ids = append(ids, id)
		} else {
			only.keys[name] = struct{}{}
		}
	}
	return only, ids
}

// Look compares as verify does. The cluster's side is the source. An app of which the belief changed
// meanwhile is not judged, nor one of which the stream has a newer event than the belief.
func (a *storageAudit) Look(ctx context.Context, names []string) (audit.Looked, error) {
	looked := audit.Looked{Unsettled: map[string]bool{}}
	s := a.session()
	if s == nil {
		return looked, audit.ErrInactive
	}
	only, ids := a.selected(names)
	acknowledged, followed := s.acknowledged.get(), s.projector.followed.Load()
	before := s.believe(ids)
	v := &looker{a.bridge, a.watched}
	sd := &sides{
		storage: a.bridge.newStorage(), current: map[subjects.AppID]state{}, believed: map[subjects.AppID]*record{},
		events: map[subjects.AppID]*lastEvent{}, entries: map[subjects.AppID]*held{}, keys: map[string]uint64{},
	}
	sd.storage.log = zap.NewNop() // the session reports what is to be said of their configuration
	if err := v.readNATS(ctx, sd, only); err != nil {
		return looked, err
	}
	if len(sd.blocked) > 0 {
		return looked, audit.ErrInactive
	}
	if err := a.fits(s, acknowledged, sd.storage.stream, sd.storage.bucket); err != nil {
		return looked, err
	}
	after := s.believe(ids)
	if a.session() != s {
		return looked, audit.ErrInactive
	}
	for _, id := range ids {
		b := before[id]
		last := sd.events[id].sequence()
		if b != after[id] || !b.settled() || last > followed || b.record != nil && last > b.record.fence() {
			key, _ := id.Key() // it was parsed from one
			looked.Unsettled[key] = true
			delete(sd.events, id)
			delete(sd.entries, id)
			continue
		}
		sd.believed[id] = b.record
		if b.there {
			sd.current[id] = b.state
		}
	}
	differences, _ := v.judge(sd)
	for _, d := range differences {
		if d.App != nil && a.tolerates(d, before[d.id], sd.entries[d.id], sd.events[d.id]) {
			continue
		}
		looked.Differences = append(looked.Differences, d.found())
	}
	return looked, nil
}

// tolerates reports whether a difference is one that the bridge itself made and would make again.
func (a *storageAudit) tolerates(d Difference, b belief, h *held, e *lastEvent) bool {
	own := h != nil && b.entry > 0 && h.stored == b.entry // written by this bridge, or read when the session began
	switch d.Kind {
	case DifferenceBucketEncoding:
		return own // one that does not fit in the configured encoding keeps its own
	case DifferenceBucketHeaders:
		return own && h.header.Get(subjects.HeaderTruncated) != e.header.Get(subjects.HeaderTruncated)
	case DifferenceMissingEntry, DifferenceMissingMarker:
		// An entry that cannot be made.
		_, err := a.bridge.newBucket(a.bridge.js).entry(d.id, e.record, e.header)
		return err != nil
	case DifferenceDamagedEntry:
		return h == nil || h.record != nil // likewise
	case DifferenceApp:
		// Whether the count of an entry without a status is the present one, only its event could show.
		return e == nil && h != nil && h.record != nil && h.record.leftOut(subjects.TruncatedStatus)
	}
	return false
}

// Repair has the projector write from the stream what is wrong in the bucket. What the stream lacks,
// the next session publishes.
func (a *storageAudit) Repair(ctx context.Context, differences []audit.Difference) error {
	s := a.session()
	if s == nil {
		return nil // the next one begins by comparing
	}
	var ids, ghosts []subjects.AppID
	stream := false
	for _, d := range differences {
		id, err := subjects.ParseKey(d.Subject)
		switch {
		case err != nil:
		case d.Kind == string(DifferenceGhostEntry):
			ghosts = append(ghosts, id)
		default:
			ids = append(ids, id)
			stream = stream || d.Side == string(SideStream)
		}
	}
	s.projector.disown(ghosts...)
	if !stream {
		s.projector.distrust(false, ids...)
		return nil
	}
	if err := s.leads(ctx, s.kube); err != nil {
		return fmt.Errorf("confirm that this bridge leads: %w", err)
	}
	a.bridge.doubt(ids)
	s.cancel(errAudit)
	return nil
}

// doubt has the next session take the entries of apps for damaged.
func (b *Bridge) doubt(ids []subjects.AppID) {
	b.doubtMu.Lock()
	defer b.doubtMu.Unlock()
	for _, id := range ids {
		if !slices.Contains(b.doubted, id) {
			b.doubted = append(b.doubted, id)
		}
	}
}

// takeDoubted returns the apps whose entries count as damaged, once.
func (b *Bridge) takeDoubted() []subjects.AppID {
	b.doubtMu.Lock()
	defer b.doubtMu.Unlock()
	ids := b.doubted
	b.doubted = nil
	return ids
}

// doubtEntry marks an app's entry as damaged, so that its last event says what was published of it.
func (snap *snapshot) doubtEntry(id subjects.AppID) {
	r := snap.records[id]
	if r.isDamaged() {
		return
	}
	snap.records[id] = &record{damaged: true, entry: snap.stored[id].sequence, held: r}
}
