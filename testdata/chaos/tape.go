package main

import (
	"bytes"
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// tape keeps every message of the event stream that any reader got, by epoch:
// how often the stream had been rolled back to an earlier copy.
type tape struct {
	names subjects.Subjects

	mu     sync.Mutex
	epoch  int
	seen   []taped
	at     map[uint64][]int    // where in seen a sequence is
	last   uint64              // the highest sequence of this epoch
	newest map[string]appEvent // by key of the app
	came   time.Time           // the last message
	// The newest versions that any event showed.
	services, revisions int64
}

// taped is a message, and the last epoch in which the stream had it.
type taped struct {
	audit.Message
	until int
}

// appEvent is what an app's newest event says.
type appEvent struct {
	sequence uint64
	appState
}

func newTape(names subjects.Subjects) *tape {
	return &tape{names: names, at: map[uint64][]int{}, newest: map[string]appEvent{}}
}

// note takes a message that a reader got. One that is known is not kept twice.
func (t *tape) note(m audit.Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.Epoch = t.epoch
	t.last = max(t.last, m.Sequence)
	t.learn(&m)
	for _, i := range t.at[m.Sequence] {
		if had := &t.seen[i]; sameContent(&had.Message, &m) {
			had.until = t.epoch
			return
		}
	}
	t.came = time.Now()
	t.at[m.Sequence] = append(t.at[m.Sequence], len(t.seen))
	t.seen = append(t.seen, taped{m, t.epoch})
}

// sameContent reports whether two messages are one that two readers got.
func sameContent(a, b *audit.Message) bool {
	return a.Subject == b.Subject && bytes.Equal(a.Data, b.Data) &&
		(len(a.Header) == 0 && len(b.Header) == 0 || reflect.DeepEqual(a.Header, b.Header))
}

// learn takes in what an event says.
func (t *tape) learn(m *audit.Message) {
	key, state, ok := stateOf(*m, t.names)
	if !ok {
		return
	}
	if m.Sequence > t.newest[key].sequence {
		t.newest[key] = appEvent{m.Sequence, state}
	}
	t.services = max(t.services, state.version)
	if version, err := strconv.ParseInt(m.Header.Get(subjects.HeaderRevisionResourceVersion), 10, 64); err == nil {
		t.revisions = max(t.revisions, version)
	}
}

// rollBack begins the next epoch: the stream ends at the sequence floor, or a
// little above it. What is above it has to be read again to count.
func (t *tape) rollBack(floor uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.seen {
		if s := &t.seen[i]; s.until == t.epoch && s.Sequence <= floor {
			s.until++
		}
	}
	t.epoch++
	t.last = floor
	t.newest, t.services, t.revisions = map[string]appEvent{}, 0, 0
	for i := range t.seen {
		if t.seen[i].until == t.epoch {
			t.learn(&t.seen[i].Message)
		}
	}
}

// gone are the sequences up to high that the epoch's predecessor had and the
// epoch does not, in order; survived are those above floor that it has.
func (t *tape) gone(epoch int, floor, high uint64) (gone, survived []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.seen {
		switch s := &t.seen[i]; {
		case s.Sequence <= floor || s.Sequence > high || s.Epoch >= epoch || t.names.IsLost(s.Subject):
		case s.until == epoch-1:
			gone = append(gone, s.Sequence)
		case s.until >= epoch:
			survived = append(survived, s.Sequence)
		}
	}
	slices.Sort(gone)
	slices.Sort(survived)
	return gone, survived
}

// events are the sequences of this epoch's events above one and up to another.
func (t *tape) events(above, upTo uint64) []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []uint64
	for i := range t.seen {
		s := &t.seen[i]
		if _, _, ok := stateOf(s.Message, t.names); ok && s.until == t.epoch && s.Sequence > above && s.Sequence <= upTo {
			found = append(found, s.Sequence)
		}
	}
	slices.Sort(found)
	return found
}

// notices are the losses that notices in the stream name.
func (t *tape) notices() (named []subjects.LostRange, bad error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.seen {
		m := &t.seen[i]
		if !t.names.IsNotice(m.Subject) {
			continue
		}
		r, err := subjects.ParseNotice(m.Header.Get(subjects.HeaderLostFrom), m.Header.Get(subjects.HeaderLostTo))
		if err != nil {
			return nil, err
		}
		named = append(named, r)
	}
	return named, nil
}

// versions are the newest versions of a Knative Service and of a Revision that
// events showed.
func (t *tape) versions() (service, revision int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.services, t.revisions
}

// end is the epoch, and the highest sequence that was read in it.
func (t *tape) end() (epoch int, last uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.epoch, t.last
}

// count is how many messages there are, and since when there is no new one.
func (t *tape) count() (n int, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.seen), t.came
}

// apps are the newest events of all apps, by key.
func (t *tape) apps() map[string]appEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.newest)
}

// messages are all messages so far, by epoch and sequence.
func (t *tape) messages() []audit.Message {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]audit.Message, len(t.seen))
	for i := range t.seen {
		all[i] = t.seen[i].Message
	}
	slices.SortStableFunc(all, func(a, b audit.Message) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Sequence, b.Sequence))
	})
	return all
}
