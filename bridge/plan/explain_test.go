package plan_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/plan/plantest"
	"github.com/appbridge/appbridge/subjects"
)

func TestExplain(t *testing.T) {
	one := app.State{Service: encodertest.Service("u1", "100", "True"), Revision: apptest.Revision("99", 2)}
	later := app.State{Service: encodertest.Service("u1", "102", "True"), Revision: apptest.Revision("99", 2)}
	elsewhere := app.State{Service: app.Keeper{App: kservice.Config{BaseDomain: "example.org"}, Form: subjects.ContentTypeJSON}.Keep(apptest.Service("u1", "100", "True")), Revision: apptest.Revision("99", 2)}
	scaled := app.State{Service: one.Service, Revision: apptest.Revision("103", 3)}
	another := app.State{Service: encodertest.Service("u2", "104", "True"), Revision: apptest.Revision("99", 2)}
	event := plantest.EventOf(t, one)
	gone := plantest.DeleteOf(t, event)
	with := func(h *plan.Entry, change func(*plan.Entry)) *plan.Entry {
		c := *h
		c.Header = maps.Clone(h.Header)
		if h.Record != nil {
			r := *h.Record
			c.Record = &r
		}
		change(&c)
		return &c
	}
	entry, marker := plantest.EntryOf(t, event), plantest.EntryOf(t, gone)
	damaged := &plan.Entry{Err: errors.New("unreadable"), Header: nats.Header{}, Stored: 8}
	foreign := &plan.Event{Foreign: 6}
	whole := func(w *plan.World) { w.Stream.First, w.Stream.KeepsNewest = 1, true }
	unwatched := *event.Record
	unwatched.Namespace = "elsewhere"
	for _, test := range []struct {
		name  string
		now   *app.State
		event *plan.Event
		entry *plan.Entry
		also  func(*plan.World)
		want  string // kinds with their sides
		note  string
	}{
		{name: "nothing"},
		{name: "agreed", now: &one, event: event, entry: entry},
		{name: "agreed that it is gone", event: gone, entry: marker},
		{name: "retention took the event", now: &one, entry: entry},
		{name: "retention took the delete", entry: marker},
		{name: "its only event was removed", now: &one, entry: entry, also: whole, want: "stream removed_event"},
		{name: "its only event was removed, and so was the app", entry: entry, also: whole, want: "stream missing_deleted"},
		{name: "its delete was removed", entry: marker, also: whole},
		{name: "neither published", now: &one, want: "stream missing_event"},
		{name: "deleted and back", now: &later, event: gone, entry: marker, want: "stream missing_event"},
		{name: "gone without an event", event: event, entry: entry, want: "stream missing_deleted"},
		{name: "gone without an event, which retention took", entry: entry, want: "stream missing_deleted"},
		{name: "another object", now: &another, event: event, entry: entry, want: "stream other_uid"},
		{name: "another version", now: &later, event: event, entry: entry, want: "stream other_version"},
		{name: "another version, after retention", now: &later, entry: entry, want: "stream other_version"},
		{name: "another replica count", now: &scaled, event: event, entry: entry, want: "stream other_app"},
		{name: "another base domain", now: &elsewhere, event: event, entry: entry, want: "stream other_app"},
		{name: "too large", now: &later, event: event, entry: entry, note: "refused", also: func(w *plan.World) {
			w.Refused = func(subjects.AppID, app.State, *app.Record) error { return app.ErrTooLarge }
		}},
		{name: "not watched", event: &plan.Event{Record: &unwatched, Header: event.Header}, entry: entry, note: "unwatched", want: ""},
		{name: "no entry", now: &one, event: event, want: "bucket missing_entry"},
		{name: "no entry, and behind the cluster", now: &later, event: event, want: "bucket missing_entry, stream other_version"},
		{name: "no bucket", now: &one, event: event, also: func(w *plan.World) { w.Bucket = false }},
		{name: "no marker", event: gone, want: "bucket missing_marker"},
		{name: "entry for a marker", event: gone, entry: entry, want: "bucket entry_for_marker"},
		{name: "marker for an entry", now: &one, event: event, entry: &plan.Entry{Err: errors.New("no headers"), Header: nats.Header{subjects.HeaderKVOperation: {"DEL"}}}, want: "bucket marker_for_entry"},
		{name: "behind", now: &one, event: event, entry: with(entry, func(h *plan.Entry) { h.Record.Sequence = 4 }), want: "bucket bucket_behind"},
		{name: "ahead", now: &one, event: event, entry: with(entry, func(h *plan.Entry) { h.Record.Sequence = 6 }), want: "bucket bucket_ahead"},
		{name: "ahead of the stream", now: &one, entry: with(entry, func(h *plan.Entry) { h.Record.Sequence = 21 }), want: "bucket bucket_ahead"},
		{name: "no stream to be ahead of", now: &one, entry: with(entry, func(h *plan.Entry) { h.Record.Sequence = 21 }), also: func(w *plan.World) { w.Stream = nil }},
		{name: "another event", now: &one, entry: with(entry, func(h *plan.Entry) { h.Other = "something" }), want: "bucket bucket_other_event"},
		{name: "another version in the bucket", now: &one, event: event, entry: with(entry, func(h *plan.Entry) { h.Record.ResourceVersion = "99" }), want: "bucket bucket_other_version"},
		{name: "another App in the bucket", now: &one, event: event, entry: with(entry, func(h *plan.Entry) {
			other, _ := h.Record.App.App()
			other.Status.CurrentReplicas++
			h.Record.App = encodertest.Encoded(other)
		}), want: "bucket bucket_other_app"},
		{name: "another header", now: &one, event: event, entry: with(entry, func(h *plan.Entry) { h.Header.Set(subjects.CETime, "then") }), want: "bucket bucket_headers"},
		{name: "a header too many", now: &one, event: event, entry: with(entry, func(h *plan.Entry) { h.Header.Set(subjects.HeaderMergedUpdates, "1") }), want: "bucket bucket_headers"},
		{name: "a header too few", event: gone, entry: with(marker, func(h *plan.Entry) { h.Header.Del(subjects.HeaderDeletedResourceVersion) }), want: "bucket bucket_headers"},
		{name: "a purge for a delete", event: gone, entry: with(marker, func(h *plan.Entry) { h.Header.Set(subjects.HeaderKVOperation, subjects.KVPurge) })},
		{name: "another encoding", now: &one, event: event, entry: with(entry, func(h *plan.Entry) {
			h.Record.ContentType = subjects.ContentTypeProtobuf
		}), want: "bucket bucket_encoding"},
		{name: "another encoding, after retention", now: &one, entry: with(entry, func(h *plan.Entry) {
			h.Record.ContentType = subjects.ContentTypeProtobuf
		}), want: "bucket bucket_encoding"},
		{name: "damaged", now: &one, event: event, entry: damaged, want: "bucket damaged_entry"},
		{name: "damaged, and nothing else is known", entry: damaged, want: "bucket damaged_entry"},
		{name: "damaged, and only the cluster knows", now: &one, entry: damaged, want: "bucket damaged_entry, stream missing_event"},
		{name: "a foreign message alone", event: foreign},
		{name: "a foreign message and the app", now: &one, event: foreign, entry: entry},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := &plan.World{
				Watched: plan.Watching([]string{"flyte"}), Stream: &plan.Stream{First: 10, Last: 20, KeepsNewest: true}, Bucket: true, Entries: plantest.Entries,
				Refused: func(subjects.AppID, app.State, *app.Record) error { return nil },
			}
			if test.also != nil {
				test.also(w)
			}
			f := plan.Facts{App: apptest.ID, Cluster: test.now, Event: test.event, Entry: test.entry, Record: test.event.Published(), Known: true}
			if f.Record == nil && f.Entry != nil {
				f.Record = f.Entry.Record
			}
			x := plan.Explain(w, f)
			var got []string
			for _, d := range x.Findings {
				got = append(got, string(d.Side)+" "+string(d.Kind))
				if strings.Contains(d.Detail, "%!") || strings.Contains(d.Detail, "\n") {
					t.Errorf("got %q", d.Detail)
				}
			}
			slices.Sort(got)
			if got := strings.Join(got, ", "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			noted := ""
			if x.Refused != nil {
				noted = "refused"
			}
			if x.Unwatched {
				noted += "unwatched"
			}
			if noted != test.note {
				t.Errorf("got %q, want %q", noted, test.note)
			}
		})
	}
}
