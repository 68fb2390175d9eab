package player

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// writer writes a stream and its bucket as package subjects describes them, and notes all of it in
// the model. It shares no code with the bridge but the names and the messages of the contract: what a
// reader needs beyond that contract, it does not find here.
type writer struct {
	box     *box
	names   subjects.Subjects
	model   *model.Model
	cluster *cluster

	form      string // content type of new messages
	streamID  string
	last      uint64 // the sequence of the stream's last message, as acknowledged
	published map[subjects.AppID]record
	headers   map[uint64]header // of the events, by sequence
	records   map[uint64]record // likewise
	lost      []subjects.LostRange
	carry     uint64 // where the bucket's stream has to be carried to; 0: it lost nothing
	bucket    bucket
}

// record is what was published of an app: its last event.
type record struct {
	sequence uint64 // what the next event refers to
	exists   bool
	object   *object // also of a deleted app: its last state
}

const stream = subjects.DefaultStream

// change is one event to append.
type change struct {
	id          subjects.AppID
	to          *object // nil: the app is gone
	merged      int
	synthesized bool
	unknown     bool     // the last state before a delete was not observed
	cut         []string // fields that do not fit
	foreign     bool     // another bridge wrote it
}

func (w *writer) streamConfig(first uint64) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: stream, Subjects: []string{w.names.Events()}, Storage: jetstream.FileStorage, FirstSeq: first,
		AllowDirect: true, Metadata: map[string]string{
			subjects.MetadataClusterUID: "6f1c0d9e-6f57-4a53-9d5c-0f3f8c1f2a77", subjects.MetadataClusterName: "histories",
			subjects.MetadataStreamID: w.streamID,
		},
	}
}

// createStream makes the stream, which goes on behind what was acknowledged.
func (w *writer) createStream(ctx context.Context) error {
	first := uint64(0)
	if w.last > 0 {
		first = w.last + 1
	}
	_, err := w.box.js.CreateStream(ctx, w.streamConfig(first))
	return err
}

// append publishes an event and notes it.
func (w *writer) append(ctx context.Context, c change) error {
	w.model.Lock()
	defer w.model.Unlock()
	prev := w.published[c.id]
	e := &model.Event{
		ID: c.id, PreviousSequence: prev.sequence, Merged: c.merged, Synthesized: c.synthesized, FinalStateUnknown: c.unknown,
	}
	shown := c.to
	switch {
	case c.to == nil:
		e.Kind, shown = subjects.Deleted, prev.object
		e.Previous = prev.object.status
	case prev.exists:
		e.Kind, e.Status, e.Previous = subjects.Updated, c.to.status, prev.object.status
		e.Old = prev.object.app
	default:
		e.Kind, e.Status = subjects.Created, c.to.status
	}
	e.UID, e.Version, e.App = shown.uid, strconv.FormatUint(shown.version, 10), proto.CloneOf(shown.app)
	e.Time = shown.changed.UTC().Format(time.RFC3339Nano)
	e.MessageID = subjects.MessageID{UID: e.UID, ResourceVersion: e.Version, PreviousSequence: e.PreviousSequence}.String()
	e.Truncate(c.cut)

	msg, err := w.message(e, shown, c)
	if err != nil {
		return err
	}
	ack, err := w.box.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
	if err != nil {
		return fmt.Errorf("append %s of %s after %d: %w", e.Kind, c.id, w.last, err)
	}
	if ack.Duplicate || ack.Sequence != w.last+1 {
		return fmt.Errorf("append %s of %s: sequence %d (duplicate: %t), want %d", e.Kind, c.id, ack.Sequence, ack.Duplicate, w.last+1)
	}
	w.last = ack.Sequence
	w.model.Append(&model.Message{Sequence: w.last, Event: e})
	w.headers[w.last] = header(msg.Header)
	kept := *shown
	kept.app = e.App
	w.records[w.last] = record{sequence: w.last, exists: c.to != nil, object: &kept}
	w.published[c.id] = w.records[w.last]
	return nil
}

// message is the event as it is published.
func (w *writer) message(e *model.Event, shown *object, c change) (*nats.Msg, error) {
	subject, err := w.names.Event(e.ID, e.Kind)
	if err != nil {
		return nil, err
	}
	filter, err := w.names.EventFilter(e.ID)
	if err != nil {
		return nil, err
	}
	key, err := e.ID.Key()
	if err != nil {
		return nil, err
	}
	body := &appv1.WatchResponse{}
	switch e.Kind {
	case subjects.Created:
		body.Event = &appv1.WatchResponse_CreateEvent{CreateEvent: &appv1.CreateEvent{App: e.App}}
	case subjects.Updated:
		body.Event = &appv1.WatchResponse_UpdateEvent{UpdateEvent: &appv1.UpdateEvent{UpdatedApp: e.App, OldApp: e.Old}}
	case subjects.Deleted:
		body.Event = &appv1.WatchResponse_DeleteEvent{DeleteEvent: &appv1.DeleteEvent{App: e.App}}
	}
	data, form, err := appv1.Encode(body, w.form)
	if err != nil {
		return nil, err
	}
	source := "histories"
	if c.foreign {
		source = "histories-other"
	}
	h := header{}
	h.set(subjects.HeaderMsgID, e.MessageID)
	h.set(subjects.CESpecVersion, subjects.SpecVersion)
	h.set(subjects.CEID, e.MessageID)
	h.set(subjects.CESource, subjects.Source(source))
	h.set(subjects.CEType, e.Kind.Type())
	h.set(subjects.CESubject, key)
	h.set(subjects.CETime, e.Time)
	h.set(subjects.CEDataContentType, form)
	h.set(subjects.HeaderUID, e.UID)
	h.set(subjects.HeaderResourceVersion, e.Version)
	h.set(subjects.HeaderGeneration, strconv.Itoa(shown.generation))
	h.set(subjects.HeaderNamespace, "flyte")
	h.set(subjects.HeaderAppStatus, e.Status)
	h.set(subjects.HeaderPreviousAppStatus, e.Previous)
	h.set(subjects.HeaderTruncated, strings.Join(e.Truncated, ","))
	h.number(subjects.HeaderPreviousSequence, e.PreviousSequence)
	h.number(subjects.HeaderMergedUpdates, uint64(e.Merged))
	h.flag(subjects.HeaderSynthesized, e.Synthesized)
	h.flag(subjects.HeaderFinalStateUnknown, e.FinalStateUnknown)
	h.set(subjects.HeaderExpectedStream, stream)
	h.set(subjects.HeaderExpectedLastSequence, strconv.FormatUint(w.last, 10))
	h.set(subjects.HeaderExpectedLastSubjectSequence, strconv.FormatUint(w.fence(e.ID), 10))
	h.set(subjects.HeaderExpectedLastSubjectSequenceSubject, filter)
	return &nats.Msg{Subject: subject, Header: nats.Header(h), Data: data}, nil
}

// fence is the sequence of the app's last event that the stream holds. The model is locked.
func (w *writer) fence(id subjects.AppID) uint64 {
	if m := w.lastEvent(id); m != nil {
		return m.Sequence
	}
	return 0
}

// lastEvent is the app's last event that the stream holds, nil without one. The model is locked.
func (w *writer) lastEvent(id subjects.AppID) *model.Message {
	all := w.model.All()
	for i := len(all) - 1; i >= 0; i-- {
		if m := all[i]; m.Event != nil && m.Event.ID == id && m.Present() {
			return m
		}
	}
	return nil
}

// plain appends a message that is no event: a filler, a notice, or one that a reader does not know.
func (w *writer) plain(ctx context.Context, subject string, headers map[string]string) error {
	h := header{}
	for name, value := range headers {
		h.set(name, value)
	}
	h.set(subjects.HeaderExpectedStream, stream)
	h.set(subjects.HeaderExpectedLastSequence, strconv.FormatUint(w.last, 10))
	ack, err := w.box.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Header: nats.Header(h)}, jetstream.WithRetryAttempts(0))
	if err != nil {
		return fmt.Errorf("append to %s: %w", subject, err)
	}
	if ack.Sequence != w.last+1 {
		return fmt.Errorf("append to %s: sequence %d, want %d", subject, ack.Sequence, w.last+1)
	}
	w.last = ack.Sequence
	return nil
}

// owed publishes what the cluster has and the stream does not show, as a resync does.
func (w *writer) owed(ctx context.Context, id subjects.AppID) error {
	now, prev := w.cluster.objects[id], w.published[id]
	switch {
	case now == nil && !prev.exists, now != nil && prev.exists && prev.object.version == now.version:
		return nil
	case now != nil && prev.exists && prev.object.uid != now.uid, now == nil:
		if err := w.append(ctx, change{id: id, synthesized: true, unknown: true}); err != nil || now == nil {
			return err
		}
	}
	return w.append(ctx, change{id: id, to: now, synthesized: true})
}

// mark writes metadata of the stream. An empty value removes the key.
func (w *writer) mark(ctx context.Context, metadata map[string]string) error {
	handle, err := w.box.js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	cfg := handle.CachedInfo().Config
	cfg.Metadata = maps.Clone(cfg.Metadata)
	maps.Copy(cfg.Metadata, metadata)
	maps.DeleteFunc(cfg.Metadata, func(_, v string) bool { return v == "" })
	_, err = w.box.js.UpdateStream(ctx, cfg)
	return err
}

// header makes headers. Nothing empty is set.
type header nats.Header

func (h header) set(name, value string) {
	if value != "" {
		h[name] = []string{value}
	}
}

func (h header) number(name string, value uint64) {
	if value != 0 {
		h.set(name, strconv.FormatUint(value, 10))
	}
}

func (h header) flag(name string, value bool) {
	if value {
		h.set(name, subjects.FlagTrue)
	}
}
