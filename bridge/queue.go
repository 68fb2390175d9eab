package bridge

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/appbridge/appbridge/subjects"
)

// appQueue is what waits for one app, oldest first.
type appQueue struct {
	changes []*change
	record  *record // what has been published
	// unread is true if record is not what has been published: that is to be read from the stream. A
	// record then notes a foreign message alone.
	unread   bool
	underWay bool // a publisher has the first change
}

// queue holds the changes that are not yet in the stream. Changes of one app
// leave it one at a time and in order; different apps do not wait for each
// other. It is bounded: beyond perApp changes of one app, or beyond maxBytes
// for all, consecutive updates of an app merge into the newest; beyond four
// times maxBytes it overflows: it drops what waits and takes nothing any more.
//
// It knows the apps that exist, and those that were deleted a short time ago (evict). What was
// published of any other app is to be read from the stream before its next change is published.
// Safe for concurrent use.
type queue struct {
	streamID string // identity of the stream that the records are of
	perApp   int
	maxBytes int64
	ready    workqueue.TypedInterface[subjects.AppID] // apps with a change that may be sent
	metrics  *metrics

	mu       sync.Mutex
	apps     map[subjects.AppID]*appQueue
	gone     []subjects.AppID // apps that may be evicted, in the order of their deletions
	complete bool             // an app that is not in apps has no message in the stream
	reached  uint64           // up to here the stream was accounted for when an event landed last
	bytes    int64
	length   int
	emptied  chan struct{} // closed when length becomes 0, replaced when it leaves it
	overflow chan struct{} // closed at the hard limit
	full     bool          // the hard limit was reached: what waited is dropped
}

func newQueue(perApp int, maxBytes int64, m *metrics) *queue {
	q := &queue{
		perApp:   perApp,
		maxBytes: maxBytes,
		ready:    workqueue.NewTyped[subjects.AppID](),
		metrics:  m,
		apps:     map[subjects.AppID]*appQueue{},
		emptied:  make(chan struct{}),
		overflow: make(chan struct{}),
	}
	close(q.emptied)
	return q
}

// load says what has been published of an app, before any change of it is added.
func (q *queue) load(id subjects.AppID, r *record) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.app(id)
	a.record, a.unread = r, false
	q.retire(id, a)
}

// app returns the queue of an app; mu must be held.
func (q *queue) app(id subjects.AppID) *appQueue {
	a := q.apps[id]
	if a == nil {
		a = &appQueue{unread: !q.complete}
		q.apps[id] = a
	}
	return a
}

// add appends a change of an app. It never blocks.
func (q *queue) add(id subjects.AppID, c *change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.full {
		return
	}
	a := q.app(id)
	if q.merge(a, c) {
		return
	}
	q.append(id, a, c)
}

// carry appends changes that another queue held: they are as merged as they
// have to be.
func (q *queue) carry(id subjects.AppID, changes []*change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range changes {
		if q.full {
			return
		}
		q.append(id, q.app(id), c)
	}
}

// append puts c behind what waits for an app. mu must be held.
func (q *queue) append(id subjects.AppID, a *appQueue, c *change) {
	if q.length == 0 {
		q.emptied = make(chan struct{})
	}
	a.changes = append(a.changes, c)
	q.length++
	q.bytes += c.size
	if q.bytes > 4*q.maxBytes {
		q.drop()
		return
	}
	q.metrics.pending(q.length, q.bytes)
	if len(a.changes) == 1 {
		q.ready.Add(id)
	}
}

// drop gives up everything that waits, at the hard limit. What publishers have
// in their hands they finish; done copes with that. mu must be held.
func (q *queue) drop() {
	q.full = true
	close(q.overflow)
	q.metrics.dropped.Add(float64(q.length))
	for _, a := range q.apps {
		a.changes = nil
	}
	if q.length > 0 {
		close(q.emptied)
	}
	q.length, q.bytes = 0, 0
	q.metrics.pending(0, 0)
}

// merge puts c in the place of the newest waiting change when both are plain
// updates of the same object, the limits say so, and that one has not been
// sent. mu must be held.
func (q *queue) merge(a *appQueue, c *change) bool {
	n := len(a.changes)
	if n == 0 || (n < q.perApp && q.bytes < q.maxBytes) {
		return false
	}
	last := a.changes[n-1]
	if last.sent || c.remove || last.remove || !c.mergeable || !last.mergeable ||
		c.state.service.UID != last.state.service.UID {
		return false
	}
	c.merged += last.merged + 1
	c.synthesized = c.synthesized || last.synthesized
	c.observed, c.resynced = last.observed, last.resynced
	a.changes[n-1] = c
	q.bytes += c.size - last.size
	q.metrics.merged.Inc()
	return true
}

// next blocks until an app has a change to send and returns it with the
// app's record; done must follow. ok is false after close.
func (q *queue) next() (id subjects.AppID, c *change, prev *record, ok bool) {
	id, shutdown := q.ready.Get()
	if shutdown {
		return id, nil, nil, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.apps[id]
	if a == nil || len(a.changes) == 0 { // dropped
		q.ready.Done(id)
		return id, nil, nil, false
	}
	a.changes[0].sent, a.underWay = true, true
	return id, a.changes[0], a.record, true
}

// done takes the change that next returned off the queue. r is the app's new
// record, nil if the change left none behind.
func (q *queue) done(id subjects.AppID, r *record) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.apps[id]
	a.underWay = false
	if r != nil {
		a.record, a.unread = r, false
		q.reached = max(q.reached, r.sequence)
	}
	if q.full {
		q.ready.Done(id)
		return
	}
	q.length--
	q.bytes -= a.changes[0].size
	a.changes[0] = nil
	a.changes = a.changes[1:]
	if len(a.changes) > 0 {
		q.ready.Add(id)
	} else {
		a.changes = nil
		q.retire(id, a)
	}
	q.ready.Done(id)
	if q.length == 0 {
		close(q.emptied)
	}
	q.metrics.pending(q.length, q.bytes)
}

// behind notes a message at sequence on an app's subject that is no event. Of an app with an event
// under way the publisher's fence is moved by the publisher itself.
func (q *queue) behind(id subjects.AppID, sequence uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.app(id)
	a.record = a.record.behind(sequence)
	q.retire(id, a)
}

// empty returns a channel that is closed once nothing waits.
func (q *queue) empty() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.emptied
}

// oldest tells how many changes wait and since when the oldest does.
func (q *queue) oldest() (length int, since time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, a := range q.apps {
		if len(a.changes) > 0 && (since.IsZero() || a.changes[0].observed.Before(since)) {
			since = a.changes[0].observed
		}
	}
	return q.length, since
}

// settled returns the fence of an app with nothing on its way: 0 of one that was evicted, of which
// this session publishes nothing.
func (q *queue) settled(id subjects.AppID) (fence uint64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.apps[id]
	if a == nil {
		return 0, true
	}
	return a.record.fence(), len(a.changes) == 0
}

// close wakes every next. What still waits is kept, and more may be added:
// the next session goes on with it.
func (q *queue) close() { q.ready.ShutDown() }
