package appsvc

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/subjects"
)

// positionState is one state of an app in the model; version 0: it is not there.
type positionState struct {
	uid      string
	version  int
	revision string
	count    int32
	change   int    // version of the change that led to it, of whatever object
	sequence uint64 // of the event that tells of it
}

// positionModel is a cluster's history and how far the cache is in it: the
// changes of a namespace are shown in order, some time after their events, or
// what they come to by a list; namespaces do not wait for each other.
type positionModel struct {
	r       *positionRig
	random  *rand.Rand
	version int
	apps    []subjects.AppID
	states  map[subjects.AppID][]positionState // every state of an app, oldest first
	shown   map[subjects.AppID]int             // which of them the cache shows
	waiting map[string][]subjects.AppID        // by namespace: apps whose next state is to be shown
	listed  map[string]int                     // version of the newest list of a namespace
}

// step changes an app and publishes the event.
func (m *positionModel) step(id subjects.AppID) {
	states := m.states[id]
	now := states[len(states)-1]
	m.version += 1 + m.random.IntN(3)
	kind, was := subjects.Updated, now
	switch action := m.random.IntN(6); {
	case was.version == 0:
		kind, now = subjects.Created, positionState{uid: fmt.Sprintf("%s-%d", id.Name, m.version), version: m.version}
	case action == 0:
		kind, now = subjects.Deleted, positionState{}
	case action == 1:
		now.revision, now.count = strconv.Itoa(m.version), 1+m.random.Int32N(3)
	default:
		now.version = m.version
	}
	now.change = m.version
	if kind == subjects.Deleted {
		now.sequence = m.r.deleted(id, was.uid, was.version, m.version)
	} else {
		now.sequence = m.r.publish(id, kind, positionHeader(now.uid, now.version, now.revision, 0))
	}
	m.states[id] = append(states, now)
	m.waiting[id.Domain] = append(m.waiting[id.Domain], id)
}

// touch changes an app's Knative Service, or makes it, and publishes the event.
func (m *positionModel) touch(id subjects.AppID) (sequence uint64) {
	states := m.states[id]
	now, kind := states[len(states)-1], subjects.Updated
	m.version++
	if now.version == 0 {
		kind, now.uid = subjects.Created, fmt.Sprintf("%s-%d", id.Name, m.version)
	}
	now.version, now.change = m.version, m.version
	now.sequence = m.r.publish(id, kind, positionHeader(now.uid, now.version, now.revision, 0))
	m.states[id] = append(states, now)
	m.waiting[id.Domain] = append(m.waiting[id.Domain], id)
	return now.sequence
}

// show has the cache show the state of an app with the given index.
func (m *positionModel) show(id subjects.AppID, index int) {
	s := m.states[id][index]
	m.shown[id] = index
	c := m.r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.version == 0 {
		delete(c.apps, id)
	} else {
		c.apps[id] = positionEntry(id, s.uid, s.version, s.revision, s.count)
	}
	// The others are changes of Revisions, or shown by a list, which has no order.
	if (s.change == s.version || s.version == 0) && s.change > m.listed[id.Domain] {
		if newest, _ := strconv.Atoi(c.newest[id.Domain]); newest < s.change {
			c.newest[id.Domain] = strconv.Itoa(s.change)
		}
	}
}

// watch has the cache show the oldest change of a namespace, if there is one.
func (m *positionModel) watch(namespace string) {
	if waiting := m.waiting[namespace]; len(waiting) > 0 {
		m.waiting[namespace] = waiting[1:]
		m.show(waiting[0], m.shown[waiting[0]]+1)
		m.check()
	}
}

// relist has the cache show what a namespace is now, app by app in no order.
func (m *positionModel) relist(namespace string) {
	m.waiting[namespace] = nil
	m.listed[namespace] = m.version
	for _, i := range m.random.Perm(len(m.apps)) {
		if id := m.apps[i]; id.Domain == namespace {
			m.show(id, len(m.states[id])-1)
			m.check()
		}
	}
}

// play lets n things happen.
func (m *positionModel) play(n int) {
	for range n {
		id := m.apps[m.random.IntN(len(m.apps))]
		switch action := m.random.IntN(40); {
		case action == 0:
			m.relist(id.Domain)
		case action < 22:
			m.watch(id.Domain)
		default:
			m.step(id)
		}
		m.check()
	}
}

// check holds what is said to be reflected against what the cache shows.
func (m *positionModel) check() {
	m.r.t.Helper()
	reflected := m.r.p.reflected()
	for id, states := range m.states {
		for i, s := range states {
			if s.sequence != 0 && s.sequence <= reflected && m.shown[id] < i {
				m.r.t.Fatalf("reflects %d, but app %s is shown as of event %d, not %d", reflected, id, states[m.shown[id]].sequence, s.sequence)
			}
		}
	}
}

// Whatever happens, what is said to be reflected is, and in the end everything
// is.
func TestPositionModel(t *testing.T) {
	r := newPositionRig(t)
	r.makeStream(nil)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	m := &positionModel{
		r: r, random: rand.New(rand.NewPCG(seed, 1)), version: 8,
		states: map[subjects.AppID][]positionState{}, shown: map[subjects.AppID]int{}, waiting: map[string][]subjects.AppID{},
		listed: map[string]int{},
	}
	for i := range 6 {
		id := positionApp(fmt.Sprintf("a%d", i))
		id.Domain = []string{positionDomain, "staging"}[i%2]
		m.apps, m.states[id] = append(m.apps, id), []positionState{{}}
	}
	m.play(100)
	for range 4 {
		// A follower that has to catch up with what there is.
		r.p = newPosition(r.js, subjects.DefaultStream, r.names, r.cache, nil, zap.NewNop())
		r.follow()
		m.play(300)
		// What was shown by a list counts when a change behind it is watched.
		var last uint64
		for _, id := range m.apps[:2] {
			last = m.touch(id)
		}
		r.followed(last)
		for namespace := range m.waiting {
			for len(m.waiting[namespace]) > 0 {
				m.watch(namespace)
			}
		}
		r.reflects(last)
	}
}
