package main

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// writer appends events to a stream as a bridge does, and notices of loss.
type writer struct {
	js      jetstream.JetStream
	names   subjects.Subjects
	count   int
	last    map[subjects.AppID]uint64
	status  map[subjects.AppID]string
	notices int
	saved   *writer // as it was at a copy of the store
}

func newWriter(t *testing.T, url string) *writer {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	w := &writer{last: map[subjects.AppID]uint64{}, status: map[subjects.AppID]string{}}
	if w.js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience)); err != nil {
		t.Fatal(err)
	}
	if w.names, err = subjects.New(subjects.DefaultPrefix); err != nil {
		t.Fatal(err)
	}
	if _, err := w.js.CreateStream(t.Context(), streamConfig(w.names)); err != nil {
		t.Fatal(err)
	}
	return w
}

func streamConfig(names subjects.Subjects) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: subjects.DefaultStream, Subjects: []string{names.Events()}, AllowDirect: true,
		Metadata: map[string]string{subjects.MetadataStreamID: "pX2mVQkQGm3rXo0dJq8b1w"},
	}
}

// jetStream runs a server that stores in files.
func jetStream(t *testing.T) string {
	t.Helper()
	return suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL()
}

// event appends an event of an app. An empty status deletes it.
func (w *writer) event(ctx context.Context, id subjects.AppID, status string) (uint64, error) {
	w.count++
	before, exists := w.status[id]
	app := &appv1.App{
		Metadata: &appv1.Meta{Id: &appv1.Identifier{Project: id.Project, Domain: id.Domain, Name: id.Name}, Revision: uint64(w.count)}, //nolint:gosec // a small count
		Spec:     &appv1.Spec{Ingress: &appv1.IngressConfig{Subdomain: status}},
	}
	kind, body := subjects.Updated, &appv1.WatchResponse{}
	switch {
	case status == "":
		kind = subjects.Deleted
		body.Event = &appv1.WatchResponse_DeleteEvent{DeleteEvent: &appv1.DeleteEvent{App: app}}
	case !exists:
		kind = subjects.Created
		body.Event = &appv1.WatchResponse_CreateEvent{CreateEvent: &appv1.CreateEvent{App: app}}
	default:
		body.Event = &appv1.WatchResponse_UpdateEvent{UpdateEvent: &appv1.UpdateEvent{UpdatedApp: app}}
	}
	form := subjects.ContentTypeJSON
	if w.count%3 == 0 {
		form = subjects.ContentTypeProtobuf
	}
	data, form, err := appv1.Encode(body, form)
	if err != nil {
		return 0, err
	}
	msgID := subjects.MessageID{UID: "uid-" + id.Name, ResourceVersion: strconv.Itoa(w.count), PreviousSequence: w.last[id]}.String()
	h := nats.Header{}
	for name, value := range map[string]string{
		subjects.HeaderMsgID: msgID, subjects.CEID: msgID, subjects.CESpecVersion: subjects.SpecVersion, subjects.CEType: kind.Type(),
		subjects.CESource: subjects.Source("test"), subjects.CETime: "2026-11-21T08:51:07Z", subjects.CEDataContentType: form,
		subjects.HeaderUID: "uid-" + id.Name, subjects.HeaderResourceVersion: strconv.Itoa(w.count), subjects.HeaderGeneration: "1",
		subjects.HeaderAppStatus: status, subjects.HeaderPreviousAppStatus: before,
	} {
		if value != "" {
			h.Set(name, value)
		}
	}
	if w.last[id] > 0 {
		h.Set(subjects.HeaderPreviousSequence, strconv.FormatUint(w.last[id], 10))
	}
	subject, err := w.names.Event(id, kind)
	if err != nil {
		return 0, err
	}
	ack, err := w.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Header: h, Data: data})
	if err != nil {
		return 0, err
	}
	w.last[id], w.status[id] = ack.Sequence, status
	if status == "" {
		delete(w.status, id)
	}
	return ack.Sequence, nil
}

// lose appends what a bridge appends behind lost events: fillers, which it removes, and the notice.
func (w *writer) lose(ctx context.Context, n int) (from, to uint64, err error) {
	stream, err := w.js.Stream(ctx, subjects.DefaultStream)
	if err != nil {
		return 0, 0, err
	}
	for range n {
		ack, err := w.js.Publish(ctx, w.names.Lost(), nil)
		if err != nil {
			return 0, 0, err
		}
		if from == 0 {
			from = ack.Sequence
		}
		to = ack.Sequence
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject(w.names.Lost())); err != nil {
		return 0, 0, err
	}
	h := nats.Header{}
	h.Set(subjects.HeaderLostFrom, fmt.Sprint(from))
	h.Set(subjects.HeaderLostTo, fmt.Sprint(to))
	_, err = w.js.PublishMsg(ctx, &nats.Msg{Subject: w.names.Notice(), Header: h})
	w.notices++
	return from, to, err
}
