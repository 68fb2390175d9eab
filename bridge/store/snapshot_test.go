package store

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// An entry that does not fit keeps the event's encoding or leaves fields out.
func TestEntryWithin(t *testing.T) {
	id := subjects.AppID{Project: "p", Domain: "d", Name: "fat"}
	fat := &appv1.App{Spec: &appv1.Spec{ClusterPool: strings.Repeat("s", 2000)}, Status: &appv1.Status{}}
	fat.Status.Conditions = []*appv1.Condition{{Message: strings.Repeat("\n", 1000)}}
	for _, test := range []struct {
		name, eventForm, eventLacks string
		limit                       int
		form, truncated             string
	}{
		{"no limit", subjects.ContentTypeJSON, "", 0, subjects.ContentTypeJSON, ""},
		{"it fits", subjects.ContentTypeProtobuf, "", 5000, subjects.ContentTypeJSON, ""},
		{"it fits as the event has it", subjects.ContentTypeProtobuf, "old_app", 4000, subjects.ContentTypeProtobuf, "old_app"},
		{"without the spec", subjects.ContentTypeJSON, "old_app", 4000, subjects.ContentTypeJSON, "old_app,spec"},
		{"without the spec, as the event has it", subjects.ContentTypeProtobuf, "", 2000, subjects.ContentTypeProtobuf, "spec"},
		{"without spec and status", subjects.ContentTypeJSON, "spec", 1000, subjects.ContentTypeJSON, "spec,status"},
		{"it cannot be made", subjects.ContentTypeJSON, "", 100, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &Bucket{Entries: app.Entries{Name: subjects.DefaultBucket, ContentType: subjects.ContentTypeJSON, MaxSize: func() int { return test.limit }}}
			r := &app.Record{Kind: subjects.Updated, Sequence: 5, ContentType: test.eventForm, Truncated: test.eventLacks, App: encodertest.Encoded(fat)}
			h := nats.Header{subjects.HeaderUID: {"u1"}}
			if test.eventLacks != "" {
				h.Set(subjects.HeaderTruncated, test.eventLacks)
			}
			msg, err := b.Entry(id, r, h)
			if test.form == "" {
				if !errors.Is(err, app.ErrTooLarge) {
					t.Errorf("got %v, %v", msg, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := msg.Header.Get(subjects.CEDataContentType); got != test.form {
				t.Errorf("got %s, want %s", got, test.form)
			}
			if got := msg.Header.Get(subjects.HeaderTruncated); got != test.truncated {
				t.Errorf("truncated: %q, want %q", got, test.truncated)
			}
			msg.Header.Set(subjects.HeaderExpectedLastSequence, "18446744073709551615")
			if test.limit > 0 && msg.Size() > test.limit {
				t.Errorf("it has %d of %d bytes", msg.Size(), test.limit)
			}
			if fat.Spec == nil || fat.Status == nil || h.Get(subjects.HeaderTruncated) != test.eventLacks {
				t.Error("the event itself was changed")
			}
		})
	}
}

// A server whose clock is ahead stores a delete in what is the future here. Its marker is removed by
// the clock of here, before the event is that old by the server's time. That is no difference.
func TestMarkerRemovedByAnotherClock(t *testing.T) {
	for _, test := range []struct {
		age, stored time.Duration
		want        bool
	}{
		{time.Hour, time.Hour + time.Second, true},
		{time.Hour, time.Hour - 10*time.Second, true},
		{time.Hour, 50 * time.Minute, false},
		{2 * time.Second, 1500 * time.Millisecond, true},
		{2 * time.Second, 500 * time.Millisecond, false},
		{0, 1000 * time.Hour, false},
	} {
		b, now := &app.Entries{MarkerMaxAge: test.age}, time.Now()
		e := &plan.Event{Record: &app.Record{Kind: subjects.Deleted}, Stored: now.Add(-test.stored)}
		if got := plan.KeepsNoMarker(b, e, now); got != test.want {
			t.Errorf("%+v: got %t", test, got)
		}
	}
}
