package knative_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// reader keeps everything that is published, as a consumer reads it.
type reader struct {
	js       jetstream.JetStream
	consumer jetstream.ConsumeContext

	mu       sync.Mutex
	messages []audit.Message
	err      error
}

func newReader(ctx context.Context, conn *nats.Conn) (*reader, error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	r := &reader{js: js}
	consumer, err := js.OrderedConsumer(ctx, subjects.DefaultStream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, fmt.Errorf("read the stream: %w", err)
	}
	r.consumer, err = consumer.Consume(r.take)
	return r, err
}

func (r *reader) take(msg jetstream.Msg) {
	meta, err := msg.Metadata()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.err = errors.Join(r.err, err)
		return
	}
	r.messages = append(r.messages, audit.Message{
		Subject: msg.Subject(), Sequence: meta.Sequence.Stream, Header: msg.Headers(), Data: msg.Data(), Stored: meta.Timestamp,
	})
}

// all are the messages so far.
func (r *reader) all() ([]audit.Message, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.messages), r.err
}

func (r *reader) close() {
	r.consumer.Stop()
	<-r.consumer.Closed()
}

// entry is what the bucket holds of an app, nil if it holds nothing.
func (r *reader) entry(ctx context.Context, id subjects.AppID) (*audit.Message, error) {
	key, err := id.Key()
	if err != nil {
		return nil, err
	}
	stream, err := r.js.Stream(ctx, subjects.BucketStream(subjects.DefaultBucket))
	if err != nil {
		return nil, err
	}
	msg, err := stream.GetLastMsgForSubject(ctx, subjects.BucketSubject(subjects.DefaultBucket, key))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &audit.Message{Subject: msg.Subject, Sequence: msg.Sequence, Header: msg.Header, Data: msg.Data, Stored: msg.Time}, nil
}

// event is one event of an app.
type event struct {
	audit.Message
	kind subjects.EventKind
	app  *appv1.App // as the event leaves it; of a delete, as it was
}

// decodeEvent reads a message of the stream with the contract alone.
func decodeEvent(names subjects.Subjects, m audit.Message) (event, error) {
	_, kind, err := names.ParseEvent(m.Subject)
	if err != nil {
		return event{}, fmt.Errorf("sequence %d: %w", m.Sequence, err)
	}
	body := &appv1.WatchResponse{}
	if err := appv1.Decode(m.Data, m.Header.Get(subjects.CEDataContentType), body); err != nil {
		return event{}, fmt.Errorf("sequence %d: %w", m.Sequence, err)
	}
	e := event{Message: m, kind: kind}
	switch {
	case body.GetCreateEvent() != nil:
		e.app = body.GetCreateEvent().GetApp()
	case body.GetUpdateEvent() != nil:
		e.app = body.GetUpdateEvent().GetUpdatedApp()
	default:
		e.app = body.GetDeleteEvent().GetApp()
	}
	return e, nil
}

// of are the events of an app, in order.
func (w *world) of(id subjects.AppID) ([]event, error) {
	messages, err := w.events.all()
	if err != nil {
		return nil, err
	}
	var events []event
	for _, m := range messages {
		whose, _, err := w.names.ParseEvent(m.Subject)
		if err != nil {
			return nil, fmt.Errorf("sequence %d: %w", m.Sequence, err)
		}
		if whose != id {
			continue
		}
		e, err := decodeEvent(w.names, m)
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}

func (e event) status() string   { return e.Header.Get(subjects.HeaderAppStatus) }
func (e event) revision() string { return e.Header.Get(subjects.HeaderRevision) }
func (e event) replicas() uint32 { return e.app.GetStatus().GetCurrentReplicas() }

// String is what a failed test prints of an event.
func (e event) String() string {
	conditions := ""
	for _, c := range e.app.GetStatus().GetConditions() {
		conditions += fmt.Sprintf(" [%s %s]", c.GetDeploymentStatus(), c.GetMessage())
	}
	return fmt.Sprintf("%d: %s %s@%s, %q, %d replicas of %q,%s",
		e.Sequence, e.kind, e.Header.Get(subjects.HeaderUID), e.Header.Get(subjects.HeaderResourceVersion), e.status(), e.replicas(), e.revision(), conditions)
}
