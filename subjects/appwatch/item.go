package appwatch

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// Type says what an [Item] is.
type Type int

// The types of an Item.
const (
	// State is an app in a snapshot. After a Restart also one that is gone, with Kind Deleted.
	State Type = iota + 1
	// Mark ends a snapshot: the apps are those of the stream at Item.Position. With From or Since it
	// says that the events that the stream held at the start have been yielded.
	Mark
	// Event is a change of an app.
	Event
	// Loss reports that events are lost, and which: Item.Lost, with Item.Reason ErrNotice or
	// ErrRemoved. Events go on. A Restart follows once what was lost is repaired.
	//
	// With NoSnapshot none does, and the reason may be that of one. Behind ErrRolledBack sequences
	// from Lost.From on are used again: events up to Lost.To that were yielded are no longer part of
	// the history, and other events have, or get, their sequences. Behind ErrOtherStream all sequences
	// are used again, and positions have another StreamID.
	Loss
	// Restart begins a snapshot that is read again. Every app that is selected follows as a State,
	// then a Mark, then events. A reader that keeps a copy drops, at the Mark, the apps that did not
	// come.
	Restart
)

// String is the name of the type in lower case.
func (t Type) String() string {
	switch t {
	case State:
		return "state"
	case Mark:
		return "mark"
	case Event:
		return "event"
	case Loss:
		return "loss"
	case Restart:
		return "restart"
	default:
		return "type " + strconv.Itoa(int(t))
	}
}

// Item is what Watch yields. It may be kept. Its methods decode the message when they are called, so
// that a program pays for what it reads.
type Item struct {
	Type Type
	// Position is where a program resumes that has handled this item. It is zero only on a State and a
	// Restart: before the Mark there is none.
	Position Position
	// ID is the app, of a State and an Event.
	ID subjects.AppID
	// Kind is the kind of the Event; on a State, of the last event of the app.
	Kind subjects.EventKind
	// Sequence is that of the event in the stream of origin; on a State, of the event that it
	// reflects.
	Sequence uint64
	// Changed is true on a State behind a Restart that differs from what was yielded before or, where
	// this Watch began with From, was published behind that position. It is also true where that
	// cannot be excluded: the app may have had an event that was yielded before From and is lost, or
	// that the bucket has not got yet, or the sequence may have been used again.
	Changed bool
	// Skipped counts the events of the app that Latest dropped for this one.
	Skipped int
	// Lost is the range of sequences that a Loss, or a Restart, is about; zero: not known.
	Lost subjects.LostRange
	// Reason is why: one of the errors of this package, wrapped. Only on a Loss and a Restart.
	Reason error

	msg      *nats.Msg
	before   string // PreviousStatus, if known from another message
	override bool   // before is that
	entry    bool   // msg is a bucket entry
	bare     bool   // without body
	stored   int64  // when the server stored msg, in nanoseconds
}

// Exists reports whether the app exists after a State or an Event.
func (it Item) Exists() bool {
	return (it.Type == State || it.Type == Event) && it.Kind != subjects.Deleted
}

// State is the app: after the event, or as it was before its delete. It is nil on a State of an app
// that is gone. Fields that the message does not have are missing: see Lacks.
func (it Item) State() (*appv1.App, error) {
	if it.entry {
		if it.Kind == subjects.Deleted {
			return nil, nil
		}
		var app appv1.App
		if err := it.decode(&app); err != nil {
			return nil, err
		}
		return &app, nil
	}
	w, err := it.response()
	switch {
	case err != nil || w == nil:
		return nil, err
	case w.GetCreateEvent() != nil:
		return w.GetCreateEvent().GetApp(), nil
	case w.GetUpdateEvent() != nil:
		return w.GetUpdateEvent().GetUpdatedApp(), nil
	default:
		return w.GetDeleteEvent().GetApp(), nil
	}
}

// Old is the app before an Event: nil if there was none, on a State, and where the message lacks it
// (Lacks of [subjects.TruncatedOldApp]).
func (it Item) Old() (*appv1.App, error) {
	if it.entry {
		return nil, nil
	}
	w, err := it.response()
	switch {
	case err != nil || w == nil:
		return nil, err
	case w.GetDeleteEvent() != nil:
		return w.GetDeleteEvent().GetApp(), nil
	default:
		return w.GetUpdateEvent().GetOldApp(), nil
	}
}

// response is the payload of an Event; nil for any other item.
func (it Item) response() (*appv1.WatchResponse, error) {
	if it.Type != Event && it.Type != State || it.msg == nil {
		return nil, nil
	}
	var w appv1.WatchResponse
	if err := it.decode(&w); err != nil {
		return nil, err
	}
	kind := map[bool]subjects.EventKind{
		w.GetCreateEvent() != nil: subjects.Created, w.GetUpdateEvent() != nil: subjects.Updated, w.GetDeleteEvent() != nil: subjects.Deleted,
	}[true]
	if kind != it.Kind {
		return nil, fmt.Errorf("decode event %d of %s: the payload is no %s event", it.Sequence, it.ID, it.Kind)
	}
	return &w, nil
}

// Lacks reports whether the message does not have a field because it did not fit:
// [subjects.TruncatedOldApp], [subjects.TruncatedSpec] or [subjects.TruncatedStatus]. The app may
// well have it.
func (it Item) Lacks(field string) bool {
	for word := range strings.SplitSeq(it.get(subjects.HeaderTruncated), ",") {
		if word == field && word != "" {
			return true
		}
	}
	return false
}

// Status is one word for the state of the app: ACTIVE, PENDING, FAILED, STOPPED, or a word of a
// newer version. Empty: none is known, or the app is gone.
func (it Item) Status() string {
	if it.Kind == subjects.Deleted {
		return ""
	}
	return it.get(subjects.HeaderAppStatus)
}

// PreviousStatus is the Status before: of the app's previous event, of the first one that Latest
// skipped, or of what was yielded before a Restart.
func (it Item) PreviousStatus() string {
	if it.override {
		return it.before
	}
	return it.get(subjects.HeaderPreviousAppStatus)
}

// Became reports whether the app changed to this status.
func (it Item) Became(status string) bool {
	return it.Status() == status && it.PreviousStatus() != status
}

// PreviousSequence is the sequence of the app's previous event in the stream of origin, 0 if there
// is none.
func (it Item) PreviousSequence() uint64 { return number(it.get(subjects.HeaderPreviousSequence)) }

// Time is the newest time that the object itself carries (ce-time), zero if there is none.
func (it Item) Time() time.Time {
	t, err := time.Parse(time.RFC3339Nano, it.get(subjects.CETime))
	if err != nil {
		return time.Time{}
	}
	return t
}

// Stored is when the server stored the message, of a State: of the bucket's entry.
func (it Item) Stored() time.Time {
	if it.stored == 0 {
		return time.Time{}
	}
	return time.Unix(0, it.stored).UTC()
}

// MessageID identifies the event: the same for each copy of it.
func (it Item) MessageID() string { return it.get(subjects.CEID) }

// Merged counts the updates in between that this event stands for.
func (it Item) Merged() int {
	n := number(it.get(subjects.HeaderMergedUpdates))
	return int(min(n, 1<<31-1))
}

// Synthesized reports whether a resync found the change, which happened while no bridge ran.
func (it Item) Synthesized() bool { return it.get(subjects.HeaderSynthesized) == subjects.FlagTrue }

// FinalStateUnknown reports whether the last state before a delete was not observed.
func (it Item) FinalStateUnknown() bool {
	return it.get(subjects.HeaderFinalStateUnknown) == subjects.FlagTrue
}

// Header has all headers of the message. It must not be changed.
func (it Item) Header() nats.Header {
	if it.msg == nil {
		return nil
	}
	return it.msg.Header
}

// Data is the body: a WatchResponse, on a State from the bucket an App. It must not be changed.
func (it Item) Data() []byte {
	if it.msg == nil {
		return nil
	}
	return it.msg.Data
}

// Subject is that of the message.
func (it Item) Subject() string {
	if it.msg == nil {
		return ""
	}
	return it.msg.Subject
}

func (it *Item) get(name string) string {
	if it.msg == nil {
		return ""
	}
	return first(it.msg.Header, name)
}

// first is Header.Get.
func first(h nats.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// number is a decimal header, 0 for anything else.
func number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

var errNoPayload = errors.New("the item has no message")

func (it *Item) decode(m proto.Message) error {
	if it.msg == nil {
		return errNoPayload
	}
	if it.bare {
		return ErrNoBody
	}
	if err := appv1.Decode(it.msg.Data, it.get(subjects.CEDataContentType), m); err != nil {
		return fmt.Errorf("decode event %d of %s: %w", it.Sequence, it.ID, err)
	}
	return nil
}
