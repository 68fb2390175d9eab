package publisher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

func refusal(code jetstream.ErrorCode) error {
	return fmt.Errorf("append: %w", &jetstream.APIError{Code: 400, ErrorCode: code})
}

// Every answer to an append that expected the stream to end at 7, and what follows from it.
func TestFence(t *testing.T) {
	const c = 7
	type steps struct {
		alone  step // no try of it can land any more, and no event ahead of it is pending
		open   step // an earlier try may land
		behind step // an event ahead of it is pending
	}
	again := steps{stepSendAgain, stepSendAgain, stepSendAgain}
	for _, test := range []struct {
		name     string
		ack      *jetstream.PubAck
		err      error
		outcome  outcome
		sequence uint64
		conflict bool
		next     steps
	}{
		{"stored at c+1", &jetstream.PubAck{Sequence: c + 1}, nil, outcomeStored, c + 1, false, steps{stepDone, stepDone, stepDone}},
		{
			"duplicate", &jetstream.PubAck{Sequence: 3, Duplicate: true}, nil, outcomeDuplicate, 3, false,
			steps{stepReadOriginal, stepReadOriginal, stepReadOriginal},
		},
		{
			"duplicate of its own earlier try", &jetstream.PubAck{Sequence: c + 1, Duplicate: true}, nil, outcomeDuplicate, c + 1, false,
			steps{stepReadOriginal, stepReadOriginal, stepReadOriginal},
		},
		{
			"stored elsewhere", &jetstream.PubAck{Sequence: c + 2}, nil, outcomeDuplicate, c + 2, false,
			steps{stepReadOriginal, stepReadOriginal, stepReadOriginal},
		},
		{"wrong last sequence", nil, refusal(10071), outcomeRefused, 0, true, steps{stepReadLast, stepReadLast, stepSendAgain}},
		{"message id in process", nil, refusal(10158), outcomeRefused, 0, true, again},
		{"filter in process", nil, refusal(10164), outcomeRefused, 0, true, again},
		{"too large", nil, refusal(10054), outcomeRefused, 0, false, steps{stepEncodeAgain, stepSendAgain, stepEncodeAgain}},
		{"no space", nil, refusal(10077), outcomeRefused, 0, false, again},
		{"wrong message id of before", nil, refusal(10070), outcomeRefused, 0, false, again},
		{"not available", nil, refusal(10008), outcomeRefused, 0, false, again},
		{"no answer in time", nil, jetstream.ErrAsyncPublishTimeout, outcomeMissing, 0, false, again},
		{"no responders", nil, nats.ErrNoResponders, outcomeMissing, 0, false, again},
		{"disconnected", nil, nats.ErrDisconnected, outcomeMissing, 0, false, again},
		{"connection closed", nil, nats.ErrConnectionClosed, outcomeMissing, 0, false, again},
		{"session over", nil, context.Canceled, outcomeMissing, 0, false, again},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := flight{expected: c, tries: []uint64{5, c}}
			f.answered(test.ack, test.err)
			a := f.answer
			if a.outcome != test.outcome || a.sequence != test.sequence || !errors.Is(a.err, test.err) || a.isConflict() != test.conflict {
				t.Errorf("the answer is %+v, conflict %t", a, a.isConflict())
			}
			// A try without an answer, and one that is stored, stays open: it was stored at c+1 or
			// nowhere.
			closed := test.outcome == outcomeRefused || test.outcome == outcomeDuplicate
			if got, want := len(f.tries), 2; closed && got != want-1 || !closed && got != want {
				t.Errorf("the open tries expected %v", f.tries)
			}
			landed := f.stored > 0
			if landed != (test.outcome == outcomeStored) {
				t.Errorf("it landed at %d", f.stored)
			}
			got := steps{
				resolution{stored: landed, answer: a, first: true}.next(),
				resolution{stored: landed, answer: a, first: true, open: true}.next(),
				resolution{stored: landed, answer: a}.next(),
			}
			if got != test.next {
				t.Errorf("next: got %v, want %v", got, test.next)
			}
			for _, state := range []resolution{{first: true}, {first: true, open: true}, {}, {open: true}} {
				state.answer, state.stored, state.fenceGone = a, true, true
				if got := state.next(); got != stepDone {
					t.Errorf("found in the stream: next is %v, want that it is done", got)
				}
			}
			// The stream has lost the message that the fence names.
			want := test.next.alone
			if want == stepSendAgain {
				want = stepReadLast
			}
			if got := (resolution{stored: landed, answer: a, first: true, fenceGone: true}).next(); got != want {
				t.Errorf("its fence is gone: next is %v, want %v", got, want)
			}
		})
	}
	// It was never sent, or its answer is not there yet.
	for _, state := range []resolution{{}, {first: true}, {open: true}, {first: true, open: true}} {
		if got := state.next(); got != stepSendAgain {
			t.Errorf("%+v: next is %v, want to send it again", state, got)
		}
	}
}

// What a message of the stream says of the event that may have been stored there.
func TestFenceIdentifies(t *testing.T) {
	t.Parallel()
	e := testEncoder()
	encoded := func(version string, replicas int32, prev *app.Record) *app.Event {
		ev, err := e.Encode(testID, app.NewUpsert(app.State{Service: testService("u1", version, "True"), Revision: testRevision("3", replicas)}, prev == nil), prev)
		if err != nil {
			t.Fatal(err)
		}
		return ev
	}
	created := encoded("1", 1, nil)
	created.Record.Sequence = 4
	deleted, err := e.Encode(testID, &app.Change{Remove: true, DeletedVersion: "9"}, created.Record)
	if err != nil {
		t.Fatal(err)
	}
	at := func(ev *app.Event) *store.Message {
		return &store.Message{Subject: ev.Msg.Subject, Sequence: 8, Header: ev.Msg.Header, Data: ev.Msg.Data}
	}
	with := func(ev *app.Event, change func(*store.Message)) *store.Message {
		m := at(ev)
		change(m)
		return m
	}
	for _, test := range []struct {
		name string
		m    *store.Message
		ev   *app.Event
		want origin
	}{
		{"nothing", nil, created, originNone},
		{"this event", at(created), created, originThis},
		{"this delete", at(deleted), deleted, originThis},
		{"an event, none was sent", at(created), nil, originOther},
		{"another version", at(encoded("2", 1, nil)), created, originOther},
		{"this version, with other replicas", at(encoded("1", 2, nil)), created, originOther},
		{"this version, after another event", at(encoded("1", 1, created.Record)), created, originOther},
		{"the id of this event, of another kind", with(encoded("1", 1, created.Record), func(m *store.Message) {
			m.Header.Set(subjects.HeaderMsgID, created.Msg.Header.Get(subjects.HeaderMsgID))
		}), created, originOther},
		{"no event, on the app's subject", with(created, func(m *store.Message) { m.Data = []byte("x") }), created, originForeign},
		{"no event, none was sent", with(created, func(m *store.Message) { m.Header = nil }), nil, originForeign},
		{"no app's subject", with(created, func(m *store.Message) { m.Subject = "flyte.apps.events.notice" }), created, originNoApp},
	} {
		t.Run(test.name, func(t *testing.T) {
			id, got, r := identify(test.m, test.ev, e.Subjects)
			if got != test.want || (r != nil) != (got == originThis) || r != nil && r.Sequence != 8 {
				t.Errorf("got %v, %+v, want %v", got, r, test.want)
			}
			if known := got != originNone && got != originNoApp; known && id != testID {
				t.Errorf("it is of app %s", id)
			}
		})
	}
}

// The app's last message, and the message with an event's id.
func TestFenceAfterReading(t *testing.T) {
	for _, test := range []struct {
		name      string
		of        origin
		fence, at uint64
		last      step // as the app's last message
		original  step // as the message with the id
	}{
		{"nothing is left", originNone, 5, 0, stepMoveFence, stepNewID},
		{"nothing, and there was nothing", originNone, 0, 0, stepMoveFence, stepNewID},
		{"an older event", originOther, 5, 4, stepMoveFence, stepEndSession},
		{"the event of the fence", originOther, 5, 5, stepMoveFence, stepEndSession},
		{"this very state, before the fence", originThis, 5, 5, stepMoveFence, stepEndSession},
		{"this event", originThis, 5, 6, stepDone, stepDone},
		{"another event", originOther, 5, 6, stepEndSession, stepEndSession},
		{"no event", originForeign, 5, 6, stepMoveFence, stepNewID},
		{"no app's subject", originNoApp, 5, 6, stepMoveFence, stepNewID},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := afterLast(test.fence, test.of, test.at); got != test.last {
				t.Errorf("as the last message: got %v, want %v", got, test.last)
			}
			if got := afterOriginal(test.fence, test.of, test.at); got != test.original {
				t.Errorf("as the message with the id: got %v, want %v", got, test.original)
			}
		})
	}
}

// Where the stream ends decides whether the session can go on.
func TestFenceChecksTheEnd(t *testing.T) {
	for _, test := range []struct {
		name                          string
		last, acknowledged, accounted uint64
		lost, other                   bool
	}{
		{"nothing landed", 7, 7, 7, false, false},
		{"something landed", 9, 7, 7, false, false},
		{"it ends before what was acknowledged", 8, 9, 7, true, false},
		{"it ends before what is accounted for", 8, 0, 9, true, false},
		{"it is empty again", 0, 0, 1, true, false},
		{"as much as can be read", 7 + farBehind, 7, 7, false, false},
		{"more than can be read", 8 + farBehind, 7, 7, false, true},
		{"more than can be read, and acknowledged", 8 + farBehind, 8 + farBehind, 7, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := checkEnd("s", test.last, test.acknowledged, test.accounted)
			lost, other := errors.Is(err, store.ErrLostTail), errors.As(err, new(*OtherWriterError))
			if lost != test.lost || other != test.other || (err != nil) != (lost || other) {
				t.Errorf("got %v", err)
			}
			if err != nil && !endsSession(err) {
				t.Error("it does not end the session")
			}
		})
	}
	for _, err := range []error{nil, refusal(10071), refusal(10158), jetstream.ErrAsyncPublishTimeout, nats.ErrDisconnected, store.ErrNoMessage} {
		if endsSession(err) {
			t.Errorf("%v ends the session", err)
		}
	}
	for _, err := range []error{store.ErrGone, store.ErrClosed} {
		if !endsSession(fmt.Errorf("look: %w", err)) {
			t.Errorf("%v does not end the session", err)
		}
	}
}

// An event that is encoded again for its size is a new one: confirming again does not reject it.
func TestRemadeEventIsNotRefused(t *testing.T) {
	size := 1 << 20
	e := testEncoder()
	e.MaxSize = func() int { return size }
	p := &Publisher{encoder: e}
	prev := publishedAt("u1", 3)
	f := &flight{id: testID, prev: prev, change: app.NewUpsert(app.State{Service: testService("u1", "8", "True", func(svc *kservice.Service) {
		svc.Status.Conditions[0].Message = strings.Repeat("x", 3000)
	})}, false)}
	prev.App, _ = f.change.State.App() // old_app does not fit into the smaller event
	if !p.prepare(f) {
		t.Fatal("nothing is prepared")
	}
	size = f.ev.Msg.Size() - 1000
	f.answered(nil, refusal(store.CodeMessageTooLarge))
	if !p.remake(f, f.answer.err) || f.ev.Msg.Size() > size {
		t.Fatalf("the event has %d bytes, want %d at most", f.ev.Msg.Size(), size)
	}
	if got := (resolution{answer: f.answer, first: true}).next(); got != stepSendAgain {
		t.Errorf("next is %v, want to send it", got)
	}
}
