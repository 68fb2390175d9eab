package audit

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

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
	Key     BelievedKey
}

// BelievedKey is what a live session believes of an app's key in the bucket.
type BelievedKey struct {
	Known  bool   // the session tracks the key
	Exists bool   // the key holds an entry, no delete marker
	Event  uint64 // the sequence that it reflects, 0 if that is not known
	Entry  uint64 // its sequence in the bucket's stream, 0 if that is not known
}

// WithKey adds what the session believes of the app's key. written is the sequence up to which the
// bucket reflects the stream, touched that of an event on the app's subject that is not judged yet.
func (b Belief) WithKey(key BelievedKey, written, touched uint64) Belief {
	r := b.Record
	b.Key = key
	b.Pending = b.Pending || written < r.Stands() || touched > r.Fence()
	if r.Exists() {
		// An entry that is not known, or cannot be made, is not expected.
		b.Pending = b.Pending || key.Entry == 0 || !key.Exists || key.Event != r.Stands()
	} else {
		b.Pending = b.Pending || r != nil && key.Known && key.Exists
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

// doubtful reports whether a cheap comparison of cluster and record finds a difference.
func (b Belief) doubtful(watched func(namespace string) bool) bool {
	r := b.Record
	switch {
	case b.Pending:
		return false
	case !b.Present:
		return r.Exists() && watched(r.Namespace)
	case !r.Exists():
		return true
	}
	svc := b.State.Service
	return r.UID != string(svc.UID) || r.ResourceVersion != svc.ResourceVersion || int32(r.App.Replicas()) != app.Replicas(b.State)
}
