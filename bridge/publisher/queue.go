package publisher

import (
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/subjects"
)

// appQueue holds the pending changes of one app, oldest first.
type appQueue struct {
	changes []*app.Change
	record  *app.Record // what was published last
	// unread is true if the app's last event must be read from the stream first. A record then only
	// notes a foreign message.
	unread   bool
	underWay bool // the publisher has the first change
}

// QueueConfig is what a queue starts with.
type QueueConfig struct {
	StreamID string // identity of the stream that the records are of
	Empty    bool   // the stream has no message of an app that is not loaded
	Reached  uint64 // the stream is accounted for up to this sequence
	PerApp   int    // pending changes of one app beyond which updates merge
	MaxBytes int64  // pending bytes of all apps beyond which updates merge
	Metrics  *Metrics
}

// Queue holds the changes that the stream does not have yet. Changes of one app leave it one at a
// time and in order; apps do not block each other. It is bounded: beyond PerApp changes of one app,
// or beyond MaxBytes for all, consecutive updates of an app merge into the newest; beyond four
// times MaxBytes it overflows: it drops every pending change and accepts no more.
//
// It knows the apps that exist, and those that were deleted a short time ago (evict). The last
// event of any other app is read from the stream before the app's next change is published. Safe
// for concurrent use.
type Queue struct {
	streamID string
	perApp   int
	maxBytes int64
	ready    workqueue.TypedInterface[subjects.AppID] // apps with a change that may be sent
	metrics  *Metrics

	mu       sync.Mutex
	apps     map[subjects.AppID]*appQueue
	gone     []subjects.AppID // apps that may be evicted, in the order of their deletions
	complete bool             // an app that is not in apps has no message in the stream
	reached  uint64           // the stream was accounted for up to here when an event was stored last
	bytes    int64
	length   int
	emptied  chan struct{} // closed when length becomes 0, replaced when a change is added
	full     chan struct{} // closed at the hard limit, when every pending change is dropped
}

// NewQueue makes an empty queue.
func NewQueue(c QueueConfig) *Queue {
	q := &Queue{
		streamID: c.StreamID,
		perApp:   c.PerApp,
		maxBytes: c.MaxBytes,
		ready:    workqueue.NewTyped[subjects.AppID](),
		metrics:  c.Metrics,
		apps:     map[subjects.AppID]*appQueue{},
		complete: c.Empty,
		reached:  c.Reached,
		emptied:  make(chan struct{}),
		full:     make(chan struct{}),
	}
	close(q.emptied)
	q.metrics.Pending(0, 0) // what the queue before this one held is carried over, or published
	return q
}

// Load sets what was published last of an app, before any change of it is added.
func (q *Queue) Load(id subjects.AppID, r *app.Record) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.app(id)
	a.record, a.unread = r, false
	q.retire(id, a)
}

// app returns the queue of an app; mu must be held.
func (q *Queue) app(id subjects.AppID) *appQueue {
	a := q.apps[id]
	if a == nil {
		a = &appQueue{unread: !q.complete}
		q.apps[id] = a
	}
	return a
}

// Add appends a change of an app. It never blocks.
func (q *Queue) Add(id subjects.AppID, c *app.Change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isFull() {
		return
	}
	if a := q.app(id); !q.merge(a, c) {
		q.append(id, a, c)
	}
}

// Carry appends changes that another queue held. It does not merge them.
func (q *Queue) Carry(id subjects.AppID, changes []*app.Change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range changes {
		if q.isFull() {
			return
		}
		q.append(id, q.app(id), c)
	}
}

// append puts c behind the pending changes of an app. mu must be held.
func (q *Queue) append(id subjects.AppID, a *appQueue, c *app.Change) {
	if q.length == 0 {
		q.emptied = make(chan struct{})
	}
	a.changes = append(a.changes, c)
	q.length++
	q.bytes += c.Size
	if q.bytes > 4*q.maxBytes {
		q.drop()
		return
	}
	q.metrics.Pending(q.length, q.bytes)
	if len(a.changes) == 1 {
		q.ready.Add(id)
	}
}

// drop drops every pending change, at the hard limit. The publisher still finishes the changes that
// it has. mu must be held.
func (q *Queue) drop() {
	close(q.full)
	q.metrics.dropped.Add(float64(q.length))
	for _, a := range q.apps {
		a.changes = nil
	}
	if q.length > 0 {
		close(q.emptied)
	}
	q.length, q.bytes = 0, 0
	q.metrics.Pending(0, 0)
}

// merge replaces the newest pending change by c if a limit is reached, both are plain updates of
// the same object, and that change has not been sent. mu must be held.
func (q *Queue) merge(a *appQueue, c *app.Change) bool {
	n := len(a.changes)
	if n == 0 || (n < q.perApp && q.bytes < q.maxBytes) {
		return false
	}
	last := a.changes[n-1]
	if last.Sent || c.Remove || last.Remove || !c.Mergeable || !last.Mergeable ||
		c.State.Service.UID != last.State.Service.UID {
		return false
	}
	c.Merged += last.Merged + 1
	c.Synthesized = c.Synthesized || last.Synthesized
	c.Observed, c.Resynced = last.Observed, last.Resynced
	a.changes[n-1] = c
	q.bytes += c.Size - last.Size
	q.metrics.merged.Inc()
	return true
}

// next blocks until an app has a change to send; done must follow. unread is true if the app's last
// event must be read first. It returns nil after close.
func (q *Queue) next() (f *flight, unread bool) {
	id, shutdown := q.ready.Get()
	if shutdown {
		return nil, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.apps[id]
	if a == nil || len(a.changes) == 0 { // dropped
		q.ready.Done(id)
		return nil, false
	}
	a.changes[0].Sent, a.underWay = true, true
	return &flight{id: id, change: a.changes[0], prev: a.record}, a.unread
}

// done takes the change that next returned off the queue. r is the app's new record, nil if nothing
// was published.
func (q *Queue) done(id subjects.AppID, r *app.Record) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.apps[id]
	a.underWay = false
	if r != nil {
		a.record, a.unread = r, false
		q.reached = max(q.reached, r.Sequence)
	}
	if q.isFull() {
		q.ready.Done(id)
		return
	}
	q.length--
	q.bytes -= a.changes[0].Size
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
	q.metrics.Pending(q.length, q.bytes)
}

// hold leaves the change that next returned, and all behind it, in the queue for the next session.
// It returns what was to be called once they are published.
func (q *Queue) hold(id subjects.AppID) (resynced []func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.apps[id]
	a.underWay = false
	for _, c := range a.changes {
		if c.Resynced != nil {
			resynced = append(resynced, c.Resynced)
			c.Resynced = nil
		}
	}
	q.ready.Done(id) // append adds an app that has no change yet
	return resynced
}

// precede puts a change before the one that next returned, which is to be returned again after it.
func (q *Queue) precede(id subjects.AppID, c *app.Change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.apps[id]
	a.underWay = false
	if !q.isFull() {
		a.changes = slices.Insert(a.changes, 0, c)
		q.length++
		q.bytes += c.Size
		q.ready.Add(id)
	}
	q.ready.Done(id)
}

// noteForeign notes a message at sequence on an app's subject that is no event. It does not move
// the fence of an event that is under way.
func (q *Queue) noteForeign(id subjects.AppID, sequence uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.app(id)
	a.record = a.record.Behind(sequence)
	q.retire(id, a)
}

// Empty returns a channel that is closed once no change is pending.
func (q *Queue) Empty() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.emptied
}

// Overflow returns a channel that is closed at the hard limit.
func (q *Queue) Overflow() <-chan struct{} { return q.full }

func (q *Queue) isFull() bool {
	select {
	case <-q.full:
		return true
	default:
		return false
	}
}

// Oldest returns how many changes are pending, and when the oldest was observed.
func (q *Queue) Oldest() (length int, since time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, a := range q.apps {
		if len(a.changes) > 0 && (since.IsZero() || a.changes[0].Observed.Before(since)) {
			since = a.changes[0].Observed
		}
	}
	return q.length, since
}

// Fence returns the fence of an app and whether a change of it is pending. The fence of an evicted
// app is 0.
func (q *Queue) Fence(id subjects.AppID) (fence uint64, pending bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if a := q.apps[id]; a != nil {
		return a.record.Fence(), len(a.changes) > 0
	}
	return 0, false
}

// Known lists the apps that the queue has a record of.
func (q *Queue) Known() []subjects.AppID {
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

// Published returns what was published last of an app, nil if that is not known, and whether a
// change of it may be pending.
func (q *Queue) Published(id subjects.AppID) (r *app.Record, pending bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.apps[id]
	if a == nil {
		return nil, q.isFull()
	}
	return a.record, q.isFull() || a.underWay || len(a.changes) > 0
}

// Since returns when the oldest pending change of an app was observed, zero if there is none.
func (q *Queue) Since(id subjects.AppID) (since time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if a := q.apps[id]; a != nil && len(a.changes) > 0 {
		since = a.changes[0].Observed
	}
	return since
}

// close wakes every next. Pending changes are kept, and more may be added: the next session takes
// them over.
func (q *Queue) close() { q.ready.ShutDown() }

// Pending returns what the queue of a session that has ended holds of the apps that have changes,
// or a newer record than records. A nil queue holds nothing.
func (q *Queue) Pending(records map[subjects.AppID]*app.Record) map[subjects.AppID]plan.Pending {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	held := map[subjects.AppID]plan.Pending{}
	for id, a := range q.apps {
		if len(a.changes) > 0 || a.record.Previous() > records[id].Previous() {
			held[id] = plan.Pending{Changes: a.changes, Record: a.record, Unread: a.unread, Reached: q.reached}
		}
	}
	return held
}

// otherHistory notes that the stream is not that of the records any more, although it has its identity.
func (q *Queue) otherHistory() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.streamID = ""
}

// SameStream reports whether the changes of both queues are for one stream. A nil queue has none.
func (q *Queue) SameStream(other *Queue) bool {
	if q == nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.streamID == other.streamID
}

// Overflowed reports whether the queue has dropped its changes at the hard limit. A nil queue has
// not.
func (q *Queue) Overflowed() bool { return q != nil && q.isFull() }
