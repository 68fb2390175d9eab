package logsvc

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// flushAfter is how long a line waits for others to go with it.
	flushAfter = 50 * time.Millisecond
	// existingBytes is how much of what exists already is read ahead.
	existingBytes = 256 << 10
	// liveBytes is how much of what is being written may wait for the reader.
	liveBytes = 2 << 20
	// noteBytes is how much of notes may wait for the reader.
	noteBytes = 128 << 10
	// spareBatches is how many batches are kept for the next lines, and how many are
	// filled at one time that have more room than they need yet.
	spareBatches = 4
)

// parcel is what becomes one message or, when it is large, some.
type parcel struct {
	*batch // nil: a note

	note          subjects.LogNote
	replica, text string
	replicas      []string // of LogNoteReplicas
	dropped       int64    // of LogNoteDropped
}

// outbox is what waits for the reader of a stream. Lines of a replica keep their
// order. It is bounded: lines that exist already wait outside until there is
// room; live ones push out the oldest live ones of the loudest replica, which are counted and told of.
type outbox struct {
	layout  layout
	matcher *matcher
	memory  *memory
	metrics *metrics

	mu      sync.Mutex
	filling map[string]*batch
	ready   []parcel
	bytes   int              // that batches take, filling and ready
	live    map[string]int   // that live batches take that are ready, by replica
	notes   int              // bytes that notes take
	dropped map[string]int64 // lines not told of yet, by replica
	closed  bool
	room    chan struct{} // closed when bytes sinks
	spare   []*batch

	wake chan struct{} // holds one: there may be something to take
}

func newOutbox(r *logRequest, m *matcher, all *memory, metrics *metrics) *outbox {
	return &outbox{
		layout: layout{r}, matcher: m, memory: all, metrics: metrics,
		filling: map[string]*batch{}, dropped: map[string]int64{}, live: map[string]int{},
		room: make(chan struct{}), wake: make(chan struct{}, 1),
	}
}

// Lines is that of a Sink.
func (o *outbox) Lines(ctx context.Context, replica string, lines []Line, live bool) error {
	lines, missed, err := o.matcher.wanted(ctx, replica, lines, live)
	if err != nil {
		return err
	}
	for len(lines) > 0 {
		n, room := o.add(replica, lines, live)
		lines = lines[n:]
		o.signal()
		if room == nil {
			continue
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

// grow counts n bytes more that lines take.
func (o *outbox) grow(n int) {
	o.bytes += n
	o.memory.add(n)
}

// add takes as many lines as there is room for, and tells when there is more.
func (o *outbox) add(replica string, lines []Line, live bool) (n int, room <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.filling[replica]
	if b != nil && b.live != live {
		o.finish(b)
		b = nil
	}
	for i, line := range lines {
		if !live && o.bytes >= existingBytes {
			return i, o.room
		}
		if b == nil {
			b = o.newBatch(replica, live)
		}
		before := b.cost()
		o.layout.add(b, line)
		o.grow(b.cost() - before)
		if b.size() >= batchBytes {
			o.finish(b)
			b = nil
		}
		if live {
			o.shed()
		}
	}
	return len(lines), nil
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

// finish moves a batch to those that are ready, without the room that it has not filled.
func (o *outbox) finish(b *batch) {
	delete(o.filling, b.replica)
	kept := b.clipped()
	o.grow(kept.cost() - b.cost())
	if kept != b {
		o.keep(b)
	}
	o.ready = append(o.ready, parcel{batch: kept, replica: kept.replica})
	o.count(kept, kept.cost())
}

// count keeps o.live for a batch that has come in (n > 0) or is out.
func (o *outbox) count(b *batch, n int) {
	if !b.live {
		return
	}
	if o.live[b.replica] += n; o.live[b.replica] == 0 {
		delete(o.live, b.replica)
	}
}

// finishAll does that with all batches, the oldest first.
func (o *outbox) finishAll() {
	for _, b := range slices.SortedFunc(maps.Values(o.filling), func(a, b *batch) int { return a.first.Compare(b.first) }) {
		o.finish(b)
	}
}

// shed pushes out live lines as long as there are too many: the oldest of the
// replica that has most of them waiting.
func (o *outbox) shed() {
	for o.bytes > liveBytes || o.bytes > ringFloor && o.memory.scarce() {
		loudest, most := "", 0
		for replica, n := range o.live {
			if n > most {
				loudest, most = replica, n
			}
		}
		i := slices.IndexFunc(o.ready, func(p parcel) bool { return p.batch != nil && p.live && p.replica == loudest })
		if i < 0 {
			return
		}
		b := o.ready[i].batch
		o.ready = slices.Delete(o.ready, i, i+1)
		o.grow(-b.cost())
		o.count(b, -b.cost())
		o.dropped[b.replica] += int64(b.lines)
		o.metrics.dropped.Add(float64(b.lines))
	}
}

// Replicas is that of a Sink.
func (o *outbox) Replicas(ctx context.Context, names []string) error {
	return o.put(ctx, parcel{note: subjects.LogNoteReplicas, replicas: slices.Clone(names)})
}

// Note is that of a Sink.
func (o *outbox) Note(ctx context.Context, note subjects.LogNote, replica, text string) error {
	return o.put(ctx, parcel{note: note, replica: replica, text: text})
}

// put adds a note behind everything that came before it.
func (o *outbox) put(ctx context.Context, p parcel) error {
	o.mu.Lock()
	o.finishAll()
	o.append(p)
	o.mu.Unlock()
	o.signal()
	return context.Cause(ctx)
}

// append adds a note, or joins it to the last one. The oldest notes go when there are too
// many of them; what they count stays.
func (o *outbox) append(p parcel) {
	if n := len(o.ready); n > 0 && o.ready[n-1].absorb(p) {
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

// absorb reports whether the note p adds only to a number, which it then does.
func (q *parcel) absorb(p parcel) bool {
	if q.batch != nil || q.note != subjects.LogNoteDropped || p.note != q.note || p.replica != q.replica {
		return false
	}
	q.dropped += p.dropped
	return true
}

// cost is the memory that a note takes.
func (q *parcel) cost() int {
	n := noteOverhead + len(q.text)
	for _, replica := range q.replicas {
		n += len(replica) + 16
	}
	return n
}

// close notes that nothing more will come in.
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

// next takes what has waited longest. It is false when the outbox is closed
// and empty; the error is that of ctx.
func (o *outbox) next(ctx context.Context) (parcel, bool, error) {
	for {
		p, found, wait, closed := o.take()
		if found {
			return p, true, nil
		}
		if closed {
			return parcel{}, false, nil
		}
		var flush <-chan time.Time
		var timer *time.Timer
		if wait > 0 {
			timer = time.NewTimer(wait)
			flush = timer.C
		}
		select {
		case <-o.wake:
		case <-flush:
		case <-ctx.Done():
			return parcel{}, false, context.Cause(ctx)
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// take is next without waiting: wait says when the oldest line that is being
// gathered has to go, 0 if there is none.
func (o *outbox) take() (p parcel, found bool, wait time.Duration, closed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// Also while others wait: what has waited long enough takes its place among them.
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
	if p.batch != nil && p.live { // what existed already comes before what was dropped
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
		o.count(p.batch, -p.batch.cost())
		close(o.room)
		o.room = make(chan struct{})
	}
	return p, true, 0, false
}

// due finishes the batches whose first line has waited long enough, and says how
// long it is until the next one has; 0 if there is none.
func (o *outbox) due() (wait time.Duration) {
	now := time.Now()
	for _, b := range o.filling {
		if b.lines == 0 {
			continue
		}
		left := flushAfter - now.Sub(b.first)
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

// done gives a batch back for use by the next lines.
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

// release gives back the memory of what nobody has taken.
func (o *outbox) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.grow(-o.bytes)
	o.filling, o.ready, o.spare = nil, nil, nil
}
