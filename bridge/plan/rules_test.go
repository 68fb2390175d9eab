package plan_test

import (
	"errors"
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

// changed is a copy of a record.
func changed(r *app.Record, change func(*app.Record)) *app.Record {
	next := *r
	change(&next)
	return &next
}

// TestExplainOfBridge: a running bridge knows what it published, and makes some differences itself.
func TestExplainOfBridge(t *testing.T) {
	one := app.State{Service: encodertest.Service("u1", "100", "True")}
	event := plantest.EventOf(t, one)
	entry := plantest.EntryOf(t, event)
	protobuf, truncated := *entry, *entry
	protobuf.Record = changed(entry.Record, func(r *app.Record) { r.ContentType = subjects.ContentTypeProtobuf })
	truncated.Header = nats.Header{}
	for name, values := range entry.Header {
		truncated.Header[name] = values
	}
	truncated.Header.Set(subjects.HeaderTruncated, subjects.TruncatedStatus)
	counted := app.State{Service: one.Service, Revision: apptest.Revision("103", 3)}
	uncounted := *entry
	uncounted.Record = changed(entry.Record, func(r *app.Record) { r.Truncated = subjects.TruncatedStatus })
	later := changed(event.Record, func(r *app.Record) { r.Sequence = 15 })
	for _, test := range []struct {
		name   string
		now    *app.State
		event  *plan.Event
		entry  *plan.Entry
		bridge plan.Bridge
		limit  int // of an entry
		other  func(*plan.World)
		want   plan.Kind
	}{
		{name: "agreed", now: &one, event: event, entry: entry, bridge: plan.Bridge{Record: event.Record, Entry: 8}},
		{name: "an entry that was never published", entry: entry, want: plan.GhostEntry},
		{name: "an entry of an app that the cluster has", now: &one, entry: entry},
		{name: "its last event was removed", now: &one, event: event, entry: entry, bridge: plan.Bridge{Record: later}, want: plan.RemovedEvent},
		{name: "its only event was removed", now: &one, entry: entry, bridge: plan.Bridge{Record: later}, want: plan.RemovedEvent},
		{name: "retention took its only event", now: &one, entry: entry, bridge: plan.Bridge{Record: entry.Record}},
		{
			name: "the stream keeps no events for ever", now: &one, event: event, entry: entry, bridge: plan.Bridge{Record: later},
			other: func(w *plan.World) { w.Stream.KeepsNewest = false },
		},
		{name: "its own encoding", now: &one, event: event, entry: &protobuf, bridge: plan.Bridge{Record: event.Record, Entry: 8}},
		{name: "another's encoding", now: &one, event: event, entry: &protobuf, bridge: plan.Bridge{Record: event.Record, Entry: 7}, want: plan.BucketEncoding},
		{name: "its own truncated entry", now: &one, event: event, entry: &truncated, bridge: plan.Bridge{Record: event.Record, Entry: 8}},
		{name: "another's truncated entry", now: &one, event: event, entry: &truncated, bridge: plan.Bridge{Record: event.Record}, want: plan.BucketHeaders},
		{name: "no entry", now: &one, event: event, bridge: plan.Bridge{Record: event.Record}, want: plan.MissingEntry},
		{name: "no entry, which does not fit", now: &one, event: event, bridge: plan.Bridge{Record: event.Record}, limit: 10},
		{name: "damaged", now: &one, event: event, entry: &plan.Entry{Err: errors.New("unreadable")}, bridge: plan.Bridge{Record: event.Record}, want: plan.DamagedEntry},
		{name: "no count in the entry, and retention took the event", now: &counted, entry: &uncounted, bridge: plan.Bridge{Record: uncounted.Record}},
	} {
		t.Run(test.name, func(t *testing.T) {
			entries := *plantest.Entries
			entries.MaxSize = func() int { return test.limit }
			w := &plan.World{
				Watched: plan.Watching([]string{"flyte"}), Stream: &plan.Stream{First: 10, Last: 20, KeepsNewest: true}, Bucket: true, Entries: &entries,
				Refused: func(subjects.AppID, app.State, *app.Record) error { return nil },
			}
			if test.other != nil {
				test.other(w)
			}
			f := plan.Facts{App: apptest.ID, Cluster: test.now, Event: test.event, Entry: test.entry, Record: test.event.Published(), Known: true, Bridge: &test.bridge}
			if f.Record == nil && f.Entry != nil {
				f.Record = f.Entry.Record
			}
			var got plan.Kind
			for _, d := range plan.Explain(w, f).Findings {
				got += d.Kind
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestFollows(t *testing.T) {
	one := app.State{Service: encodertest.Service("u1", "100", "True")}
	two := app.State{Service: encodertest.Service("u1", "101", "True")}
	other := app.State{Service: encodertest.Service("u2", "102", "True")}
	shown := plantest.EventOf(t, one).Record
	gone := &app.Record{Kind: subjects.Deleted, UID: "u1", Sequence: 9}
	for _, test := range []struct {
		name   string
		r      *app.Record
		change *app.Change
		read   bool
		want   plan.Fit
	}{
		{"a create", nil, app.NewUpsert(one, true), true, plan.FitNext},
		{"a create after a delete", gone, app.NewUpsert(one, true), true, plan.FitNext},
		{"an update", shown, app.NewUpsert(two, false), true, plan.FitNext},
		{"what was read shows it", shown, app.NewUpsert(one, false), true, plan.FitShown},
		{"what was published before is made again", shown, app.NewUpsert(one, false), false, plan.FitNext},
		{"a delete", shown, app.MissedDelete(), true, plan.FitNext},
		{"a delete of nothing", nil, app.MissedDelete(), true, plan.FitNothing},
		{"a delete after a delete", gone, app.MissedDelete(), false, plan.FitNothing},
		{"another object", shown, app.NewUpsert(other, true), true, plan.FitGap},
		{"a damaged entry", &app.Record{Damaged: true, UID: "u9"}, app.NewUpsert(one, true), false, plan.FitNext},
	} {
		if got := plan.Follows(test.r, test.change, test.read); got != test.want {
			t.Errorf("%s: got %d, want %d", test.name, got, test.want)
		}
	}
}

func TestDiffers(t *testing.T) {
	one := app.State{Service: encodertest.Service("u1", "100", "True"), Revision: apptest.Revision("99", 2)}
	shown := plantest.EventOf(t, one).Record
	with := func(uid, version string, count int32) *app.State {
		return &app.State{Service: encodertest.Service(uid, version, "True", func(*kservice.Service) {}), Revision: apptest.Revision("99", count)}
	}
	for _, test := range []struct {
		name string
		r    *app.Record
		now  *app.State
		want bool
	}{
		{"nothing", nil, nil, false},
		{"the same", shown, &one, false},
		{"new", nil, &one, true},
		{"another version", shown, with("u1", "101", 2), true},
		{"another object", shown, with("u2", "100", 2), true},
		{"another count", shown, with("u1", "100", 3), true},
		{"gone", shown, nil, true},
		{"gone, and deleted", &app.Record{Kind: subjects.Deleted, Namespace: "flyte"}, nil, false},
		{"of another namespace", changed(shown, func(r *app.Record) { r.Namespace = "elsewhere" }), nil, false},
	} {
		if got := plan.Differs(test.r, test.now, plan.Watching([]string{"flyte"})); got != test.want {
			t.Errorf("%s: got %t, want %t", test.name, got, test.want)
		}
	}
}

func TestCorrect(t *testing.T) {
	shown := plantest.EventOf(t, app.State{Service: encodertest.Service("u1", "100", "True")}).Record // at 5
	at := func(sequence uint64) *app.Record {
		return changed(shown, func(r *app.Record) { r.Sequence = sequence })
	}
	version := changed(shown, func(r *app.Record) { r.ResourceVersion = "99" })
	gone := &app.Record{Kind: subjects.Deleted, UID: "u1", Sequence: 5}
	for _, test := range []struct {
		name    string
		reading plan.Reading
		want    plan.Verdict
	}{
		{"the same", plan.Reading{Had: shown, Known: true, Last: shown}, plan.KeepRecord},
		{"another version", plan.Reading{Had: version, Known: true, Last: shown}, plan.WrongKey},
		{"a forged sequence", plan.Reading{Had: at(3), Known: true, Last: shown}, plan.WrongKey},
		{"an entry after the delete", plan.Reading{Had: shown, Known: true, Last: gone}, plan.WrongKey},
		{"its event was removed", plan.Reading{Had: at(8), Known: true, Last: shown}, plan.KeepRecord},
		{"it names another app's event", plan.Reading{Had: at(8), Known: true, Last: shown, Wrongly: true}, plan.WrongKey},
		{"it names another app's event, and has none", plan.Reading{Had: at(8), Known: true, Wrongly: true}, plan.NeverAnEvent},
		{"retention took the event", plan.Reading{Had: shown, Known: true}, plan.KeepRecord},
		{"another bridge published since", plan.Reading{Had: shown, Known: true, Last: at(15)}, plan.KeepRecord},
		{"damaged", plan.Reading{Had: &app.Record{Damaged: true}, Known: true, Last: shown}, plan.KeepRecord},
		{"its only event was lost", plan.Reading{Had: changed(shown, func(r *app.Record) { r.EventLost = true }), Known: true}, plan.KeepRecord},
		{"no key", plan.Reading{Last: shown}, plan.MissingKey},
		{"no key, of an app that is gone", plan.Reading{Last: gone}, plan.TakeEvent},
		{"no key yet", plan.Reading{Last: at(15)}, plan.TakeEvent},
		{"nothing at all", plan.Reading{}, plan.TakeEvent},
	} {
		test.reading.From = 10
		if got := plan.Correct(test.reading); got != test.want {
			t.Errorf("%s: got %d, want %d", test.name, got, test.want)
		}
	}
}

func TestWithoutEvent(t *testing.T) {
	shown := plantest.EventOf(t, app.State{Service: encodertest.Service("u1", "100", "True")}).Record // at 5
	entry := &plan.Entry{Record: shown}
	for _, test := range []struct {
		name string
		key  plan.Key
		want plan.KeyStep
	}{
		{"the projector wrote it", plan.Key{Entry: entry, Written: true, Followed: 9}, plan.KeyStays},
		{"its event was not followed yet", plan.Key{Entry: entry, Followed: 4}, plan.KeyStays},
		{"its event was passed", plan.Key{Entry: entry, Followed: 9}, plan.KeyRemoved},
		{"another app's event is there", plan.Key{Entry: entry, Written: true, Other: true, Followed: 4}, plan.KeyRemoved},
		{"it is missing", plan.Key{Damaged: &app.Record{Damaged: true}}, plan.KeyRemoved},
		{"its event was lost", plan.Key{Damaged: &app.Record{Damaged: true, Held: shown}}, plan.KeyWaits},
		{"its delete was lost", plan.Key{Damaged: &app.Record{Damaged: true, Held: &app.Record{Kind: subjects.Deleted}}}, plan.KeyRemoved},
	} {
		if got := plan.WithoutEvent(test.key); got != test.want {
			t.Errorf("%s: got %d, want %d", test.name, got, test.want)
		}
	}
}
