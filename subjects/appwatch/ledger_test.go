package appwatch

import (
	"fmt"
	"slices"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

func TestLedger(t *testing.T) {
	t.Parallel()
	lost := ranges{{From: 50, To: 59}}
	for _, tc := range []struct {
		name     string
		complete bool
		r        *record
		kind     subjects.EventKind
		previous uint64
		want     verdict
	}{
		{"first", true, nil, subjects.Created, 0, inOrder},
		{"next", true, &record{sequence: 101}, subjects.Updated, 101, inOrder},
		{"missing", true, &record{sequence: 101}, subjects.Updated, 103, missing},
		{"missing, app not known", false, nil, subjects.Updated, 103, missing},
		{"not known, resumed", false, nil, subjects.Updated, 90, inOrder},
		{"not in the snapshot", true, nil, subjects.Updated, 90, unknown},
		{"created again, marker removed", true, nil, subjects.Created, 90, inOrder},
		{"created again, bridge does not know it", true, &record{sequence: 101, gone: true}, subjects.Created, 0, inOrder},
		{"rewritten", true, &record{sequence: 110}, subjects.Updated, 101, rewritten},
		{"created twice", true, &record{sequence: 110}, subjects.Created, 0, rewritten},
		{"yielded before an older snapshot", true, &record{sequence: 60}, subjects.Updated, 70, inOrder},
		{"missing behind an older snapshot", true, &record{sequence: 60}, subjects.Updated, 80, missing},
		{"behind its state in the snapshot", true, &record{sequence: 60}, subjects.Updated, 75, unknown},
		{"behind a lost event", true, &record{sequence: 55}, subjects.Updated, 20, inOrder},
		{"missing behind a lost event", true, &record{sequence: 55}, subjects.Updated, 103, missing},
		{"names a lost event", true, &record{sequence: 20}, subjects.Updated, 55, inOrder},
		{"names none", true, &record{sequence: 20}, subjects.Updated, 0, inOrder},
	} {
		l := newLedger(100, tc.complete)
		l.seen, l.position = 70, 75
		if got := l.judge(tc.r, tc.kind, tc.previous, lost.contains); got != tc.want {
			t.Errorf("%s: got %d, want %d", tc.name, got, tc.want)
		}
	}
}

// A ledger keeps a bounded number of apps that are gone, and does not mistake those that it forgot.
func TestLedgerForgets(t *testing.T) {
	t.Parallel()
	l := newLedger(0, true)
	for i := range maxGone + 10 {
		key := fmt.Sprintf("p.d.a%d", i)
		l.note(key, subjects.AppID{}, subjects.Created, uint64(2*i+1), 0, "ACTIVE")
		l.note(key, subjects.AppID{}, subjects.Deleted, uint64(2*i+2), 0, "")
	}
	if len(l.apps) > maxGone || len(l.apps) != l.gone {
		t.Errorf("%d apps are kept, %d gone", len(l.apps), l.gone)
	}
	none := func(uint64) bool { return false }
	if got := l.judge(l.of("p.d.a0"), subjects.Created, 2, none); got != inOrder {
		t.Errorf("got %d for an app that was forgotten", got)
	}
	if got := l.judge(nil, subjects.Created, l.forgotten+5, none); got != missing {
		t.Errorf("got %d for an event behind what was forgotten", got)
	}
}

// A reader that resumes does not know what the one before it had of an app whose events are lost.
func TestLedgerDoubts(t *testing.T) {
	t.Parallel()
	l := newLedger(8, false)
	none := func(uint64) bool { return false }
	l.doubts(subjects.LostRange{From: 9, To: 10})
	if l.differs(nil, &entry{sequence: 3}, 9, none) {
		t.Error("a loss behind the position changed nothing before it")
	}
	l.doubts(subjects.LostRange{From: 7, To: 8})
	if !l.differs(nil, &entry{sequence: 3}, 9, none) {
		t.Error("event 7 may have been of this app")
	}
}

// What waits behind a Loss, or before it, has no position that is behind the Loss.
func TestBacklogLoss(t *testing.T) {
	t.Parallel()
	app := func(name string) subjects.AppID { return subjects.AppID{Project: "p", Domain: "d", Name: name} }
	event := func(name string, sequence uint64) *Item {
		return &Item{Type: Event, ID: app(name), Sequence: sequence, Position: Position{StreamID: "one", Sequence: sequence}}
	}
	loss := func(at uint64, reason error) *Item {
		return &Item{Type: Loss, Position: Position{StreamID: "one", Sequence: at}, Reason: reason}
	}
	for _, tc := range []struct {
		name  string
		items []*Item
		want  []uint64 // positions
	}{
		{"removed", []*Item{event("a", 5), loss(8, ErrRemoved), event("a", 9)}, []uint64{5, 9}},
		{"notice", []*Item{event("a", 5), event("b", 6), loss(9, ErrNotice), event("b", 10), event("a", 11)}, []uint64{6, 6, 11}},
		{"used again", []*Item{event("a", 5), event("b", 6), loss(2, ErrRolledBack), event("a", 3)}, []uint64{5, 2, 2, 3}},
	} {
		b := newBacklog()
		for _, it := range tc.items {
			b.push(it)
		}
		var got []uint64
		for it := b.pop(); it != nil; it = b.pop() {
			got = append(got, it.Position.Sequence)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got the positions %v, want %v", tc.name, got, tc.want)
		}
	}
}

// A Restart drops what waits. The loop does not have it, so that the state in the new snapshot is a
// change.
func TestBacklogDropped(t *testing.T) {
	t.Parallel()
	state := func(name string) *Item { return &Item{Type: State, ID: subjects.AppID{Name: name}, Sequence: 1} }
	b := newBacklog()
	b.push(state("had"))
	b.pop()
	b.push(state("dropped"))
	b.push(&Item{Type: Restart})
	b.push(state("had"))
	b.push(state("dropped"))
	b.push(&Item{Type: Mark})
	b.pop()
	if had, dropped := b.pop(), b.pop(); had.Changed || !dropped.Changed {
		t.Errorf("got changed %v and %v, want false and true", had.Changed, dropped.Changed)
	}
}
