// Package plantest has events and entries of an app for the tests of what is owed.
package plantest

import (
	"testing"
	"time"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/subjects"
)

// Entries makes the entries of a bucket without limits.
var Entries = &app.Entries{Name: subjects.DefaultBucket, ContentType: subjects.ContentTypeJSON}

// EventOf is the last event of an app in state s, at sequence 5.
func EventOf(t *testing.T, s app.State) *plan.Event {
	t.Helper()
	return event(t, app.NewUpsert(s, true), nil, 5)
}

// DeleteOf is the delete after an event, at sequence 9.
func DeleteOf(t *testing.T, e *plan.Event) *plan.Event {
	t.Helper()
	return event(t, &app.Change{Remove: true, DeletedVersion: "101"}, e.Record, 9)
}

func event(t *testing.T, c *app.Change, prev *app.Record, sequence uint64) *plan.Event {
	t.Helper()
	ev, err := encodertest.New().Encode(apptest.ID, c, prev)
	if err != nil {
		t.Fatal(err)
	}
	ev.Record.Sequence = sequence
	return &plan.Event{Record: ev.Record, Header: ev.Msg.Header}
}

// EntryOf is what the projector writes for an event.
func EntryOf(t *testing.T, e *plan.Event) *plan.Entry {
	t.Helper()
	msg, err := Entries.Entry(apptest.ID, e.Record, e.Header)
	if err != nil {
		t.Fatal(err)
	}
	msg.Header.Set(subjects.HeaderExpectedLastSequence, "7") // the server stores it too
	h := plan.ReadEntry(msg.Header, msg.Data, 8, time.Time{})
	if h.Err != nil {
		t.Fatal(h.Err)
	}
	return h
}
