package bridge

import (
	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/subjects"
)

// belief is what a live session believes of one app. Two of them can be compared with ==.
type belief struct {
	record *record // of the app's last event; nil: there is none, or it is not kept
	state  state   // zero if the cluster does not have the app
	there  bool    // it does
	waits  bool    // something of the app is under way
	key    bool    // the bucket has its key
	exists bool    // which is no delete marker
	event  uint64  // the sequence that the key reflects, 0 if that is not known
	entry  uint64  // where in the bucket's stream it is stored, 0 if that is not known
}

// believe returns what a session believes of apps. An app of which it knows nothing has the zero belief.
func (s *session) believe(ids []subjects.AppID) map[subjects.AppID]belief {
	beliefs := make(map[subjects.AppID]belief, len(ids))
	// A change goes from the source to the queue under the source's lock.
	s.source.read(func(v view) {
		for _, id := range ids {
			var b belief
			b.state, b.there = v.states()[id]
			b.waits = v.awaits(id)
			beliefs[id] = b
		}
		s.queue.believe(beliefs)
	})
	s.projector.believe(beliefs)
	return beliefs
}

// believe adds the records, and whether changes wait.
func (q *queue) believe(beliefs map[subjects.AppID]belief) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, b := range beliefs {
		b.waits = b.waits || q.full
		if a := q.apps[id]; a != nil {
			b.record, b.waits = a.record, b.waits || a.underWay || len(a.changes) > 0
		}
		beliefs[id] = b
	}
}

// believe adds what is known of the keys, and whether the bucket is behind.
func (p *projector) believe(beliefs map[subjects.AppID]belief) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, b := range beliefs {
		k, ok := p.keys[id]
		b.know(k, ok)
		// Of an event that the session does not know, it learns with its next look at what was touched.
		b.waits = b.waits || p.written.Load() < b.record.stands() || p.touched[id] > b.record.fence()
		beliefs[id] = b
	}
}

// know adds what is known of the app's key.
func (b *belief) know(k key, ok bool) {
	b.key, b.exists, b.event, b.entry = ok && k.at.sequence > 0, k.exists, k.event, k.at.sequence
	switch r := b.record; {
	case r.exists():
		// An entry that cannot be made is none to look for.
		b.waits = b.waits || !b.key || !b.exists || b.event != r.stands()
	default:
		b.waits = b.waits || r != nil && ok && k.exists
	}
}

// settled reports whether nothing of the app is under way.
func (b belief) settled() bool { return !b.waits }

// known are the apps that the queue has a record of.
func (q *queue) known() []subjects.AppID {
	q.mu.Lock()
	defer q.mu.Unlock()
	ids := make([]subjects.AppID, 0, len(q.apps))
	for id, a := range q.apps {
		if a.record != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// screened is the belief as the audit's screen takes it.
func (b belief) screened(id subjects.AppID) audit.Belief {
	key, _ := id.Key() // an app with a bad id is on no side
	return audit.Belief{
		Key: key, Settled: b.settled(), Exists: b.record.exists(), Sequence: b.record.stands(), Fence: b.record.fence(),
		Entry: b.entry, Event: b.event,
	}
}

// doubtful reports whether the source and the record differ in what is cheap to compare, without a
// change that waits.
func (b belief) doubtful(watched func(namespace string) bool) bool {
	r := b.record
	switch {
	case !b.settled():
		return false
	case !b.there:
		return r.exists() && watched(r.namespace)
	case !r.exists():
		return true
	}
	svc := b.state.service
	return r.uid != string(svc.UID) || r.resourceVersion != svc.ResourceVersion || int32(r.app.GetStatus().GetCurrentReplicas()) != replicas(b.state)
}
