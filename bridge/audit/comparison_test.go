package audit

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/plan/plantest"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// testSides are those of a stream that begins at 10 and ends at 20, without apps.
func testSides() (*sides, *plan.World) {
	s := &sides{
		storage: &store.Storage{Stream: &jetstream.StreamInfo{State: jetstream.StreamState{FirstSeq: 10, LastSeq: 20}}, Bucket: &jetstream.StreamInfo{}},
		current: map[subjects.AppID]app.State{}, events: map[subjects.AppID]*plan.Event{}, entries: map[subjects.AppID]*plan.Entry{},
	}
	w := testTarget.world(s)
	w.Refused = func(subjects.AppID, app.State, *app.Record) error { return nil }
	return s, w
}

var testTarget = &Target{
	Watched: plan.Watching([]string{"flyte"}),
	Entries: &store.Bucket{Entries: *plantest.Entries},
	Encoder: func(int64) *app.Encoder { return testEncoder() },
}

// What an operator reads first: app, what, which side, versions and sequences.
func TestDifferenceText(t *testing.T) {
	event := plantest.EventOf(t, app.State{Service: testService("u1", "100", "True")})
	later := app.State{Service: testService("u1", "102", "True")}
	sides, w := testSides()
	sides.current[testID], sides.events[testID] = later, event
	differences, _ := sides.explain(w)
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
	strange := about(subjects.AppID{Project: "a\x1b[31m", Domain: "b", Name: "c"}, plan.MissingEntry, plan.SideBucket, "missing")
	if got, want := strange.String(), `"a\x1b[31m/b/c"  missing`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What is written directly ends where the projector goes on.
func TestProjected(t *testing.T) {
	id := func(name string) subjects.AppID { return subjects.AppID{Project: "p", Domain: "d", Name: name} }
	at := func(sequence uint64) *app.Record { return &app.Record{Sequence: sequence} }
	behind := about(id("behind"), plan.BucketBehind, plan.SideBucket, "")
	behind.StreamSequence = 9
	liar := about(id("liar"), plan.BucketAhead, plan.SideBucket, "")
	liar.StreamSequence = 3
	s := &sides{
		events: map[subjects.AppID]*plan.Event{id("right"): {Record: at(7)}, id("behind"): {Record: at(9)}, id("liar"): {Record: at(3)}},
		entries: map[subjects.AppID]*plan.Entry{
			id("right"): {Record: at(7)}, id("behind"): {Record: at(2)}, id("liar"): {Record: at(8)}, id("damaged"): {},
		},
	}
	if got := s.projected([]Difference{behind, liar}); got != 7 {
		t.Errorf("got %d, want 7", got)
	}
}

func TestDoubtIsStuck(t *testing.T) {
	d := func(side plan.Side, stream, bucket uint64) []Difference {
		return []Difference{{Side: side, StreamSequence: stream, BucketSequence: bucket}}
	}
	for _, test := range []struct {
		name       string
		first, now []Difference
		want       bool
	}{
		{"the stream stands", d(plan.SideStream, 5, 5), d(plan.SideStream, 5, 5), true},
		{"the stream moves", d(plan.SideStream, 5, 5), d(plan.SideStream, 6, 5), false},
		{"the bucket stands", d(plan.SideBucket, 5, 3), d(plan.SideBucket, 9, 3), true},
		{"the bucket moves", d(plan.SideBucket, 5, 3), d(plan.SideBucket, 9, 4), false},
		{"another side", d(plan.SideStream, 5, 3), d(plan.SideBucket, 5, 3), false},
	} {
		if got := (&doubt{first: test.first, differences: test.now}).stuck(); got != test.want {
			t.Errorf("%s: got %v", test.name, got)
		}
	}
}

func TestUndecided(t *testing.T) {
	s := &sides{storage: &store.Storage{Stream: &jetstream.StreamInfo{State: jetstream.StreamState{LastSeq: 10}}}, entries: map[subjects.AppID]*plan.Entry{
		testID: {Record: &app.Record{Sequence: 11}},
	}}
	ahead := about(testID, plan.BucketAhead, plan.SideBucket, "ahead")
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
	sides, w := testSides()
	published := plantest.EventOf(t, app.State{Service: testService("u1", "21", "True"), Revision: testRevision("9", 3)})
	entry := plantest.EntryOf(t, published)
	sides.current[testID], sides.events[testID], sides.entries[testID] = app.State{Service: testService("u1", "21", "True")}, published, entry
	for _, pending := range []map[subjects.AppID]bool{nil, {testID: true}} {
		sides.pending = pending
		differences, _ := sides.explain(w)
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
	b := &app.Entries{Name: subjects.DefaultBucket, ContentType: e.Form}
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
	last := &plan.Event{Record: r, Header: ev.Msg.Header}
	held := plan.ReadEntry(entry.Header, entry.Data, 1, time.Time{})
	if got := plan.Check(b, testID, last, held, time.Now()); got != nil {
		t.Errorf("the entry of an older event is reported: %v", got)
	}
	held.Header = maps.Clone(held.Header)
	held.Header.Set(subjects.CEDataSchema, subjects.DataSchema) // which its event does not have
	if got := plan.Check(b, testID, last, held, time.Now()); got == nil || got.Kind != plan.BucketHeaders {
		t.Errorf("an entry with a header that its event does not have is reported as %v", got)
	}
	for name, published := range map[string]*app.Record{"event": r, "entry": inBucket} {
		changes := plan.Next(&plan.World{}, plan.Facts{Record: published, Known: true, Cluster: &now}).Publish
		if len(changes) > 0 {
			t.Errorf("%s: %d changes are owed, want none", name, len(changes))
		}
	}
	sides, w := testSides()
	w.Entries = b
	sides.current[testID] = now
	sides.events[testID] = &plan.Event{Record: r, Header: ev.Msg.Header}
	sides.entries[testID] = &plan.Entry{Record: inBucket, Header: entry.Header}
	differences, _ := sides.explain(w)
	if len(differences) > 0 {
		t.Errorf("verify finds %v, want nothing", differences)
	}
}
