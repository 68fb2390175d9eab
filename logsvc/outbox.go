package logsvc

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/appbridge/appbridge/logsvc/match"
	"github.com/appbridge/appbridge/subjects"
)

const (
	flushAfter    = 50 * time.Millisecond // how long after a replica's last batch the next one waits for more lines
	positionAfter = time.Second           // the same for a position without lines
	existingBytes = 256 << 10             // how much of the existing lines is read ahead
	liveBytes     = 2 << 20               // how much memory live lines may take
	noteBytes     = 128 << 10             // how much memory notes may take
	spareBatches  = 4                     // how many batches are kept for reuse
)

// parcel is a batch or a note.
type parcel struct {
	*batch // nil: a note

	note     subjects.LogNote
	replica  string // of a batch, and of LogNoteDropped
	text     string
	replicas []string // that the note is about, or lists
	dropped  int64    // of LogNoteDropped
}

// outbox is the bounded queue of a stream, a Sink. Lines of a replica keep their order. When it is
// full, existing lines block, and live lines replace the oldest ones of the replica that has most
// of them; the reader gets a note with their number.
type outbox struct {
	req     *logRequest
	filter  func(ctx context.Context, replica string, lines []Line, live bool) (wanted []Line, places []int, missed int, err error)
	memory  *memoryUse
	metrics *metrics

	mu      sync.Mutex
	filling map[string]*batch
	last    map[string]time.Time // when the last batch was finished, by replica; for flushAfter
	places  map[string]string    // behind the lines of the last call, by replica
	ready   []parcel
	bytes   int              // memory of all batches, filling and ready
	notes   int              // memory of notes
	dropped map[string]int64 // lines without a note yet, by replica
	closed  bool
	room    chan struct{} // closed when there may be room
	spare   []*batch

	wake chan struct{} // holds one token when there may be a parcel
}

func newOutbox(r *logRequest, m *match.Matcher, all *memoryUse, metrics *metrics) *outbox {
	return &outbox{
		req: r, filter: m.Filter, memory: all, metrics: metrics,
		filling: map[string]*batch{}, last: map[string]time.Time{}, places: map[string]string{}, dropped: map[string]int64{},
		room: make(chan struct{}), wake: make(chan struct{}, 1),
	}
}

// Lines implements Sink.
func (o *outbox) Lines(ctx context.Context, replica string, lines []Line, live bool, place string) error {
	for i := range lines {
		if lines[i].Cut > 0 {
			o.metrics.cut.Inc()
		}
	}
	wanted, places, missed, err := o.filter(ctx, replica, lines, live)
	if err != nil {
		return err
	}
	c := &linesCall{replica: replica, live: live, lines: wanted, places: places, all: len(lines), place: place}
	for {
		room := o.add(c)
		o.signal()
		if room == nil {
			break
		}
		select {
		case <-room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if missed > 0 {
		o.metrics.dropped.Add(float64(missed))
		return o.put(ctx, droppedNote(replica, int64(missed)))
	}
	return context.Cause(ctx)
}

func (o *outbox) grow(n int) {
	o.bytes += n
	o.memory.add(n)
}

// linesCall is a call of Lines.
type linesCall struct {
	replica string
	live    bool
	lines   []Line // that are wanted; those that are added are removed
	places  []int  // of these among all of the call, counted from 1; nil: all are wanted
	added   int
	last    int    // the place of the line that was added last
	all     int    // lines of the call
	place   string // behind all of them
}

// next removes the next line.
func (c *linesCall) next() Line {
	line := c.lines[0]
	c.lines, c.last = c.lines[1:], c.added+1
	if c.places != nil {
		c.last = c.places[c.added]
	}
	c.added++
	return line
}

// add adds as many lines as there is room for. room is closed when there may be more.
func (o *outbox) add(c *linesCall) (room <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.filling[c.replica]
	if b != nil && b.live != c.live && len(c.lines) > 0 {
		o.finish(b)
		b = nil
	}
	for len(c.lines) > 0 {
		if !c.live && o.bytes >= existingBytes {
			return o.room
		}
		if b == nil {
			b = o.newBatch(c.replica, c.live)
		}
		before := b.cost()
		o.req.appendLine(b, c.next())
		if c.place != "" {
			b.reached = Position{o.places[c.replica], c.last}
			if c.last == c.all {
				b.reached = Position{Place: c.place}
			}
			b.at = append(b.at, b.reached)
		}
		o.grow(b.cost() - before)
		if b.size() >= batchBytes {
			o.finish(b)
			b = nil
		}
		if c.live {
			o.dropOldest()
		}
	}
	if c.place != "" {
		o.reach(c)
	}
	return nil
}

// reach is called after the last wanted line of a call. If others come after it and no batch is filling, one
// without lines has the position.
func (o *outbox) reach(c *linesCall) {
	o.places[c.replica] = c.place
	b := o.filling[c.replica]
	if b == nil && (c.last < c.all || c.all == 0) {
		b = o.newBatch(c.replica, c.live)
	}
	if b != nil {
		b.reached = Position{Place: c.place}
	}
}

func (o *outbox) newBatch(replica string, live bool) *batch {
	b := &batch{}
	if last := len(o.spare) - 1; last >= 0 && len(o.filling) < spareBatches {
		b, o.spare = o.spare[last], o.spare[:last]
	}
	o.grow(b.cost())
	b.replica, b.live, b.first = replica, live, time.Now()
	o.filling[replica] = b
	return b
}

// finish moves a batch to those that are ready, without its unused memory.
func (o *outbox) finish(b *batch) {
	delete(o.filling, b.replica)
	o.last[b.replica] = time.Now()
	kept := b.clipped()
	o.grow(kept.cost() - b.cost())
	if kept != b {
		o.keep(b)
	}
	o.ready = append(o.ready, parcel{batch: kept, replica: kept.replica})
}

// finishAll begins with the oldest batch.
func (o *outbox) finishAll() {
	for _, b := range slices.SortedFunc(maps.Values(o.filling), func(a, b *batch) int { return a.first.Compare(b.first) }) {
		o.finish(b)
	}
}

// dropOldest drops live lines while there are too many: the oldest of the replica that has most.
func (o *outbox) dropOldest() {
	for o.bytes > liveBytes || o.bytes > ringFloor && o.memory.scarce() {
		held, loudest := map[string]int{}, ""
		for _, p := range o.ready {
			if p.batch == nil || !p.live {
				continue
			}
			held[p.replica] += p.batch.cost()
			if held[p.replica] > held[loudest] {
				loudest = p.replica
			}
		}
		i := slices.IndexFunc(o.ready, func(p parcel) bool { return p.batch != nil && p.live && p.replica == loudest })
		if i < 0 {
			return
		}
		b := o.ready[i].batch
		o.ready = slices.Delete(o.ready, i, i+1)
		o.grow(-b.cost())
		if b.lines > 0 {
			o.dropped[b.replica] += int64(b.lines)
		}
		o.metrics.dropped.Add(float64(b.lines))
	}
}

// Replicas implements Sink.
func (o *outbox) Replicas(ctx context.Context, names []string) error {
	o.mu.Lock()
	maps.DeleteFunc(o.places, func(replica, _ string) bool { return !slices.Contains(names, replica) })
	o.mu.Unlock()
	return o.put(ctx, parcel{note: subjects.LogNoteReplicas, replicas: slices.Clone(names)})
}

// Note implements Sink.
func (o *outbox) Note(ctx context.Context, note subjects.LogNote, replicas []string, text string) error {
	return o.put(ctx, parcel{note: note, replicas: slices.Clone(replicas), text: text})
}

// put adds a note after all lines.
func (o *outbox) put(ctx context.Context, p parcel) error {
	o.mu.Lock()
	o.finishAll()
	o.append(p)
	o.mu.Unlock()
	o.signal()
	return context.Cause(ctx)
}

// append adds a note, or merges it with the last one. It drops the oldest notes when there are too
// many, but keeps their counts.
func (o *outbox) append(p parcel) {
	if n := len(o.ready); n > 0 && o.ready[n-1].merge(p) {
		return
	}
	o.notes += p.cost()
	for o.notes > noteBytes {
		i := slices.IndexFunc(o.ready, func(q parcel) bool {
			return q.batch == nil && (q.note != subjects.LogNoteReplicas || p.note == subjects.LogNoteReplicas)
		})
		if i < 0 {
			break
		}
		if old := o.ready[i]; old.dropped > 0 {
			o.dropped[old.replica] += old.dropped
		}
		o.notes -= o.ready[i].cost()
		o.ready = slices.Delete(o.ready, i, i+1)
	}
	o.ready = append(o.ready, p)
}

// merge adds the count of p to q, and returns false if they differ in more.
func (q *parcel) merge(p parcel) bool {
	if q.batch != nil || q.note != subjects.LogNoteDropped || p.note != q.note || p.replica != q.replica {
		return false
	}
	q.dropped += p.dropped
	return true
}

func (q *parcel) cost() int {
	n := noteOverhead + len(q.text)
	for _, replica := range q.replicas {
		n += len(replica) + 16
	}
	return n
}

func (o *outbox) close() {
	o.mu.Lock()
	o.finishAll()
	o.closed = true
	o.mu.Unlock()
	o.signal()
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// next removes the oldest parcel. It returns false when the outbox is closed and empty; the error
// is the cause of ctx.
func (o *outbox) next(ctx context.Context) (parcel, bool, error) {
	for {
		p, found, wait, closed := o.take()
		if found || closed {
			return p, found, nil
		}
		var flush <-chan time.Time
		if wait > 0 {
			flush = time.After(wait)
		}
		select {
		case <-o.wake:
		case <-flush:
		case <-ctx.Done():
			return parcel{}, false, context.Cause(ctx)
		}
	}
}

// take is next without waiting. wait is the time until the oldest batch is due, 0 if there is none.
func (o *outbox) take() (p parcel, found bool, wait time.Duration, closed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// Due batches take their place in the queue even if it is not empty.
	wait = o.due()
	if len(o.ready) == 0 && wait > 0 {
		return parcel{}, false, wait, false
	}
	if len(o.ready) == 0 {
		for replica, n := range o.dropped {
			delete(o.dropped, replica)
			return droppedNote(replica, n), true, 0, false
		}
		return parcel{}, false, 0, o.closed
	}
	p = o.ready[0]
	if p.batch != nil && p.live { // the note comes after existing lines
		if n := o.dropped[p.replica]; n > 0 {
			delete(o.dropped, p.replica)
			return droppedNote(p.replica, n), true, 0, false
		}
	}
	o.ready[0] = parcel{}
	o.ready = o.ready[1:]
	if p.batch == nil {
		o.notes -= p.cost()
	} else {
		o.grow(-p.batch.cost())
		close(o.room)
		o.room = make(chan struct{})
	}
	return p, true, 0, false
}

// due finishes the batches of replicas whose last batch is older than flushAfter, and returns the
// time until the next one is due, 0 if there is none. So a line of a quiet replica is sent at once,
// and a busy one is sent in batches.
func (o *outbox) due() (wait time.Duration) {
	now := time.Now()
	maps.DeleteFunc(o.last, func(_ string, last time.Time) bool { return now.Sub(last) >= positionAfter })
	for _, b := range o.filling {
		left := flushAfter
		if b.lines == 0 {
			left = positionAfter
		}
		left -= now.Sub(o.last[b.replica])
		if left <= 0 {
			o.finish(b)
		} else if wait == 0 || left < wait {
			wait = left
		}
	}
	return wait
}

func droppedNote(replica string, n int64) parcel {
	return parcel{note: subjects.LogNoteDropped, replica: replica, dropped: n}
}

func (o *outbox) done(b *batch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keep(b)
}

func (o *outbox) keep(b *batch) {
	if len(o.spare) < spareBatches && b.cost() <= 3*batchBytes {
		b.reset()
		o.spare = append(o.spare, b)
	}
}

func (o *outbox) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.grow(-o.bytes)
	o.filling, o.last, o.places, o.ready, o.spare = nil, nil, nil, nil, nil
}
