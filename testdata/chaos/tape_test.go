package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

func newTestTape(t *testing.T) *tape {
	t.Helper()
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	return newTape(names)
}

// eventOf is an update of shop/production/<app> at a version.
func eventOf(app string, sequence uint64, version int) audit.Message {
	return audit.Message{
		Subject: "flyte.apps.events.shop.production." + app + ".updated", Sequence: sequence,
		Header: nats.Header{subjects.CEType: {"x"}, subjects.HeaderUID: {"u1"}, subjects.HeaderResourceVersion: {strconv.Itoa(version)}},
	}
}

// places are epoch and sequence of messages.
func places(all []audit.Message) (places [][2]uint64) {
	for _, m := range all {
		places = append(places, [2]uint64{uint64(m.Epoch), m.Sequence})
	}
	return places
}

func TestTape(t *testing.T) {
	tape := newTestTape(t)
	for sequence := uint64(1); sequence <= 6; sequence++ {
		tape.note(eventOf("a", sequence, int(sequence)*10))
	}
	tape.note(eventOf("b", 8, 80)) // the other reader was faster
	tape.note(eventOf("b", 7, 70))
	tape.note(eventOf("b", 7, 70)) // another reader
	if n, _ := tape.count(); n != 8 {
		t.Errorf("%d messages, want 8", n)
	}
	if epoch, last := tape.end(); epoch != 0 || last != 8 {
		t.Errorf("it ends at %d in epoch %d, want 8 in epoch 0", last, epoch)
	}
	if got := tape.apps()["shop.production.b"]; got.sequence != 8 || got.version != 80 {
		t.Errorf("the newest event of b is %+v", got)
	}
	if got, want := tape.events(5, 7), []uint64{6, 7}; !slices.Equal(got, want) {
		t.Errorf("events above 5 and up to 7: got %v, want %v", got, want)
	}

	// The copy has 4, and 5 as it turns out; 6 means something else now.
	tape.rollBack(4)
	if got := tape.apps()["shop.production.a"]; got.sequence != 4 {
		t.Errorf("after the rollback the newest event of a is %+v, want that at 4", got)
	}
	if service, _ := tape.versions(); service != 40 {
		t.Errorf("after the rollback the newest version is %d, want 40", service)
	}
	tape.note(eventOf("a", 5, 50))
	tape.note(eventOf("a", 6, 61))
	gone, survived := tape.gone(1, 4, 8)
	if want := []uint64{6, 7, 8}; !slices.Equal(gone, want) {
		t.Errorf("gone: got %v, want %v", gone, want)
	}
	if want := []uint64{5}; !slices.Equal(survived, want) {
		t.Errorf("survived: got %v, want %v", survived, want)
	}
	want := [][2]uint64{{0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}, {0, 6}, {0, 7}, {0, 8}, {1, 6}}
	if got := places(tape.messages()); !slices.Equal(got, want) {
		t.Errorf("epochs and sequences: got %v, want %v", got, want)
	}
	if got, want := tape.events(0, 10), []uint64{1, 2, 3, 4, 5, 6}; !slices.Equal(got, want) {
		t.Errorf("events of this epoch: got %v, want %v", got, want)
	}
}

func TestNotices(t *testing.T) {
	tape := newTestTape(t)
	tape.note(audit.Message{Subject: tape.names.Notice(), Sequence: 9, Header: nats.Header{subjects.HeaderLostFrom: {"5"}, subjects.HeaderLostTo: {"8"}}})
	got, err := tape.notices()
	if want := []subjects.LostRange{{From: 5, To: 8}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	tape.note(audit.Message{Subject: tape.names.Notice(), Sequence: 10})
	if _, err := tape.notices(); err == nil {
		t.Error("a notice without a range is no error")
	}
}

func TestRepublished(t *testing.T) {
	stored := eventOf("a", 7, 70)
	header := nats.Header{
		headerStream: {subjects.DefaultStream}, headerSubject: {stored.Subject}, headerSequence: {"7"}, headerLast: {"3"},
		headerStored: {"2026-05-01T08:00:00Z"},
	}
	for name, values := range stored.Header {
		header[name] = values
	}
	stream, m, ok := republished(&nats.Msg{Subject: tapEvents + "." + stored.Subject, Header: header})
	if !ok || stream != subjects.DefaultStream || !sameContent(&m, &stored) || m.Sequence != 7 || m.Stored.IsZero() {
		t.Errorf("got %v of stream %q, %v", m, stream, ok)
	}
	if _, _, ok := republished(&nats.Msg{Subject: "chaos.x"}); ok {
		t.Error("a message without a sequence was taken")
	}
}

func TestBucketTape(t *testing.T) {
	var b bucketTape
	for i, event := range []string{"3", "5", ""} {
		m := audit.Message{Sequence: uint64(i + 1), Header: nats.Header{}}
		m.Header.Set(subjects.HeaderEventSequence, event)
		b.note(m)
	}
	if last, newest := b.end(); last != 3 || newest != 5 {
		t.Errorf("it ends at %d and reflects %d, want 3 and 5", last, newest)
	}
	if got, want := b.without([]uint64{3, 4, 5, 6}), []uint64{4, 6}; !slices.Equal(got, want) {
		t.Errorf("not projected: got %v, want %v", got, want)
	}
	b.rollBack(1)
	if last, _ := b.end(); last != 1 {
		t.Errorf("after the rollback it ends at %d, want 1", last)
	}
}

// Replicas that apply a transform at different times store a message under two subjects.
func TestUnrenamed(t *testing.T) {
	w := &world{names: newTestTape(t).names}
	events := strings.TrimSuffix(w.names.Events(), ">")
	got, removed := w.unrenamed([]audit.Message{
		{Subject: events + "p.d.a.created", Sequence: 1},
		{Subject: renamed + ".p.d.a.updated", Sequence: 2},
		{Subject: events + "p.d.a.updated", Sequence: 2},
		{Subject: events + "p.d.a.deleted", Sequence: 3},
		{Subject: renamed + ".p.d.a.deleted", Sequence: 3},
		{Subject: renamed + ".p.d.b.deleted", Sequence: 3, Epoch: 1},
	})
	var text []string
	for _, m := range got {
		text = append(text, fmt.Sprintf("%d/%d %s", m.Epoch, m.Sequence, strings.TrimPrefix(m.Subject, events)))
	}
	if want := []string{"0/1 p.d.a.created", "0/2 p.d.a.updated", "0/3 p.d.a.deleted", "1/3 p.d.b.deleted"}; !slices.Equal(text, want) {
		t.Errorf("got %q, want %q", text, want)
	}
	if want := []subjects.LostRange{{From: 2, To: 2}, {From: 3, To: 3}, {From: 3, To: 3}}; !slices.Equal(removed, want) {
		t.Errorf("got %v removed, want %v", removed, want)
	}
}
