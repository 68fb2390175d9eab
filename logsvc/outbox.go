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
	// maxParcels bounds notes, which have next to no size.
	maxParcels = 1024
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
	metrics *metrics

	mu      sync.Mutex
	filling map[string]*batch
	ready   []parcel
	bytes   int              // of text, filling and ready
	live    map[string]int   // of live text that is ready, by replica
	dropped map[string]int64 // lines not told of yet, by replica
	closed  bool
	room    chan struct{} // closed when bytes sinks
	spare   []*batch

	wake chan struct{} // holds one: there may be something to take
}

func newOutbox(r *request, m *metrics) *outbox {
	return &outbox{
		layout: layout{r}, metrics: m,
		filling: map[string]*batch{}, dropped: map[string]int64{}, live: map[string]int{},
		room: make(chan struct{}), wake: make(chan struct{}, 1),
	}
}

// Lines is that of a Sink.
func (o *outbox) Lines(ctx context.Context, replica string, lines []Line, live bool) error {
	lines = o.layout.wanted(ctx, lines)
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
	return context.Cause(ctx)
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
		before := len(b.text)
		o.layout.add(b, line)
		o.bytes += len(b.text) - before
		if len(b.text) >= batchBytes {
			o.finish(b)
			b = nil
			o.shed()
		}
	}
	return len(lines), nil
}

func (o *outbox) newBatch(replica string, live bool) *batch {
	var b *batch
	if last := len(o.spare) - 1; last >= 0 {
		b, o.spare = o.spare[last], o.spare[:last]
	} else {
		b = &batch{text: make([]byte, 0, batchBytes+batchBytes/8)}
	}
	b.replica, b.live, b.first = replica, live, time.Now()
	o.filling[replica] = b
	return b
}

// finish moves a batch to those that are ready. An empty one, of lines that
// were all filtered out, goes nowhere.
func (o *outbox) finish(b *batch) {
	delete(o.filling, b.replica)
	if b.lines > 0 {
		o.ready = append(o.ready, parcel{batch: b, replica: b.replica})
		o.count(b, len(b.text))
	}
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
	for o.bytes > liveBytes {
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
		o.bytes -= len(b.text)
		o.count(b, -len(b.text))
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
	if len(o.ready) < maxParcels || o.forget(p) {
		o.ready = append(o.ready, p)
	}
	o.mu.Unlock()
	o.signal()
	return context.Cause(ctx)
}

// forget makes room for a note: the oldest one goes that a later one does not
// need. It is false when there is none.
func (o *outbox) forget(p parcel) bool {
	i := slices.IndexFunc(o.ready, func(q parcel) bool {
		return q.batch == nil && (q.note != subjects.LogNoteReplicas || p.note == subjects.LogNoteReplicas)
	})
	if i < 0 {
		return false
	}
	o.ready = slices.Delete(o.ready, i, i+1)
	return true
}

// close says that nothing more will come in.
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
	if p.batch != nil {
		o.bytes -= len(p.batch.text)
		o.count(p.batch, -len(p.batch.text))
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
	const keep = 4
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.spare) < max(keep, o.layout.window) && cap(b.text) <= 4*batchBytes {
		b.reset()
		o.spare = append(o.spare, b)
	}
}
