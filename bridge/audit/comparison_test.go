package audit

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// testComparison is one whose stream begins at 10 and ends at 20, without apps.
func testComparison() comparison {
	return comparison{
		t: &Target{
			Watched: app.Watching([]string{"flyte"}),
			Entries: &store.Bucket{Name: subjects.DefaultBucket, ContentType: subjects.ContentTypeJSON},
		},
		s: &sides{
			storage: &store.Storage{Stream: &jetstream.StreamInfo{State: jetstream.StreamState{FirstSeq: 10, LastSeq: 20}}, Bucket: &jetstream.StreamInfo{}},
			current: map[subjects.AppID]app.State{}, events: map[subjects.AppID]*store.LastEvent{}, entries: map[subjects.AppID]*store.Entry{},
		},
		refused: func(subjects.AppID, app.State, *app.Record) error { return nil },
	}
}

// eventOf is the last event of an app in state s, at sequence 5.
func eventOf(t *testing.T, s app.State) *store.LastEvent {
	t.Helper()
	ev, err := testEncoder().Encode(testID, app.NewUpsert(s, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	ev.Record.Sequence = 5
	return &store.LastEvent{Record: ev.Record, Header: ev.Msg.Header}
}

// deleteOf is the delete after an event, at sequence 9.
func deleteOf(t *testing.T, e *store.LastEvent) *store.LastEvent {
	t.Helper()
	ev, err := testEncoder().Encode(testID, &app.Change{Remove: true, DeletedVersion: "101"}, e.Record)
	if err != nil {
		t.Fatal(err)
	}
	ev.Record.Sequence = 9
	return &store.LastEvent{Record: ev.Record, Header: ev.Msg.Header}
}

// entryOf is what the projector writes for an event.
func entryOf(t *testing.T, e *store.LastEvent) *store.Entry {
	t.Helper()
	msg, err := testComparison().t.Entries.Entry(testID, e.Record, e.Header)
	if err != nil {
		t.Fatal(err)
	}
	msg.Header.Set(subjects.HeaderExpectedLastSequence, "7") // the server stores it too
	h := store.EntryOf(&store.Message{Subject: msg.Subject, Sequence: 8, Header: msg.Header, Data: msg.Data})
	if h.Err != nil {
		t.Fatal(h.Err)
	}
	return h
}

func TestCompare(t *testing.T) {
	one := app.State{Service: testService("u1", "100", "True"), Revision: testRevision("99", 2)}
	later := app.State{Service: testService("u1", "102", "True"), Revision: testRevision("99", 2)}
	elsewhere := app.State{Service: app.Keeper{App: kservice.Config{BaseDomain: "example.org"}, Form: subjects.ContentTypeJSON}.Keep(apptest.Service("u1", "100", "True")), Revision: testRevision("99", 2)}
	scaled := app.State{Service: one.Service, Revision: testRevision("103", 3)}
	another := app.State{Service: testService("u2", "104", "True"), Revision: testRevision("99", 2)}
	event := eventOf(t, one)
	gone := deleteOf(t, event)
	with := func(h *store.Entry, change func(*store.Entry)) *store.Entry {
		c := *h
		c.Header = maps.Clone(h.Header)
		if h.Record != nil {
			r := *h.Record
			c.Record = &r
		}
		change(&c)
		return &c
	}
	entry, marker := entryOf(t, event), entryOf(t, gone)
	damaged := &store.Entry{Err: errors.New("unreadable"), Header: nats.Header{}, Stored: 8}
	foreign := &store.LastEvent{Foreign: 6}
	whole := func(c *comparison) { c.s.storage.Stream.State.FirstSeq = 1 }
	unwatched := *event.Record
	unwatched.Namespace = "elsewhere"
	for _, test := range []struct {
		name  string
		now   *app.State
		event *store.LastEvent
		entry *store.Entry
		also  func(*comparison)
		want  string // kinds with their sides
		note  NoteKind
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
		{name: "too large", now: &later, event: event, entry: entry, note: NoteSkipped, also: func(c *comparison) {
			c.refused = func(subjects.AppID, app.State, *app.Record) error { return app.ErrTooLarge }
		}},
		{name: "not watched", event: &store.LastEvent{Record: &unwatched, Header: event.Header}, entry: entry, note: NoteUnwatched, want: ""},
		{name: "no entry", now: &one, event: event, want: "bucket missing_entry"},
		{name: "no entry, and behind the cluster", now: &later, event: event, want: "bucket missing_entry, stream other_version"},
		{name: "no bucket", now: &one, event: event, also: func(c *comparison) { c.s.storage.Bucket = nil }},
		{name: "no marker", event: gone, want: "bucket missing_marker"},
		{name: "entry for a marker", event: gone, entry: entry, want: "bucket entry_for_marker"},
		{name: "marker for an entry", now: &one, event: event, entry: &store.Entry{Err: errors.New("no headers"), Header: nats.Header{subjects.HeaderKVOperation: {"DEL"}}}, want: "bucket marker_for_entry"},
		{name: "behind", now: &one, event: event, entry: with(entry, func(h *store.Entry) { h.Record.Sequence = 4 }), want: "bucket bucket_behind"},
		{name: "ahead", now: &one, event: event, entry: with(entry, func(h *store.Entry) { h.Record.Sequence = 6 }), want: "bucket bucket_ahead"},
		{name: "ahead of the stream", now: &one, entry: with(entry, func(h *store.Entry) { h.Record.Sequence = 21 }), want: "bucket bucket_ahead"},
		{name: "no stream to be ahead of", now: &one, entry: with(entry, func(h *store.Entry) { h.Record.Sequence = 21 }), also: func(c *comparison) { c.s.storage.Stream = nil }},
		{name: "another event", now: &one, entry: with(entry, func(h *store.Entry) { h.Other = "something" }), want: "bucket bucket_other_event"},
		{name: "another version in the bucket", now: &one, event: event, entry: with(entry, func(h *store.Entry) { h.Record.ResourceVersion = "99" }), want: "bucket bucket_other_version"},
		{name: "another App in the bucket", now: &one, event: event, entry: with(entry, func(h *store.Entry) {
			other, _ := h.Record.App.App()
			other.Status.CurrentReplicas++
			h.Record.App = encodertest.Encoded(other)
		}), want: "bucket bucket_other_app"},
		{name: "another header", now: &one, event: event, entry: with(entry, func(h *store.Entry) { h.Header.Set(subjects.CETime, "then") }), want: "bucket bucket_headers"},
		{name: "a header too many", now: &one, event: event, entry: with(entry, func(h *store.Entry) { h.Header.Set(subjects.HeaderMergedUpdates, "1") }), want: "bucket bucket_headers"},
		{name: "a header too few", event: gone, entry: with(marker, func(h *store.Entry) { h.Header.Del(subjects.HeaderDeletedResourceVersion) }), want: "bucket bucket_headers"},
		{name: "a purge for a delete", event: gone, entry: with(marker, func(h *store.Entry) { h.Header.Set(subjects.HeaderKVOperation, subjects.KVPurge) })},
		{name: "another encoding", now: &one, event: event, entry: with(entry, func(h *store.Entry) {
			h.Record.ContentType = subjects.ContentTypeProtobuf
		}), want: "bucket bucket_encoding"},
		{name: "another encoding, after retention", now: &one, entry: with(entry, func(h *store.Entry) {
			h.Record.ContentType = subjects.ContentTypeProtobuf
		}), want: "bucket bucket_encoding"},
		{name: "damaged", now: &one, event: event, entry: damaged, want: "bucket damaged_entry"},
		{name: "damaged, and nothing else is known", entry: damaged, want: "bucket damaged_entry"},
		{name: "damaged, and only the cluster knows", now: &one, entry: damaged, want: "bucket damaged_entry, stream missing_event"},
		{name: "a foreign message alone", event: foreign},
		{name: "a foreign message and the app", now: &one, event: foreign, entry: entry},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := testComparison()
			if test.also != nil {
				test.also(&c)
			}
			if test.now != nil {
				c.s.current[testID] = *test.now
			}
			if test.event != nil {
				c.s.events[testID] = test.event
			}
			if test.entry != nil {
				c.s.entries[testID] = test.entry
			}
			differences, notes := c.compare()
			var got []string
			for _, d := range differences {
				got = append(got, string(d.Side)+" "+string(d.Kind))
				if !strings.HasPrefix(d.String(), "vision/development/stream.lit  ") || strings.Contains(d.Detail, "%!") || strings.Contains(d.String(), "\n") {
					t.Errorf("got %q", d)
				}
			}
			slices.Sort(got)
			if got := strings.Join(got, ", "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			var noted NoteKind
			for _, n := range notes {
				noted += n.Kind
			}
			if noted != test.note {
				t.Errorf("got notes %v, want %q", notes, test.note)
			}
		})
	}
}

// What an operator reads first: app, what, which side, versions and sequences.
func TestDifferenceText(t *testing.T) {
	event := eventOf(t, app.State{Service: testService("u1", "100", "True")})
	later := app.State{Service: testService("u1", "102", "True")}
	c := testComparison()
	c.s.current[testID], c.s.events[testID] = later, event
	differences, _ := c.compare()
	var got []string
	for _, d := range differences {
		got = append(got, d.String())
		if d.ClusterVersion != "102" || d.StreamSequence != 5 || d.BucketSequence != 0 {
			t.Errorf("got %+v", d)
		}
	}
	want := []string{
		"vision/development/stream.lit  another version: the cluster has version 102, the last event is created at 5 with version 100",
		"vision/development/stream.lit  missing in the bucket: the stream's last event is created at 5, the cluster has version 102",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	strange := about(subjects.AppID{Project: "a\x1b[31m", Domain: "b", Name: "c"}, store.MismatchMissingEntry, SideBucket, "missing")
	if got, want := strange.String(), `"a\x1b[31m/b/c"  missing`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What is written directly ends where the projector goes on.
func TestProjected(t *testing.T) {
	id := func(name string) subjects.AppID { return subjects.AppID{Project: "p", Domain: "d", Name: name} }
	at := func(sequence uint64) *app.Record { return &app.Record{Sequence: sequence} }
	behind := about(id("behind"), store.MismatchBehind, SideBucket, "")
	behind.StreamSequence = 9
	liar := about(id("liar"), store.MismatchAhead, SideBucket, "")
	liar.StreamSequence = 3
	s := &sides{
		events: map[subjects.AppID]*store.LastEvent{id("right"): {Record: at(7)}, id("behind"): {Record: at(9)}, id("liar"): {Record: at(3)}},
		entries: map[subjects.AppID]*store.Entry{
			id("right"): {Record: at(7)}, id("behind"): {Record: at(2)}, id("liar"): {Record: at(8)}, id("damaged"): {},
		},
	}
	if got := s.projected([]Difference{behind, liar}); got != 7 {
		t.Errorf("got %d, want 7", got)
	}
}

func TestDoubtIsStuck(t *testing.T) {
	d := func(side Side, stream, bucket uint64) []Difference {
		return []Difference{{Side: side, StreamSequence: stream, BucketSequence: bucket}}
	}
	for _, test := range []struct {
		name       string
		first, now []Difference
		want       bool
	}{
		{"the stream stands", d(SideStream, 5, 5), d(SideStream, 5, 5), true},
		{"the stream moves", d(SideStream, 5, 5), d(SideStream, 6, 5), false},
		{"the bucket stands", d(SideBucket, 5, 3), d(SideBucket, 9, 3), true},
		{"the bucket moves", d(SideBucket, 5, 3), d(SideBucket, 9, 4), false},
		{"another side", d(SideStream, 5, 3), d(SideBucket, 5, 3), false},
	} {
		if got := (&doubt{first: test.first, differences: test.now}).stuck(); got != test.want {
			t.Errorf("%s: got %v", test.name, got)
		}
	}
}

func TestUndecided(t *testing.T) {
	s := &sides{storage: &store.Storage{Stream: &jetstream.StreamInfo{State: jetstream.StreamState{LastSeq: 10}}}, entries: map[subjects.AppID]*store.Entry{
		testID: {Record: &app.Record{Sequence: 11}},
	}}
	ahead := about(testID, store.MismatchAhead, SideBucket, "ahead")
	if undecided([]Difference{ahead}, s) == nil {
		t.Error("a bucket of another stream is repaired")
	}
	ahead.StreamSequence = 4
	if undecided([]Difference{ahead}, s) == nil {
		t.Error("an entry that reflects what the stream has lost is repaired")
	}
	s.entries[testID].Record.Sequence = 9
	if err := undecided([]Difference{ahead}, s); err != nil {
		t.Errorf("got %v for an entry that its event repairs", err)
	}
}

// A difference that a bridge may rightly keep for a while is tolerated for longer than others.
func TestStandInIsTolerated(t *testing.T) {
	c := testComparison()
	published := eventOf(t, app.State{Service: testService("u1", "21", "True"), Revision: testRevision("9", 3)})
	entry := entryOf(t, published)
	c.s.current[testID], c.s.events[testID], c.s.entries[testID] = app.State{Service: testService("u1", "21", "True")}, published, entry
	for _, pending := range []map[subjects.AppID]bool{nil, {testID: true}} {
		c.s.pending = pending
		differences, _ := c.compare()
		if len(differences) != 1 {
			t.Fatalf("got %v, want one difference", differences)
		}
		if got, want := differences[0].tolerated > watch.StandInTime, pending != nil; got != want {
			t.Errorf("tolerated for %s with %d apps pending", differences[0].tolerated, len(pending))
		}
	}
}

// A state that an older version of appbridge published, without a status and without ce-dataschema,
// is published: an upgrade alone is no change, and the bucket's entry is what its event is.
func TestStatusMissingIsNoChange(t *testing.T) {
	e, now := testEncoder(), app.State{Service: testService("u1", "100", "True"), Revision: testRevision("99", 1)}
	ev, err := e.Encode(testID, app.NewUpsert(now, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	ev.Msg.Header.Del(subjects.HeaderAppStatus)
	ev.Msg.Header.Del(subjects.CEDataSchema)
	r, err := app.ReadEvent(subjects.Created, 7, ev.Msg.Header, ev.Msg.Data)
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != "" {
		t.Fatalf("status %q: this test tests nothing", r.Status)
	}
	b := &store.Bucket{Name: subjects.DefaultBucket, ContentType: e.Form}
	entry, err := b.Entry(testID, r, ev.Msg.Header)
	if err != nil {
		t.Fatal(err)
	}
	inBucket, err := app.ReadEntry(entry.Header, entry.Data)
	if err != nil {
		t.Fatal(err)
	}
	if got := entry.Header[subjects.CEDataSchema]; got != nil {
		t.Errorf("the entry of an older event has %s %q", subjects.CEDataSchema, got)
	}
	last := &store.LastEvent{Record: r, Header: ev.Msg.Header}
	held := store.EntryOf(&store.Message{Subject: entry.Subject, Sequence: 1, Header: entry.Header, Data: entry.Data})
	if got := b.Mismatch(testID, last, held, time.Now()); got != nil {
		t.Errorf("the entry of an older event is reported: %v", got)
	}
	held.Header = maps.Clone(held.Header)
	held.Header.Set(subjects.CEDataSchema, subjects.DataSchema) // which its event does not have
	if got := b.Mismatch(testID, last, held, time.Now()); got == nil || got.Kind != store.MismatchHeaders {
		t.Errorf("an entry with a header that its event does not have is reported as %v", got)
	}
	for name, published := range map[string]*app.Record{"event": r, "entry": inBucket} {
		changes := app.Reconcile(app.Input{
			Records: map[subjects.AppID]*app.Record{testID: published}, Current: map[subjects.AppID]app.State{testID: now},
			Watched: func(string) bool { return true },
		}).Changes
		if len(changes) > 0 {
			t.Errorf("%s: %d changes are owed, want none", name, len(changes))
		}
	}
	c := testComparison()
	c.t.Watched, c.t.Entries = func(string) bool { return true }, b
	c.s.current[testID] = now
	c.s.events[testID] = &store.LastEvent{Record: r, Header: ev.Msg.Header}
	c.s.entries[testID] = &store.Entry{Record: inBucket, Header: entry.Header}
	differences, _ := c.compare()
	if len(differences) > 0 {
		t.Errorf("verify finds %v, want nothing", differences)
	}
}
