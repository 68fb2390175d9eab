package player

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// saved is a copy of the storage, and what the stream and the bucket held then.
type saved struct {
	name   string
	held   map[uint64]bool
	last   uint64
	bucket bucket
}

// restart stops the server and starts it again. between, if not nil, is called while it is stopped.
func (w *writer) restart(between func() error) error {
	w.model.Lock()
	defer w.model.Unlock()
	w.box.stop()
	if between != nil {
		if err := between(); err != nil {
			return err
		}
	}
	return w.box.start()
}

// save copies the storage, while the server is stopped.
func (w *writer) save(name string) (s *saved, err error) {
	err = w.restart(func() error {
		s = &saved{name: name, held: w.model.Held(), last: w.last, bucket: w.bucket.clone()}
		return w.box.save(name)
	})
	return s, err
}

// rollback puts the stream, the bucket or both back to a copy. What a bridge then does is heal.
func (w *writer) rollback(s *saved, streamToo, bucketToo bool) error {
	return w.restart(func() error {
		w.model.Inexact()
		w.bucket.exactAt = ^uint64(0)
		var streams []string
		if streamToo {
			streams = append(streams, stream)
			w.model.Rollback(s.held, s.last)
		}
		if bucketToo {
			streams = append(streams, bucketStream)
			last := w.bucket.last
			w.bucket = s.bucket.clone()
			w.bucket.exactAt = ^uint64(0)
			w.carry = max(w.carry, last)
		}
		return w.box.restore(s.name, streams...)
	})
}

// heal is what a bridge does that finds less than was acknowledged: it fills the lost tail, appends a
// notice, carries the bucket past its own lost tail, restores the entries that reflect lost events,
// and publishes what is owed. reverted are apps that are meanwhile as the stream last showed them.
func (w *writer) heal(ctx context.Context, between func() error, reverted bool) error {
	handle, err := w.box.js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	last, known := handle.CachedInfo().State.LastSeq, w.last
	if last < known {
		if err := w.fill(ctx, handle, subjects.LostRange{From: last + 1, To: known}, between); err != nil {
			return err
		}
	}
	if err := between(); err != nil {
		return err
	}
	if err := w.carryBucket(ctx); err != nil {
		return err
	}
	if err := w.restoreEntries(ctx, last, known); err != nil {
		return err
	}
	if err := between(); err != nil {
		return err
	}
	w.model.Lock()
	owed := w.unprojected() // an older copy of the bucket may lack what was removed since
	w.model.Unlock()
	for _, id := range owed {
		if err := w.again(ctx, id); err != nil {
			return err
		}
	}
	if reverted {
		w.revert()
	}
	for _, id := range w.cluster.ids {
		if err := w.owed(ctx, id); err != nil {
			return err
		}
	}
	w.settle()
	return nil
}

// fill carries the stream's end past a lost range, with fillers that are purged, and reports it.
func (w *writer) fill(ctx context.Context, handle jetstream.Stream, lost subjects.LostRange, between func() error) error {
	if err := w.mark(ctx, map[string]string{subjects.MetadataLostPending: lost.String()}); err != nil {
		return err
	}
	state, err := handle.Info(ctx)
	if err != nil {
		return err
	}
	if state.State.Msgs == 0 {
		if err := handle.Purge(ctx, jetstream.WithPurgeSequence(lost.To+1)); err != nil {
			return err
		}
		w.last = lost.To
	} else {
		w.last = lost.From - 1
		chunk := 1 + w.cluster.rand.Uint64N(lost.To-lost.From+1)
		for w.last < lost.To {
			for n := chunk; n > 0 && w.last < lost.To; n-- {
				if err := w.plain(ctx, w.names.Lost(), nil); err != nil {
					return err
				}
			}
			if err := between(); err != nil {
				return err
			}
			if err := handle.Purge(ctx, jetstream.WithPurgeSubject(w.names.Lost())); err != nil {
				return err
			}
		}
	}
	if err := w.notice(ctx, lost); err != nil {
		return err
	}
	w.lost = append(w.lost, lost)
	return w.mark(ctx, map[string]string{
		subjects.MetadataLostPending: "", subjects.MetadataLostRanges: subjects.FormatLostRanges(w.lost[max(0, len(w.lost)-16):]),
	})
}

func (w *writer) notice(ctx context.Context, lost subjects.LostRange) error {
	w.model.Lock()
	defer w.model.Unlock()
	from, to := subjects.FormatNotice(lost)
	if err := w.plain(ctx, w.names.Notice(), map[string]string{
		subjects.HeaderLostFrom: from, subjects.HeaderLostTo: to,
	}); err != nil {
		return err
	}
	w.model.Append(&model.Message{Sequence: w.last, Lost: lost})
	return nil
}

// carryBucket takes the bucket's stream past what it had acknowledged.
func (w *writer) carryBucket(ctx context.Context) error {
	to := w.carry
	w.carry = 0
	if to <= w.bucket.last {
		return nil
	}
	for _, e := range w.bucket.entries {
		for w.bucket.last < to {
			if err := w.write(ctx, e.event); err != nil {
				return err
			}
		}
		return nil
	}
	handle, err := w.box.js.Stream(ctx, bucketStream)
	if err != nil {
		return err
	}
	w.bucket.last = to
	return handle.Purge(ctx, jetstream.WithPurgeSequence(to+1))
}

// restoreEntries has the entries that reflect an event of the lost range (last, known] reflect the
// app's last event that is left. What was published of these apps is that event.
func (w *writer) restoreEntries(ctx context.Context, last, known uint64) error {
	handle, err := w.box.js.Stream(ctx, bucketStream)
	if err != nil {
		return err
	}
	lost := func(sequence uint64) bool { return last < sequence && sequence <= known }
	for _, id := range w.cluster.ids {
		w.model.Lock()
		left := w.lastEvent(id)
		w.model.Unlock()
		held, has := w.bucket.entries[id]
		switch {
		case has && lost(held.event.Sequence) && left != nil && left.Sequence <= w.bucket.projected:
			w.forget(id, left.Sequence)
			err = w.write(ctx, left)
		case has && lost(held.event.Sequence) && held.marker():
			w.forget(id, 0)
			err = w.removeKey(ctx, handle, id)
		}
		if err != nil {
			return err
		}
		if record, was := w.published[id]; was && lost(record.sequence) {
			if has && !lost(held.event.Sequence) && (left == nil || left.Sequence < held.event.Sequence) {
				left = held.event // retention took it, the bucket has it
			}
			if has && left == nil && !held.marker() { // the bucket shows the app: if it is gone, a delete is owed
				record.exists, record.object = true, w.records[held.event.Sequence].object
			}
			w.published[id] = w.recordOf(left, record)
		}
	}
	return nil
}

// recordOf is what was published of an app whose last event that is left is m. Without one, an app
// that exists is owed a create, and one that is gone a delete: lost is what the stream lost.
func (w *writer) recordOf(m *model.Message, lost record) record {
	if m != nil {
		return w.records[m.Sequence]
	}
	if w.cluster.objects[w.idOf(lost)] != nil {
		lost.exists = false
	}
	return lost
}

func (w *writer) idOf(r record) subjects.AppID {
	id := r.object.app.GetMetadata().GetId()
	return subjects.AppID{Project: id.GetProject(), Domain: id.GetDomain(), Name: id.GetName()}
}

// revert has the cluster change, while nobody watches, to what was published.
func (w *writer) revert() {
	w.model.Lock()
	defer w.model.Unlock()
	for _, id := range w.cluster.ids {
		r := w.published[id]
		if m := w.model.At(r.sequence); m == nil || m.LostAt != 0 {
			continue // a create or a delete is owed
		}
		switch {
		case !r.exists:
			delete(w.cluster.objects, id)
		default:
			w.cluster.objects[id] = r.object
		}
	}
}

// remove removes messages from the stream as an operator or retention does. Events that the bucket
// does not have yet are then owed.
func (w *writer) remove(ctx context.Context, of func(*model.Message) bool, purge func(jetstream.Stream) error) error {
	handle, err := w.box.js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	w.model.Lock()
	err = purge(handle)
	w.model.Remove(of)
	owed := w.unprojected()
	w.model.Unlock()
	if err != nil {
		return fmt.Errorf("remove messages: %w", err)
	}
	return w.resync(ctx, owed)
}

// unprojected are the apps whose last event is gone and was never in the bucket. The model is locked.
func (w *writer) unprojected() (owed []subjects.AppID) {
	for _, m := range w.model.Between(w.bucket.projected, w.last+1) {
		if m.Event == nil || m.RemovedAt == 0 || m.LostAt != 0 {
			continue
		}
		m.Skipped = true
		if w.published[m.Event.ID].sequence == m.Sequence {
			owed = append(owed, m.Event.ID)
		}
	}
	if len(owed) > 0 {
		w.model.Inexact()
		w.bucket.exactAt = ^uint64(0)
	}
	return owed
}

// resync publishes apps whose last event was removed before the bucket had it, compared with what
// is left of them.
func (w *writer) resync(ctx context.Context, owed []subjects.AppID) error {
	for _, id := range owed {
		if err := w.again(ctx, id); err != nil {
			return err
		}
	}
	if len(owed) > 0 {
		w.settle()
	}
	return nil
}

// again publishes an app compared with what stream and bucket show of it. It goes on from the event
// that was removed.
func (w *writer) again(ctx context.Context, id subjects.AppID) error {
	w.model.Lock()
	left := w.lastEvent(id)
	w.model.Unlock()
	if e, has := w.bucket.entries[id]; has && (left == nil || left.Sequence < e.event.Sequence) {
		left = e.event
	}
	r := w.published[id]
	sequence := r.sequence
	r.exists = false
	if left != nil {
		r = w.records[left.Sequence]
	}
	r.sequence = sequence
	w.published[id] = r
	return w.owed(ctx, id)
}

// deleteStream deletes the stream, and makes it again behind what was acknowledged.
func (w *writer) deleteStream(ctx context.Context) error {
	w.model.Lock()
	err := w.box.js.DeleteStream(ctx, stream)
	w.model.Remove(func(*model.Message) bool { return true })
	owed := w.unprojected()
	w.model.Unlock()
	if err != nil {
		return err
	}
	if err := w.recreate(ctx, stream, w.last, w.createStream); err != nil {
		return err
	}
	return w.resync(ctx, owed)
}

// deleteBucket deletes the bucket, makes it again, and writes it from what the stream has.
func (w *writer) deleteBucket(ctx context.Context) error {
	w.inexact()
	if err := w.box.js.DeleteKeyValue(ctx, subjects.DefaultBucket); err != nil {
		return err
	}
	if err := w.recreate(ctx, bucketStream, w.bucket.last, w.createBucket); err != nil {
		return err
	}
	return w.rebuild(ctx)
}

// stale is an append of a writer that does not know the stream's end. The server must refuse it.
func (w *writer) stale(ctx context.Context) error {
	if w.last == 0 {
		return nil
	}
	held := w.last
	w.last--
	err := w.plain(ctx, w.names.Notice(), map[string]string{subjects.HeaderLostFrom: "1", subjects.HeaderLostTo: strconv.FormatUint(held, 10)})
	w.last = held
	if err == nil {
		return fmt.Errorf("the server took an append that expects sequence %d after %d", held-1, held)
	}
	return nil
}
