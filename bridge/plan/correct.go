package plan

import (
	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// Reading is what the leaders show of an app, beside what a session has from the bucket.
type Reading struct {
	Had   *app.Record // from the bucket; nil: nothing was published
	Known bool        // the bucket was read, and has or had the app's key
	Last  *app.Record // of the last event, as it was read; nil: there is none
	// Wrongly: the entry names another app's event.
	Wrongly bool
	// From is the sequence up to which the session has read the stream.
	From uint64
}

// Verdict says which of the two counts, and what it means for the entry.
type Verdict int

// The verdicts.
const (
	KeepRecord   Verdict = iota // what the bucket shows, or another bridge's event, which is delivered
	TakeEvent                   // the bucket does not have to have it
	MissingKey                  // the event counts; the bucket lacks the app's entry
	WrongKey                    // the event counts; the entry shows something else
	NeverAnEvent                // nothing was published of the app; its entry is to be removed
)

// Correct compares an entry with the app's last event, which was read for it.
func Correct(r Reading) Verdict {
	last, had := r.Last, r.Had
	switch {
	case !r.Known && last.Exists() && last.Sequence <= r.From:
		return MissingKey
	case !r.Known:
		return TakeEvent
	case had == nil || had.Damaged || had.EventLost || last.Previous() > r.From:
		return KeepRecord // another bridge has published
	case r.Wrongly && last.Previous() == 0:
		return NeverAnEvent
	case last.Previous() < had.Sequence && !r.Wrongly:
		return KeepRecord // its event was removed since
	case last.Sequence != had.Sequence || last.Kind == subjects.Deleted || !sameRecord(had, last):
		return WrongKey
	}
	return KeepRecord
}

// sameRecord reports whether an entry shows what its event does. An entry may lack what did not
// fit.
func sameRecord(entry, event *app.Record) bool {
	return entry.UID == event.UID && entry.ResourceVersion == event.ResourceVersion && entry.Namespace == event.Namespace && entry.Truncated == event.Truncated &&
		app.SameApp(entry.App, event.App, app.WeakerEncoding(entry.ContentType, event.ContentType))
}

// Key is a key of the bucket whose app has no event in the stream.
type Key struct {
	// Damaged is the record of a key that is missing or cannot be compared with the stream; nil: Entry has what the
	// bucket holds, and the projector did not write it.
	Damaged *app.Record
	Entry   *Entry
	Written bool // the projector wrote the key before
	Other   bool // the stream has another app's event at the entry's sequence
	// Followed is the sequence up to which the projector has followed the stream.
	Followed uint64
}

// KeyStep is what is owed for a key.
type KeyStep int

// The steps.
const (
	KeyStays   KeyStep = iota // retention may have taken its event
	KeyWaits                  // a reader may know the app by it: it stays until a create or a delete is published
	KeyRemoved                // there was no such app
)

// WithoutEvent returns what is owed for a key whose app has no event in the stream.
func WithoutEvent(k Key) KeyStep {
	switch {
	case k.Damaged != nil && k.Damaged.Held.Exists():
		return KeyWaits // the stream lost the event
	case k.Damaged == nil && !k.Other && (k.Written || k.Entry.Sequence() > k.Followed):
		return KeyStays
	}
	return KeyRemoved // it was followed past the entry's event
}
