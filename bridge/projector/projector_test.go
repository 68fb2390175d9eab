package projector

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A stream that ends with somebody else's message gives the projection nothing
// to write. That is no failure, however often it starts over.
func TestProjectorRestartsBehindForeignMessage(t *testing.T) {
	r := newRig(t)
	ev := r.event("1", nil)
	first := r.append(ev)
	p := r.follow()
	r.reflects(p, first.Sequence)
	if _, err := r.js.Publish(t.Context(), ev.Msg.Subject, []byte("x")); err != nil {
		t.Fatal(err)
	}
	r.reflects(p, first.Sequence+1)
	for range 6 {
		r.startOver(p)
	}
}

// A bucket that has to be written again is behind from then on.
func TestBucketThatSteppedBackIsBehind(t *testing.T) {
	none := &store.Snapshot{Records: map[subjects.AppID]*app.Record{}}
	p := New(Config{Bucket: &store.Bucket{}, Log: zap.NewNop()}, none)
	p.stored(testID, key{exists: true}, true)
	p.lag.note(100, time.Now())
	p.written.Store(100)
	if !p.lag.since(100).IsZero() {
		t.Fatal("it is behind although it reflects everything")
	}
	p.admit(&store.Snapshot{Records: map[subjects.AppID]*app.Record{}})
	if p.written.Load() != 0 || p.lag.since(0).IsZero() {
		t.Errorf("it reflects %d of 100 and is not behind", p.written.Load())
	}
}

// A projection that starts over reads a bucket that another bridge has written
// on: what that projected, and this one does not follow, is in the records.
func TestRecordsOfAnotherProjection(t *testing.T) {
	r := newRig(t)
	first := r.append(r.event("1", nil))
	r.project()
	snap, err := r.bucket.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := New(r.projectorConfig(zap.NewNop()), snap)
	second := r.append(r.eventOn(otherApp("ghost"), "9", nil))
	r.project() // by the other bridge
	msg, err := r.bucket.Entry(testID, first, r.event("1", nil).Msg.Header)
	if err != nil {
		t.Fatal(err)
	}
	// The first write is refused, as after any write of another.
	snap.Rewrites = append(snap.Rewrites, store.Rewrite{App: testID, Msg: msg})
	snap.Last--
	r.run(p, snap)
	select {
	case <-p.CaughtUp:
	case <-time.After(suite.Patience):
		t.Fatal("it does not catch up")
	}
	records := taken(p)
	if got := records[otherApp("ghost")]; got.Previous() != second.Sequence {
		t.Fatalf("the record of the app at sequence %d is %+v", second.Sequence, got)
	}

	// Once they are taken, the session has to learn of it.
	p.TakeTouched()
	p.adopt(&store.Snapshot{Records: map[subjects.AppID]*app.Record{testID: first, otherApp("ghost"): {Sequence: second.Sequence + 1}}})
	if got := p.TakeTouched(); len(got) != 1 || got[otherApp("ghost")] != second.Sequence+1 {
		t.Errorf("touched are %v", got)
	}
}

// A bucket that is created again takes the last events of each app, not all that
// the stream holds.
func TestRebuild(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const apps, rounds = 500, 20
	records := map[subjects.AppID]*app.Record{}
	for round := range rounds {
		futures := map[subjects.AppID]jetstream.PubAckFuture{}
		next := map[subjects.AppID]*app.Record{}
		for i := range apps {
			id := otherApp(fmt.Sprint("a", i))
			version := fmt.Sprint(round*apps + i + 1)
			ev := r.eventOn(id, version, records[id])
			if (round == rounds/2 && i%5 == 0) || (round == rounds-1 && i%7 == 0) {
				ev = r.removalOn(id, records[id])
			}
			f, err := r.js.PublishMsgAsync(ev.Msg)
			if err != nil {
				t.Fatal(err)
			}
			futures[id], next[id] = f, ev.Record
		}
		for id, f := range futures {
			select {
			case ack := <-f.Ok():
				next[id].Sequence = ack.Sequence
				records[id] = next[id]
			case err := <-f.Err():
				t.Fatal(err)
			}
		}
	}
	// Foreign messages in front of the last event of one, behind that of another.
	last := uint64(apps * rounds)
	for _, name := range []string{"a1.updated", "a2.created"} {
		last++
		if _, err := r.js.Publish(t.Context(), "flyte.apps.events.p.d."+name, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	p := r.follow()
	select {
	case <-p.CaughtUp:
	case <-time.After(suite.Patience):
		t.Fatal("it does not catch up")
	}
	r.reflects(p, last)
	stream, err := r.js.Stream(t.Context(), subjects.BucketStream(subjects.DefaultBucket))
	if err != nil {
		t.Fatal(err)
	}
	if got := stream.CachedInfo().State.LastSeq; got > 3*apps {
		t.Errorf("%d entries were written for %d apps", got, apps)
	}
	if got := counted(t, p.metrics.removedSequences); got != 0 {
		t.Errorf("%d events count as removed", got)
	}
	collected := taken(p)
	snap, err := r.bucket.LoadKeeping(t.Context(), func(subjects.AppID, store.Marker) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range records {
		fence := want.Sequence
		switch id.Name {
		case "a1":
			fence = last - 1
		case "a2":
			fence = last
		}
		if !want.Exists() {
			if got := collected[id]; got != nil {
				t.Errorf("%s: the record of a deleted app is %+v", id, got)
			}
			if got := snap.Markers[id]; got.Event != want.Sequence {
				t.Errorf("%s: the bucket holds %+v, want a marker of sequence %d", id, got, want.Sequence)
			}
			continue
		}
		if got := collected[id]; got.Previous() != want.Sequence || got.Kind != want.Kind || got.Fence() != fence {
			t.Errorf("%s: the record is %+v, want sequence %d and fence %d", id, got, want.Sequence, fence)
		}
		if got := snap.Records[id]; got.Previous() != want.Sequence || got.Kind != want.Kind {
			t.Errorf("%s: the bucket holds %+v, want sequence %d", id, got, want.Sequence)
		}
	}
	// From here on it follows everything.
	id := otherApp("a2")
	ev := r.eventOn(id, "1000001", collected[id])
	r.append(ev)
	if err := r.stream.DeleteMsg(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	r.reflects(p, last+1)
	if got := r.held(id).Sequence(); got != last+1 {
		t.Errorf("the bucket reflects %d of %s, want %d", got, id, last+1)
	}
}
