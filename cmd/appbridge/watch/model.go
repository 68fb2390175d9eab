package watch

import (
	"slices"
	"sync"
	"time"

	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// goneFor is how long a live table shows an app that was deleted.
const goneFor = 5 * time.Second

// model is what a live table shows: written by the reader of the stream, read by the one that draws.
type model struct {
	statuses []string // filter; empty: all

	mu       sync.Mutex
	apps     map[subjects.AppID]*appview.App // also those that were deleted a moment ago
	gone     map[subjects.AppID]time.Time    // when these were
	counts   map[string]int                  // of apps that exist, by status
	sorted   []*appview.App                  // the order; valid if ordered
	ordered  bool
	stale    map[subjects.AppID]bool // while a snapshot is read again: those that it has not had yet
	position uint64
	reading  bool
	note     string
	noted    time.Time
	changes  int // counts what was taken
}

func newModel(statuses []string) *model {
	return &model{
		statuses: statuses, reading: true,
		apps: map[subjects.AppID]*appview.App{}, gone: map[subjects.AppID]time.Time{}, counts: map[string]int{},
	}
}

// take takes an item of the reader.
func (m *model) take(it appwatch.Item, now time.Time) {
	var a *appview.App
	if it.Type == appwatch.State || it.Type == appwatch.Event {
		a = appOf(it) // without the lock: it reads headers
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changes++
	m.position = max(m.position, it.Position.Sequence, it.Sequence)
	switch it.Type {
	case appwatch.State, appwatch.Event:
		delete(m.stale, it.ID)
		m.put(a, now)
	case appwatch.Restart:
		m.position = 0 // another stream has other sequences
		m.reading, m.stale = true, map[subjects.AppID]bool{}
		for id := range m.apps {
			m.stale[id] = true
		}
		m.remark("reading all apps again: "+reason(it.Reason), now)
	case appwatch.Loss:
		m.remark("events are lost: "+reason(it.Reason), now)
	case appwatch.Mark:
		m.reading = false
		for id := range m.stale {
			m.remove(id)
		}
		m.stale = nil
	}
}

func (m *model) remark(text string, now time.Time) { m.note, m.noted = text, now }

// put shows the app as it is now. One that does not pass the filter any more goes at once.
func (m *model) put(a *appview.App, now time.Time) {
	before, known := m.apps[a.ID]
	passes := len(m.statuses) == 0 || slices.Contains(m.statuses, a.Status)
	switch {
	case !a.Gone() && !passes, a.Gone() && !known:
		m.remove(a.ID)
		return
	case known && !before.Gone():
		m.counts[before.Status]--
	}
	delete(m.gone, a.ID)
	if a.Gone() {
		m.gone[a.ID] = now
	} else {
		m.counts[a.Status]++
	}
	m.apps[a.ID] = a
	if !known {
		m.ordered = false
		return
	}
	if m.ordered {
		if at, found := slices.BinarySearchFunc(m.sorted, a.ID, func(a *appview.App, id subjects.AppID) int { return appview.Less(a.ID, id) }); found {
			m.sorted[at] = a
		}
	}
}

func (m *model) remove(id subjects.AppID) {
	before, known := m.apps[id]
	if !known {
		return
	}
	if !before.Gone() {
		m.counts[before.Status]--
	}
	delete(m.apps, id)
	delete(m.gone, id)
	m.ordered = false
}

// show fills a screen and returns its lines, and how many apps there are to scroll over.
func (m *model) show(s appview.Screen) (lines []string, apps int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, since := range m.gone {
		if s.Now.Sub(since) > goneFor {
			m.remove(id)
		}
	}
	if !m.ordered {
		m.sorted, m.ordered = sorted(m.apps), true
	}
	s.Position, s.Reading = m.position, m.reading
	if s.Now.Sub(m.noted) < time.Minute {
		s.Note = m.note
	}
	s.First = min(max(s.First, 0), s.Last(len(m.sorted)))
	return s.Lines(m.sorted, m.counts), len(m.sorted)
}

// state is how many changes were taken, and whether the first snapshot is still read.
func (m *model) state() (changes int, reading bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changes, m.reading
}

// summary is the number of apps by status.
func (m *model) summary() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return appview.Counted(m.counts)
}
