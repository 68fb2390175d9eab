package bridge

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

// encoder turns changes into messages. It is pure: the same change after the
// same record gives the same bytes.
type encoder struct {
	subjects subjects.Subjects
	source   string // ce-source
	stream   string
	form     string // content type of new messages
	app      kservice.Config
	maxSize  func() int // of a message with its headers, in bytes; the server may change it
}

// event is a message ready to be appended, and what the app's record will be
// once it is (the sequence is still missing).
type event struct {
	id       subjects.AppID
	msg      *nats.Msg
	fence    uint64 // the last sequence of the app's subjects that is expected
	previous uint64 // the sequence of the app's previous event
	record   *record
}

// encode makes the event for c after prev, the newest event of that app, nil
// if there is none.
func (e *encoder) encode(id subjects.AppID, c *change, prev *record) (*event, error) {
	next := &record{contentType: e.form}
	var changedAt time.Time
	h := nats.Header{}

	if c.remove {
		next.kind = subjects.Deleted
		next.uid, next.resourceVersion, next.generation = prev.uid, prev.resourceVersion, prev.generation
		next.namespace, next.deletedVersion = prev.namespace, c.deletedVersion
		next.app = prev.app
		changedAt = c.changedAt
		if changedAt.IsZero() {
			changedAt = newestTime(prev.app)
		}
	} else {
		svc := c.state.service
		next.kind = subjects.Created
		if prev.exists() {
			next.kind = subjects.Updated
		}
		next.uid, next.resourceVersion = string(svc.UID), svc.ResourceVersion
		next.generation = strconv.FormatInt(svc.Generation, 10)
		next.namespace, next.status = svc.Namespace, kservice.StatusWord(svc)
		if r := c.state.revision; r != nil {
			next.revision, next.revisionVersion = r.Name, r.ResourceVersion
		}
		app, err := c.state.app(e.app)
		if err != nil {
			return nil, fmt.Errorf("convert %s/%s: %w", svc.Namespace, svc.Name, err)
		}
		next.app = app
		changedAt = kservice.LastChange(svc)
	}

	subject, err := e.subjects.Event(id, next.kind)
	if err != nil {
		return nil, err
	}
	filter, err := e.subjects.EventFilter(id)
	if err != nil {
		return nil, err
	}
	key, err := id.Key()
	if err != nil {
		return nil, err
	}
	msgID := subjects.MessageID{UID: next.uid, ResourceVersion: next.resourceVersion, PreviousSequence: prev.previous()}.String()

	set := func(name, value string) {
		if value != "" {
			h.Set(name, value)
		}
	}
	h.Set(subjects.HeaderMsgID, msgID)
	h.Set(subjects.HeaderExpectedStream, e.stream)
	h.Set(subjects.HeaderExpectedLastSubjectSequence, strconv.FormatUint(prev.fence(), 10))
	h.Set(subjects.HeaderExpectedLastSubjectSequenceSubject, filter)
	h.Set(subjects.CESpecVersion, subjects.SpecVersion)
	h.Set(subjects.CEID, msgID)
	h.Set(subjects.CESource, e.source)
	h.Set(subjects.CEType, next.kind.Type())
	h.Set(subjects.CESubject, key)
	if !changedAt.IsZero() {
		h.Set(subjects.CETime, changedAt.UTC().Format(time.RFC3339Nano))
	}
	set(subjects.HeaderUID, next.uid)
	set(subjects.HeaderResourceVersion, next.resourceVersion)
	set(subjects.HeaderGeneration, next.generation)
	set(subjects.HeaderNamespace, next.namespace)
	set(subjects.HeaderAppStatus, next.status)
	if next.kind != subjects.Created {
		set(subjects.HeaderPreviousAppStatus, prev.status)
	}
	set(subjects.HeaderRevision, next.revision)
	set(subjects.HeaderRevisionResourceVersion, next.revisionVersion)
	set(subjects.HeaderDeletedResourceVersion, next.deletedVersion)
	if prev.previous() > 0 {
		h.Set(subjects.HeaderPreviousSequence, strconv.FormatUint(prev.previous(), 10))
	}
	if c.merged > 0 {
		h.Set(subjects.HeaderMergedUpdates, strconv.Itoa(c.merged))
	}
	if c.synthesized {
		h.Set(subjects.HeaderSynthesized, subjects.FlagTrue)
	}
	if c.finalStateUnknown {
		h.Set(subjects.HeaderFinalStateUnknown, subjects.FlagTrue)
	}

	ev := &event{id: id, msg: &nats.Msg{Subject: subject, Header: h}, fence: prev.fence(), previous: prev.previous(), record: next}
	return ev, e.fit(ev, prev)
}

// fit encodes the payload without the fields for which the message would be too large: first
// old_app, then the spec, and on a delete the status too, since a delete has to be accepted.
func (e *encoder) fit(ev *event, prev *record) error {
	app := ev.record.app
	var old *appv1.App
	var cut []string
	leaveOut := []string{""}
	switch ev.record.kind {
	case subjects.Updated:
		old = prev.app
		leaveOut = append(leaveOut, subjects.TruncatedOldApp, subjects.TruncatedSpec)
	case subjects.Created:
		leaveOut = append(leaveOut, subjects.TruncatedSpec)
	case subjects.Deleted:
		// What the state lacked that this event ends is lacking here too.
		cut = slices.DeleteFunc(strings.Split(prev.truncated, ","), func(f string) bool { return f == subjects.TruncatedOldApp || f == "" })
		leaveOut = append(leaveOut, subjects.TruncatedSpec, subjects.TruncatedStatus)
	}
	limit := e.maxSize()
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
		data, form, err := appv1.Encode(watchResponse(ev.record.kind, app, old), e.form)
		if err != nil {
			return err
		}
		ev.msg.Data = data
		ev.msg.Header.Set(subjects.CEDataContentType, form)
		ev.record.app, ev.record.contentType, ev.record.truncated = app, form, strings.Join(cut, ",")
		if len(cut) > 0 {
			ev.msg.Header.Set(subjects.HeaderTruncated, ev.record.truncated)
		}
		if ev.msg.Size() <= limit {
			return nil
		}
	}
	return fmt.Errorf("%w: %d of %d bytes, without %s", errTooLarge, ev.msg.Size(), limit, strings.Join(cut, " and "))
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

// newestTime is the newest time an App itself carries, for a delete whose
// object was not seen.
func newestTime(app *appv1.App) time.Time {
	newest := app.GetStatus().GetCreatedAt().AsTime()
	for _, c := range app.GetStatus().GetConditions() {
		if t := c.GetLastTransitionTime().AsTime(); t.After(newest) {
			newest = t
		}
	}
	return newest
}
