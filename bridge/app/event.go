package app

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

// Encoder turns changes into messages: the same change after the same record yields the same bytes.
type Encoder struct {
	Subjects subjects.Subjects
	Source   string // ce-source
	Stream   string
	Form     string     // content type of new messages
	MaxSize  func() int // of a message with its headers, in bytes; the server may change it
}

// Event is a message to be appended, and the app's record after that, still without its sequence.
type Event struct {
	ID       subjects.AppID
	Msg      *nats.Msg
	Fence    uint64 // the last sequence of the app's subjects that is expected
	previous uint64 // the sequence of the app's previous event
	Record   *Record
}

// Encode makes the event for c after prev, the newest event of that app, nil if there is none.
func (e *Encoder) Encode(id subjects.AppID, c *Change, prev *Record) (*Event, error) {
	next, changedAt, err := nextRecord(c, prev)
	if err != nil {
		return nil, err
	}
	subject, err := e.Subjects.Event(id, next.Kind)
	if err != nil {
		return nil, err
	}
	filter, err := e.Subjects.EventFilter(id)
	if err != nil {
		return nil, err
	}
	key, err := id.Key()
	if err != nil {
		return nil, err
	}
	msgID := subjects.MessageID{UID: next.UID, ResourceVersion: next.ResourceVersion, PreviousSequence: prev.Previous()}.String()

	h := newHeaders()
	h.set(subjects.HeaderMsgID, msgID)
	h.set(subjects.HeaderExpectedStream, e.Stream)
	h.set(subjects.HeaderExpectedLastSubjectSequence, strconv.FormatUint(prev.Fence(), 10))
	h.set(subjects.HeaderExpectedLastSubjectSequenceSubject, filter)
	h.set(subjects.CESpecVersion, subjects.SpecVersion)
	h.set(subjects.CEID, msgID)
	h.set(subjects.CESource, e.Source)
	h.set(subjects.CEType, next.Kind.Type())
	h.set(subjects.CESubject, key)
	h.set(subjects.CEDataSchema, subjects.DataSchema)
	if !changedAt.IsZero() {
		h.set(subjects.CETime, changedAt.UTC().Format(time.RFC3339Nano))
	}
	h.set(subjects.HeaderUID, next.UID)
	h.set(subjects.HeaderResourceVersion, next.ResourceVersion)
	h.set(subjects.HeaderGeneration, next.generation)
	h.set(subjects.HeaderNamespace, next.Namespace)
	h.set(subjects.HeaderAppStatus, next.Status)
	if next.Kind != subjects.Created {
		h.set(subjects.HeaderPreviousAppStatus, prev.Status)
	}
	h.set(subjects.HeaderRevision, next.Revision)
	h.set(subjects.HeaderRevisionResourceVersion, next.RevisionVersion)
	h.set(subjects.HeaderReason, next.reason)
	h.set(subjects.HeaderReasonRevision, next.ReasonRevision)
	h.set(subjects.HeaderDeletedResourceVersion, next.DeletedVersion)
	if prev.Previous() > 0 {
		h.set(subjects.HeaderPreviousSequence, strconv.FormatUint(prev.Previous(), 10))
	}
	if c.Merged > 0 {
		h.set(subjects.HeaderMergedUpdates, strconv.Itoa(c.Merged))
	}
	if c.Synthesized {
		h.set(subjects.HeaderSynthesized, subjects.FlagTrue)
	}
	if c.FinalStateUnknown {
		h.set(subjects.HeaderFinalStateUnknown, subjects.FlagTrue)
	}

	ev := &Event{ID: id, Msg: &nats.Msg{Subject: subject, Header: h.header}, Fence: prev.Fence(), previous: prev.Previous(), Record: next}
	return ev, e.fit(ev, prev)
}

// nextRecord is the record of the event for c after prev, and the time of the change.
func nextRecord(c *Change, prev *Record) (next *Record, changedAt time.Time, err error) {
	if c.Remove {
		next = &Record{
			Kind: subjects.Deleted, UID: prev.UID, ResourceVersion: prev.ResourceVersion, generation: prev.generation,
			Namespace: prev.Namespace, DeletedVersion: c.DeletedVersion, App: prev.App,
		}
		if changedAt = c.ChangedAt; changedAt.IsZero() {
			changedAt, err = newestTime(prev.App)
		}
		return next, changedAt, err
	}
	svc := c.State.Service
	next = &Record{
		Kind: subjects.Created, UID: string(svc.UID), ResourceVersion: svc.ResourceVersion, generation: strconv.FormatInt(svc.Generation, 10),
		Namespace: svc.Namespace, Status: svc.Status,
	}
	if prev.Exists() {
		next.Kind = subjects.Updated
	}
	if r := c.State.Revision; r != nil {
		next.Revision, next.RevisionVersion = r.Name, r.ResourceVersion
	}
	next.reason, next.ReasonRevision = c.State.Pods.Reason(), c.State.Pods.Revision
	next.App, err = c.State.App()
	return next, svc.LastChange, err
}

// eventHeaders is how many headers an event has at most, with those of its fence.
const eventHeaders = 29

// headers makes the headers of a message with two allocations: nats.Header has a slice for each.
type headers struct {
	header nats.Header
	values []string
}

func newHeaders() headers {
	return headers{make(nats.Header, eventHeaders), make([]string, 0, eventHeaders)}
}

// set sets a header, unless the value is empty.
func (h *headers) set(name, value string) {
	if value != "" {
		h.values = append(h.values, value)
		n := len(h.values)
		h.header[name] = h.values[n-1 : n : n]
	}
}

// fit encodes the payload without the fields for which the message would be too large: first
// old_app, then the spec, and on a delete the status too, since a delete has to be accepted.
func (e *Encoder) fit(ev *Event, prev *Record) error {
	var old Encoded
	var cut []string
	leaveOut := []string{""}
	switch ev.Record.Kind {
	case subjects.Updated:
		old = prev.App
		leaveOut = append(leaveOut, subjects.TruncatedOldApp, subjects.TruncatedSpec)
	case subjects.Created:
		leaveOut = append(leaveOut, subjects.TruncatedSpec)
	case subjects.Deleted:
		// What the state lacked that this event ends is lacking here too.
		cut = slices.DeleteFunc(strings.Split(prev.Truncated, ","), func(f string) bool { return f == subjects.TruncatedOldApp || f == "" })
		leaveOut = append(leaveOut, subjects.TruncatedSpec, subjects.TruncatedStatus)
	}
	limit := e.MaxSize()
	for _, field := range leaveOut {
		if field == subjects.TruncatedOldApp {
			old = Encoded{}
		}
		var err error
		if ev.Record.App, err = ev.Record.App.Without(field); err != nil {
			return err
		}
		if field != "" && !slices.Contains(cut, field) {
			cut = append(cut, field)
		}
		if ev.Msg.Data, ev.Record.ContentType, err = e.payload(ev.Record.Kind, ev.Record.App, old); err != nil {
			return err
		}
		ev.Record.Truncated = strings.Join(cut, ",")
		ev.Msg.Header.Set(subjects.CEDataContentType, ev.Record.ContentType)
		if len(cut) > 0 {
			ev.Msg.Header.Set(subjects.HeaderTruncated, ev.Record.Truncated)
		}
		if ev.Msg.Size() <= limit {
			return nil
		}
	}
	tooLarge := &TooLargeError{Size: ev.Msg.Size(), Limit: limit, Without: cut}
	named, err := ev.Record.App.Without(subjects.TruncatedStatus)
	if err != nil {
		return err
	}
	data, _, err := e.payload(ev.Record.Kind, named, Encoded{})
	tooLarge.Smallest = tooLarge.Size - len(ev.Msg.Data) + len(data)
	return cmp.Or(err, error(tooLarge))
}

// newestTime is the newest time an App itself carries, for a delete whose object was not seen.
func newestTime(encoded Encoded) (time.Time, error) {
	app, err := encoded.App()
	newest := app.GetStatus().GetCreatedAt().AsTime()
	for _, c := range app.GetStatus().GetConditions() {
		if t := c.GetLastTransitionTime().AsTime(); t.After(newest) {
			newest = t
		}
	}
	return newest, err
}
