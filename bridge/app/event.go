package app

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// Encoder turns changes into messages: the same change after the same record yields the same bytes.
type Encoder struct {
	Subjects subjects.Subjects
	Source   string // ce-source
	Stream   string
	Form     string // content type of new messages
	App      kservice.Config
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
	next := &Record{ContentType: e.Form}
	var changedAt time.Time
	h := nats.Header{}

	if c.Remove {
		next.Kind = subjects.Deleted
		next.UID, next.ResourceVersion, next.generation = prev.UID, prev.ResourceVersion, prev.generation
		next.Namespace, next.DeletedVersion = prev.Namespace, c.DeletedVersion
		next.App = prev.App
		changedAt = c.ChangedAt
		if changedAt.IsZero() {
			changedAt = newestTime(prev.App)
		}
	} else {
		svc := c.State.Service
		next.Kind = subjects.Created
		if prev.Exists() {
			next.Kind = subjects.Updated
		}
		next.UID, next.ResourceVersion = string(svc.UID), svc.ResourceVersion
		next.generation = strconv.FormatInt(svc.Generation, 10)
		next.Namespace, next.Status = svc.Namespace, kservice.StatusWord(svc)
		if r := c.State.Revision; r != nil {
			next.Revision, next.revisionVersion = r.Name, r.ResourceVersion
		}
		app, err := c.State.App(e.App)
		if err != nil {
			return nil, fmt.Errorf("convert %s/%s: %w", svc.Namespace, svc.Name, err)
		}
		next.App = app
		changedAt = kservice.LastChange(svc)
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

	set := func(name, value string) {
		if value != "" {
			h.Set(name, value)
		}
	}
	h.Set(subjects.HeaderMsgID, msgID)
	h.Set(subjects.HeaderExpectedStream, e.Stream)
	h.Set(subjects.HeaderExpectedLastSubjectSequence, strconv.FormatUint(prev.Fence(), 10))
	h.Set(subjects.HeaderExpectedLastSubjectSequenceSubject, filter)
	h.Set(subjects.CESpecVersion, subjects.SpecVersion)
	h.Set(subjects.CEID, msgID)
	h.Set(subjects.CESource, e.Source)
	h.Set(subjects.CEType, next.Kind.Type())
	h.Set(subjects.CESubject, key)
	if !changedAt.IsZero() {
		h.Set(subjects.CETime, changedAt.UTC().Format(time.RFC3339Nano))
	}
	set(subjects.HeaderUID, next.UID)
	set(subjects.HeaderResourceVersion, next.ResourceVersion)
	set(subjects.HeaderGeneration, next.generation)
	set(subjects.HeaderNamespace, next.Namespace)
	set(subjects.HeaderAppStatus, next.Status)
	if next.Kind != subjects.Created {
		set(subjects.HeaderPreviousAppStatus, prev.Status)
	}
	set(subjects.HeaderRevision, next.Revision)
	set(subjects.HeaderRevisionResourceVersion, next.revisionVersion)
	set(subjects.HeaderDeletedResourceVersion, next.DeletedVersion)
	if prev.Previous() > 0 {
		h.Set(subjects.HeaderPreviousSequence, strconv.FormatUint(prev.Previous(), 10))
	}
	if c.Merged > 0 {
		h.Set(subjects.HeaderMergedUpdates, strconv.Itoa(c.Merged))
	}
	if c.Synthesized {
		h.Set(subjects.HeaderSynthesized, subjects.FlagTrue)
	}
	if c.FinalStateUnknown {
		h.Set(subjects.HeaderFinalStateUnknown, subjects.FlagTrue)
	}

	ev := &Event{ID: id, Msg: &nats.Msg{Subject: subject, Header: h}, Fence: prev.Fence(), previous: prev.Previous(), Record: next}
	return ev, e.fit(ev, prev)
}

// fit encodes the payload without the fields for which the message would be too large: first
// old_app, then the spec, and on a delete the status too, since a delete has to be accepted.
func (e *Encoder) fit(ev *Event, prev *Record) error {
	app := ev.Record.App
	var old *appv1.App
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
		switch field {
		case subjects.TruncatedOldApp:
			old = nil
		case subjects.TruncatedSpec:
			app = proto.CloneOf(app)
			app.Spec = nil
		case subjects.TruncatedStatus:
			app.Status = nil
		}
		if field != "" && !slices.Contains(cut, field) {
			cut = append(cut, field)
		}
		data, form, err := appv1.Encode(watchResponse(ev.Record.Kind, app, old), e.Form)
		if err != nil {
			return err
		}
		ev.Msg.Data = data
		ev.Msg.Header.Set(subjects.CEDataContentType, form)
		ev.Record.App, ev.Record.ContentType, ev.Record.Truncated = app, form, strings.Join(cut, ",")
		if len(cut) > 0 {
			ev.Msg.Header.Set(subjects.HeaderTruncated, ev.Record.Truncated)
		}
		if ev.Msg.Size() <= limit {
			return nil
		}
	}
	return fmt.Errorf("%w: %d of %d bytes, without %s", ErrTooLarge, ev.Msg.Size(), limit, strings.Join(cut, " and "))
}

func watchResponse(kind subjects.EventKind, app, old *appv1.App) *appv1.WatchResponse {
	switch kind {
	case subjects.Created:
		return kservice.Created(app)
	case subjects.Updated:
		return kservice.Updated(app, old)
	default:
		return kservice.Deleted(app)
	}
}

// newestTime is the newest time an App itself carries, for a delete whose object was not seen.
func newestTime(app *appv1.App) time.Time {
	newest := app.GetStatus().GetCreatedAt().AsTime()
	for _, c := range app.GetStatus().GetConditions() {
		if t := c.GetLastTransitionTime().AsTime(); t.After(newest) {
			newest = t
		}
	}
	return newest
}
