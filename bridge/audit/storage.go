package audit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/projector"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// StoragePart compares stream and bucket with each other and with what the live session believes.
// Its subjects are keys of apps, and foreign subjects of the bucket's stream.
type StoragePart struct {
	Target  *Target
	Session func() Session // nil if none is live

	waiting waiting
}

// Active reports whether a session is live.
func (a *StoragePart) Active() bool { return a.Session() != nil }

// ends reads stream and bucket from their leaders; ErrInactive if they are not the session's.
func (a *StoragePart) ends(ctx context.Context, s Session) (stream, bucket *jetstream.StreamInfo, err error) {
	if err := a.Target.Connected(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInactive, err)
	}
	fits, storage := s.Anchor(), a.Target.Storage()
	if err := storage.LookUp(ctx); err != nil {
		return nil, nil, err
	}
	return storage.Stream, storage.Bucket, fits(storage.Stream, storage.Bucket)
}

// Screen compares the headers of all messages of stream and bucket with the session's beliefs. An app
// that waits for the same over more than two rounds is a suspect.
func (a *StoragePart) Screen(ctx context.Context, pace *Pace) (suspects []string, err error) {
	defer func() { a.waiting.end(err == nil) }()
	s, t := a.Session(), a.Target
	if s == nil {
		return nil, ErrInactive
	}
	stream, _, err := a.ends(ctx, s)
	if err != nil {
		return nil, err
	}
	screen := NewScreen(t.Subjects, t.Bucket, stream.State.FirstSeq, stream.State.LastSeq, func(stored time.Time) bool {
		return t.Entries.Outlived(stored, time.Now())
	})
	if err := a.headers(ctx, t.Stream, t.Subjects.Events(), pace, screen.AddEvent); err != nil {
		return nil, err
	}
	_, bucket, err := a.ends(ctx, s)
	if err != nil {
		return nil, err
	}
	published := s.Published()
	beliefs := make([]Expected, 0, len(published))
	for _, ids := range [][]subjects.AppID{published, s.Present()} {
		for id, b := range s.Believe(ids) {
			screened := b.expected(id)
			if b.differs(t.Watched) || a.waiting.note(screened.Key, b.Waits) {
				screen.suspect(screened.Key)
			}
			if b.Record != nil && len(beliefs) < cap(beliefs) {
				beliefs = append(beliefs, screened)
			}
		}
	}
	screen.Believe(beliefs, bucket.State.LastSeq)
	// Everything in the bucket's stream, also what is no key.
	if err := a.headers(ctx, subjects.BucketStream(t.Bucket), store.AllMessages, pace, screen.AddEntry); err != nil {
		return nil, err
	}
	if a.Session() != s {
		return nil, ErrInactive
	}
	return screen.Suspects(func(sequence uint64) (string, error) {
		m, err := store.OrNone(store.MessageAt(ctx, t.JetStream, t.Stream, sequence))
		if m == nil {
			return "", err
		}
		id, _, err := t.Subjects.ParseEvent(m.Subject)
		if err != nil {
			return "", nil //nolint:nilerr // another message has that sequence by now
		}
		return id.Key()
	})
}

// headers reads the headers of each subject's newest message, at least as far as the leader's end.
func (a *StoragePart) headers(ctx context.Context, stream, filter string, pace *Pace, visit func(*store.Message)) error {
	return store.FollowLast(ctx, a.Target.JetStream, stream, filter, true, func(m *store.Message) error {
		visit(m)
		return pace.Step(ctx)
	})
}

// selected are the apps and foreign keys that subjects name.
func selected(names []string) *selection {
	only := &selection{apps: map[subjects.AppID]struct{}{}, keys: map[string]struct{}{}}
	for _, name := range names {
		if id, err := subjects.ParseKey(name); err == nil {
			only.apps[id] = struct{}{}
		} else {
			only.keys[name] = struct{}{}
		}
	}
	return only
}

// Look compares as verify does, with the source as the cluster's side. An app whose belief changed
// meanwhile is not judged, nor one whose last event in the stream is later than the belief.
func (a *StoragePart) Look(ctx context.Context, names []string) (Looked, error) {
	looked := Looked{Changing: map[string]bool{}}
	s := a.Session()
	if s == nil {
		return looked, ErrInactive
	}
	only := selected(names)
	ids := slices.Collect(maps.Keys(only.apps))
	fits, followed := s.Anchor(), s.Followed()
	before := s.Believe(ids)
	sd := a.Target.newSides()
	sd.bridge = map[subjects.AppID]plan.Bridge{}
	if err := a.Target.readNATS(ctx, sd, only); err != nil {
		return looked, err
	}
	if len(sd.blocked) > 0 {
		return looked, ErrInactive
	}
	if err := fits(sd.storage.Stream, sd.storage.Bucket); err != nil {
		return looked, err
	}
	after := s.Believe(ids)
	if a.Session() != s {
		return looked, ErrInactive
	}
	var stuckApps []Difference
	for _, id := range ids {
		b := before[id]
		last := sd.events[id].Sequence()
		key, _ := id.Key() // it was parsed from one
		what := b.Waits
		if !b.Pending && (last > followed || b.Record != nil && last > b.Record.Fence()) {
			what = fmt.Sprintf("the stream has a later event, at %d", last)
		}
		stuck := what != "" && b == after[id] && a.waiting.note(key, what)
		if stuck && b.Queued {
			stuckApps = append(stuckApps, about(id, DifferencePending, plan.SideStream, "%s; %s", what, cmp.Or(s.Blocked(), "the stream accepts other events")))
		}
		if b != after[id] || stuck && b.Queued || !stuck && (b.Pending || what != "") {
			looked.Changing[key] = !stuck
			delete(sd.events, id)
			delete(sd.entries, id)
			continue
		}
		sd.bridge[id] = plan.Bridge{Record: b.Record, Entry: b.Key.Entry}
		if b.Present {
			sd.current[id] = b.State
		}
	}
	looked.Findings, _ = a.Target.judge(sd)
	looked.Findings = append(looked.Findings, stuckApps...)
	return looked, nil
}

// Repair has the session write wrong entries. The next session publishes what the stream lacks.
func (a *StoragePart) Repair(ctx context.Context, findings []Difference) error {
	s := a.Session()
	if s == nil {
		return nil // the next one starts with a reconciliation
	}
	var ids, ghosts []subjects.AppID
	stream := false
	for _, d := range findings {
		id, err := subjects.ParseKey(d.Subject())
		switch {
		case err != nil, d.Kind == DifferencePending: // it is published once that is possible
		case d.Kind == plan.GhostEntry:
			ghosts = append(ghosts, id)
		default:
			ids = append(ids, id)
			stream = stream || d.Side == plan.SideStream
		}
	}
	s.Purge(ghosts)
	if !stream {
		s.Rewrite(ids)
		return nil
	}
	return s.Restart(ctx, ids)
}

// Session is the session that publishes at present, as the audit reads it. Two of them can be
// compared with ==. Its methods are safe for concurrent use.
type Session interface {
	// Anchor returns a check of what stream and bucket are later against what the session has seen
	// acknowledged by now. The check returns audit.ErrInactive if they are not those of the
	// session, or lack acknowledged messages: the session finds that itself.
	Anchor() func(stream, bucket *jetstream.StreamInfo) error
	// Followed is the sequence up to which the session has read the stream.
	Followed() uint64
	// Published returns the apps that have a record, Present those that the cluster has.
	Published() []subjects.AppID
	Present() []subjects.AppID
	// Believe returns what the session believes of apps; the zero Belief of an unknown one.
	Believe(ids []subjects.AppID) map[subjects.AppID]Belief
	// Blocked is why nothing, or nothing of some apps, is published at present, "" if there is no reason.
	Blocked() string
	// Rewrite has the entries of apps compared with their last events and written if they differ.
	Rewrite(ids []subjects.AppID)
	// Purge has the entries of apps purged that were never published.
	Purge(ids []subjects.AppID)
	// Restart ends the session, so that the next one publishes what the stream lacks of apps.
	Restart(ctx context.Context, ids []subjects.AppID) error
}

// Belief is what a live session believes of one app. Two of them can be compared with ==.
type Belief struct {
	Record  *app.Record // of the app's last event; nil: there is none, or it is not kept
	State   app.State   // zero if the cluster does not have the app
	Present bool        // the cluster has the app
	Pending bool        // a change of the app is in progress
	Queued  bool        // that change waits for the stream
	// Waits is what a pending app waits for, always in the same words; "" while that takes as long as
	// NATS needs, which readiness reports.
	Waits string
	Key   projector.KeyState
}

// WithKey adds what the projector knows of the app's key. written is the sequence up to which the
// bucket reflects the stream.
func (b Belief) WithKey(key projector.KeyState, written uint64) Belief {
	r := b.Record
	if !b.Pending && written >= r.Stands() {
		b.Waits = fmt.Sprintf("the bucket's key at %d reflects %d, the last event is at %d", key.Entry, key.Event, r.Stands())
	}
	b.Pending = b.Pending || written < r.Stands() || key.Touched > r.Fence()
	key.Touched = 0 // it changes without the key
	b.Key = key
	if r.Exists() {
		// An entry that is not known, or cannot be made, is not expected.
		b.Pending = b.Pending || key.Entry == 0 || !key.Exists || key.Event != r.Stands()
	} else {
		b.Pending = b.Pending || r != nil && key.Known && key.Exists
	}
	if !b.Pending {
		b.Waits = ""
	}
	return b
}

// expected is the part of the belief that the screen compares.
func (b Belief) expected(id subjects.AppID) Expected {
	key, _ := id.Key() // an app with a bad id is on no side
	return Expected{
		Key: key, Pending: b.Pending, Exists: b.Record.Exists(), Sequence: b.Record.Stands(), Fence: b.Record.Fence(),
		Entry: b.Key.Entry, Event: b.Key.Event,
	}
}

// differs reports whether a cheap comparison of cluster and record finds a difference.
func (b Belief) differs(watched func(namespace string) bool) bool {
	var now *app.State
	if b.Present {
		now = &b.State
	}
	return !b.Pending && plan.Differs(b.Record, now, watched)
}
