package bridge

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// readWindow is how many messages are requested at one time.
const readWindow = 64

// subjectsOf lists the subjects that a stream holds messages of.
func subjectsOf(ctx context.Context, js jetstream.JetStream, stream, filter string) ([]string, error) {
	handle, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, unavailable("look up stream "+stream, err)
	}
	info, err := handle.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, unavailable("list the subjects of stream "+stream, err)
	}
	names := make([]string, 0, len(info.State.Subjects))
	for name := range info.State.Subjects {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// lastEvent is the end of the stream as far as one app is concerned.
type lastEvent struct {
	record  *app.Record // of the app's last event; nil: there is none
	header  nats.Header
	stored  time.Time // when the server stored that event
	foreign uint64    // sequence of a later message that is no event, 0 if none
}

// sequence is that of the app's last event, 0 if there is none.
func (e *lastEvent) sequence() uint64 {
	if e == nil {
		return 0
	}
	return e.record.Previous()
}

// reader reads single events of the stream, from its leader.
type reader struct {
	nc       *nats.Conn
	stream   string
	subjects subjects.Subjects
}

// lastEventOf reads an app's last event, nil if the stream has no message of
// it. hint is where its last event is supposed to be.
func (r reader) lastEventOf(ctx context.Context, id subjects.AppID, hint uint64) (*lastEvent, error) {
	filter, err := r.subjects.EventFilter(id)
	if err != nil {
		return nil, err
	}
	last, err := lastMessage(ctx, r.nc, r.stream, filter)
	if errors.Is(err, errNoMessage) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if record, err := last.record(r.subjects); err == nil {
		return &lastEvent{record: record, header: last.header, stored: last.stored}, nil
	}
	// A foreign message is behind it. The stream can only be read forwards: from the hint if that leads
	// to an event, else from the start.
	e := &lastEvent{foreign: last.sequence}
	for _, from := range []uint64{hint, 1} {
		if from == 0 || from >= last.sequence {
			continue
		}
		if err := r.eachMessage(ctx, filter, from, last.sequence, func(m *storedMessage) {
			if record, err := m.record(r.subjects); err == nil {
				e.record, e.header, e.stored = record, m.header, m.stored
			}
		}); err != nil {
			return nil, err
		}
		if e.record != nil {
			break
		}
	}
	return e, nil
}

// belongsToAnother reports whether the stream has another app's event at the sequence that an app's
// entry in the bucket reflects.
func (r reader) belongsToAnother(ctx context.Context, id subjects.AppID, sequence uint64) (bool, error) {
	m, err := messageAt(ctx, r.nc, r.stream, sequence)
	if errors.Is(err, errNoMessage) {
		return false, nil // it was removed
	}
	if err != nil {
		return false, err
	}
	of, _, err := r.subjects.ParseEvent(m.subject)
	return err == nil && of != id, nil
}

// eachMessage hands the messages that match filter from sequence from on, and
// before end, to visit.
func (r reader) eachMessage(ctx context.Context, filter string, from, end uint64, visit func(*storedMessage)) error {
	for from < end {
		m, err := nextMessage(ctx, r.nc, r.stream, filter, from)
		if errors.Is(err, errNoMessage) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.sequence >= end {
			return nil
		}
		visit(m)
		from = m.sequence + 1
	}
	return nil
}
