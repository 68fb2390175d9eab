package appwatch

import (
	"cmp"
	"slices"

	"github.com/appbridge/appbridge/subjects"
)

// maxGone is how many apps that are gone a ledger remembers.
const maxGone = 1 << 16

// ledger knows the last event of each app that was read, to find out that one is missing: an event
// names the one before it.
type ledger struct {
	apps map[string]*record // by key
	// base is where the reader began: what apps were before is not known, unless complete is true.
	base     uint64
	certain  bool // base is the sequence of an event that was yielded
	complete bool // every app that existed at base is in apps
	// position is that of the snapshot in apps, 0 without one: base, or less where the stream begins later.
	position uint64
	// doubt is the first sequence of the newest loss before base: an app whose entry is older may have
	// had an event in the lost range, and the reader before this one has yielded it.
	doubt uint64
	gone  int // records of apps that are gone
	// seen is what had been yielded before the snapshot, which may be older: nothing up to here is
	// missing.
	seen uint64
	// forgotten is the highest sequence of a record that was dropped.
	forgotten uint64
	// recent are the newest events that were read, the oldest of which is at next once it is full.
	recent []known
	next   int
}

// maxRecent is how many events a ledger remembers besides the last one of each app.
const maxRecent = 256

// known is an event that was read: its sequence, and the Check of its id.
type known struct {
	sequence uint64
	check    uint32
}

// record is the last event of an app.
type record struct {
	id       subjects.AppID
	sequence uint64
	status   string
	check    uint32 // of the id of the event
	gone     bool
	shown    bool // in a snapshot that replaces the ledger
}

func newLedger(base uint64, complete bool) *ledger {
	return &ledger{apps: map[string]*record{}, base: base, complete: complete}
}

// verdict is what an event says about the events before it.
type verdict int

const (
	inOrder   verdict = iota
	missing           // an earlier event of the app was not read
	rewritten         // an event of the app that was read is no longer part of the history
	unknown           // the app is not in a snapshot that should have it
)

// judge compares an event with the last one of its app; r is nil if there is none. previous is the
// sequence that the event names, 0 if it names none, lost whether a sequence is known to be lost.
func (l *ledger) judge(r *record, kind subjects.EventKind, previous uint64, lost func(uint64) bool) verdict {
	switch {
	case previous > 0 && lost(previous), previous == 0 && kind != subjects.Created:
		return inOrder
	case r == nil && previous > l.base && previous > l.forgotten:
		return missing
	case r == nil && l.complete && kind != subjects.Created && previous > l.forgotten:
		return unknown
	case r == nil || previous == r.sequence:
		return inOrder
	case previous > r.sequence && previous <= l.seen:
		return inOrder
	case previous > r.sequence && previous <= l.position:
		return unknown
	case previous > r.sequence:
		return missing
	case lost(r.sequence):
		return inOrder // it goes on from what is left of the app
	case r.gone && previous == 0 || r.sequence <= l.base && !l.complete:
		return inOrder // the bridge no longer knew the app
	default:
		return rewritten
	}
}

// note makes an event the last one of its app.
func (l *ledger) note(key string, id subjects.AppID, kind subjects.EventKind, sequence uint64, check uint32, status string) {
	r := l.apps[key]
	if r == nil {
		r = &record{id: id}
		l.apps[key] = r
	}
	l.set(r, kind, sequence, check, status)
}

func (l *ledger) set(r *record, kind subjects.EventKind, sequence uint64, check uint32, status string) {
	gone := kind == subjects.Deleted
	if gone != r.gone {
		if gone {
			l.gone++
		} else {
			l.gone--
		}
	}
	if gone {
		status = ""
	}
	r.sequence, r.check, r.status, r.gone = sequence, check, status, gone
	if l.gone > maxGone {
		l.forget()
	}
}

// remember notes an event that was read.
func (l *ledger) remember(sequence uint64, check uint32) {
	if len(l.recent) < maxRecent {
		l.recent = append(l.recent, known{sequence, check})
		return
	}
	l.recent[l.next] = known{sequence, check}
	l.next = (l.next + 1) % maxRecent
}

// known are the events up to a sequence that were read, as far as they are remembered, in order.
func (l *ledger) known(last uint64) []known {
	var events []known
	note := func(k known) {
		if k.check != 0 && k.sequence <= last {
			events = append(events, k)
		}
	}
	for _, k := range l.recent {
		note(k)
	}
	for _, r := range l.apps {
		note(known{r.sequence, r.check})
	}
	slices.SortFunc(events, func(a, b known) int { return cmp.Compare(a.sequence, b.sequence) })
	return slices.Compact(events)
}

// forget drops the apps that are gone.
func (l *ledger) forget() {
	for key, r := range l.apps {
		if r.gone {
			l.forgotten = max(l.forgotten, r.sequence)
			delete(l.apps, key)
		}
	}
	l.gone = 0
}

// ranges are sequences that the stream has lost.
type ranges []subjects.LostRange

func (rs ranges) contains(sequence uint64) bool {
	for _, r := range rs {
		if r.Contains(sequence) {
			return true
		}
	}
	return false
}

// after reports whether one of the sequences is behind another one.
func (rs ranges) after(sequence uint64) bool {
	return slices.ContainsFunc(rs, func(r subjects.LostRange) bool { return r.To > sequence })
}

// covers reports whether each sequence of a range is in one of rs.
func (rs ranges) covers(want subjects.LostRange) bool { return len(rs.without(want)) == 0 }

// without is what is left of a range.
func (rs ranges) without(r subjects.LostRange) ranges {
	left := ranges{r}
	for _, cut := range rs {
		var next ranges
		for _, l := range left {
			if cut.To < l.From || cut.From > l.To {
				next = append(next, l)
				continue
			}
			if l.From < cut.From {
				next = append(next, subjects.LostRange{From: l.From, To: cut.From - 1})
			}
			if l.To > cut.To {
				next = append(next, subjects.LostRange{From: cut.To + 1, To: l.To})
			}
		}
		left = next
	}
	return left
}

// before is what the ranges have of the sequences before one.
func (rs ranges) before(sequence uint64) ranges {
	var left ranges
	for _, r := range rs {
		if r.From < sequence {
			left = append(left, subjects.LostRange{From: r.From, To: min(r.To, sequence-1)})
		}
	}
	return left
}

// with adds ranges that are not in rs yet.
func (rs ranges) with(more ...subjects.LostRange) ranges {
	for _, r := range more {
		if !rs.covers(r) {
			rs = append(rs, r)
		}
	}
	return rs
}

// of is the record of an app, nil if there is none.
func (l *ledger) of(key string) *record {
	if l == nil {
		return nil
	}
	return l.apps[key]
}

// notIn are the last events of the apps that exist and have no entry in a snapshot.
func (l *ledger) notIn(snap *snapshot) []due {
	has := make(map[string]bool, len(snap.entries))
	for _, e := range snap.entries {
		has[e.key] = true
	}
	var missing []due
	for key, r := range l.apps {
		if !r.gone && !has[key] {
			missing = append(missing, due{key: key, sequence: r.sequence})
		}
	}
	return missing
}

// doubts notes ranges that are lost, some of which begin before the ledger.
func (l *ledger) doubts(lost ...subjects.LostRange) {
	for _, r := range lost {
		if r.From <= l.base {
			l.doubt = max(l.doubt, r.From)
		}
	}
}

// differs reports whether an entry of the bucket is not what was yielded of its app, or may not be. A
// bucket that has reached less than the event at base may lack what was yielded of any app.
func (l *ledger) differs(was *record, e *entry, reached uint64, lost func(uint64) bool) bool {
	switch {
	case was != nil:
		return was.sequence != e.sequence || was.check != e.check && was.check != 0 && e.check != 0
	case l == nil || l.complete:
		return e.kind != subjects.Deleted
	default:
		return l.certain && reached < l.base || e.sequence > l.base || e.sequence < l.doubt || lost(e.sequence)
	}
}

// unseen are the apps that existed and are not in a snapshot that was shown, in the order of their
// events.
func (l *ledger) unseen() []*record {
	if l == nil {
		return nil
	}
	var rest []*record
	for _, r := range l.apps {
		if !r.gone && !r.shown {
			rest = append(rest, r)
		}
	}
	slices.SortFunc(rest, func(a, b *record) int { return cmp.Compare(a.sequence, b.sequence) })
	return rest
}

// equals reports whether a snapshot has the apps as they were read. An app that was not read is as it
// was at base.
func (l *ledger) equals(snap *snapshot) bool {
	found := 0
	for _, e := range snap.entries {
		r, gone := l.apps[e.key], e.kind == subjects.Deleted
		switch {
		case r != nil && r.gone && gone:
		case r != nil:
			if r.gone != gone || r.sequence != e.sequence {
				return false
			}
			found++
		case gone && l.complete:
		case l.complete || e.sequence > l.base:
			return false
		}
	}
	return found == len(l.apps)-l.gone
}
