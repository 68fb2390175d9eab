package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// event is one message of the stream, read as any consumer would.
type event struct {
	time     time.Time // when the stream stored it
	sequence uint64
	subject  string
	id       subjects.AppID
	kind     subjects.EventKind
	app, old *appv1.App // old: on an update
	header   nats.Header
	data     []byte
}

// watcher follows the stream with an ordered consumer and keeps what it saw.
type watcher struct {
	conn     *nats.Conn
	js       jetstream.JetStream
	names    subjects.Subjects
	consumer jetstream.ConsumeContext

	mu      sync.Mutex
	seen    []event
	err     error
	changed chan struct{} // closed and replaced with every event
}

// watchEvents connects, and prints every event from the first one on.
func watchEvents(ctx context.Context, url string, out *screen) (*watcher, error) {
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		return nil, err
	}
	conn, err := nats.Connect(url, nats.Name("appbridge demo"))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	w := &watcher{conn: conn, names: names, changed: make(chan struct{})}
	if w.js, err = jetstream.New(conn); err != nil {
		return nil, errors.Join(err, w.close())
	}
	consumer, err := w.js.OrderedConsumer(ctx, subjects.DefaultStream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{names.Events()},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow the stream %s: %w", subjects.DefaultStream, err), w.close())
	}
	w.consumer, err = consumer.Consume(func(msg jetstream.Msg) {
		e, err := w.decode(msg)
		if err == nil {
			out.event(e)
		}
		w.add(e, err)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow the stream %s: %w", subjects.DefaultStream, err), w.close())
	}
	return w, nil
}

// decode reads a message with nothing but the contract.
func (w *watcher) decode(msg jetstream.Msg) (event, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return event{}, fmt.Errorf("read %s: %w", msg.Subject(), err)
	}
	e := event{time: meta.Timestamp, sequence: meta.Sequence.Stream, subject: msg.Subject(), header: msg.Headers(), data: msg.Data()}
	if e.id, e.kind, err = w.names.ParseEvent(msg.Subject()); err != nil {
		return event{}, err
	}
	body := &appv1.WatchResponse{}
	if err := unmarshal(msg.Data(), msg.Headers().Get(subjects.CEDataContentType), body); err != nil {
		return event{}, fmt.Errorf("read event %d: %w", e.sequence, err)
	}
	switch kind := body.GetEvent().(type) {
	case *appv1.WatchResponse_CreateEvent:
		e.app = kind.CreateEvent.GetApp()
	case *appv1.WatchResponse_UpdateEvent:
		e.app, e.old = kind.UpdateEvent.GetUpdatedApp(), kind.UpdateEvent.GetOldApp()
	case *appv1.WatchResponse_DeleteEvent:
		e.app = kind.DeleteEvent.GetApp()
	}
	if e.app == nil {
		return event{}, fmt.Errorf("read event %d: no app in it", e.sequence)
	}
	return e, nil
}

// unmarshal goes by the content type, as the contract says.
func unmarshal(data []byte, contentType string, into proto.Message) error {
	switch contentType {
	case subjects.ContentTypeJSON:
		return protojson.Unmarshal(data, into)
	case subjects.ContentTypeProtobuf:
		return proto.Unmarshal(data, into)
	default:
		return fmt.Errorf("content type %q", contentType)
	}
}

func (w *watcher) add(e event, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.err = errors.Join(w.err, err)
	} else {
		w.seen = append(w.seen, e)
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// of lists the events of one app, in order.
func (w *watcher) of(id subjects.AppID) []event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.seen), func(e event) bool { return e.id != id })
}

// all lists every event so far.
func (w *watcher) all() []event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

// await returns when so many events of an app have arrived.
func (w *watcher) await(ctx context.Context, id subjects.AppID, count int) error {
	const patience = 20 * time.Second
	return w.wait(ctx, patience, func() string {
		if seen := len(w.of(id)); seen < count {
			return fmt.Sprintf("event %d of %s did not arrive, only %d did", count, id, seen)
		}
		return ""
	})
}

// reach returns when an event of an app, not one of the first looked, shows what is
// wanted, and how many events there are up to it.
func (w *watcher) reach(ctx context.Context, id subjects.AppID, looked int, goal want) (n int, err error) {
	const patience = 2 * time.Minute
	err = w.wait(ctx, patience, func() string {
		seen := w.of(id)
		for n = looked; n < len(seen); {
			if n++; goal.shownBy(seen[n-1]) {
				return ""
			}
		}
		return fmt.Sprintf("no event of %s shows %s, the last shows %s", id, goal, lastSeen(seen))
	})
	return n, err
}

// wait asks with every event until the answer is "", which means yes.
func (w *watcher) wait(ctx context.Context, patience time.Duration, ask func() string) error {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		w.mu.Lock()
		changed, err := w.changed, w.err
		w.mu.Unlock()
		if err != nil {
			return err
		}
		answer := ask()
		if answer == "" {
			return nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			return fmt.Errorf("%s within %s", answer, patience)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func lastSeen(seen []event) string {
	if len(seen) == 0 {
		return "nothing"
	}
	return seenAs(seen[len(seen)-1]).String()
}

// close ends the consumer and the connection, and reports what could not be read.
func (w *watcher) close() error {
	if w.consumer != nil {
		w.consumer.Stop()
		<-w.consumer.Closed()
	}
	w.conn.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
