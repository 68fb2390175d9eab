package player

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// purge removes all events up to one, mostly not behind what the bucket has.
func (h *History) purge(ctx context.Context) error {
	to := h.writer.bucket.projected
	switch h.rand.IntN(4) {
	case 0:
		to = h.writer.last
	case 1:
		to = h.rand.Uint64N(to + 1)
	}
	if to == 0 {
		return nil
	}
	return h.writer.remove(ctx, func(m *model.Message) bool { return m.Sequence <= to },
		func(s jetstream.Stream) error { return s.Purge(ctx, jetstream.WithPurgeSequence(to+1)) })
}

// retention has the stream keep a number of messages for a moment.
func (h *History) retention(ctx context.Context) error {
	js := h.writer.box.js
	handle, err := js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	state, keep := handle.CachedInfo().State, uint64(1+h.rand.IntN(20))
	if state.Msgs <= keep {
		return nil
	}
	// Where retention ends is what the stream says.
	cfg := handle.CachedInfo().Config
	limit := func(n int64) (*jetstream.StreamInfo, error) {
		cfg.MaxMsgs = n
		s, err := js.UpdateStream(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return s.Info(ctx)
	}
	first := uint64(0)
	return h.writer.remove(ctx, func(m *model.Message) bool { return m.Sequence < first },
		func(jetstream.Stream) error {
			info, err := limit(int64(keep))
			if err != nil {
				return err
			}
			first = info.State.FirstSeq
			_, err = limit(-1)
			return err
		})
}

// purgeApp removes the history of one app.
func (h *History) purgeApp(ctx context.Context) error {
	id := h.writer.cluster.pick()
	filter, err := h.writer.names.EventFilter(id)
	if err != nil {
		return err
	}
	return h.writer.remove(ctx, func(m *model.Message) bool { return m.Event != nil && m.Event.ID == id },
		func(s jetstream.Stream) error { return s.Purge(ctx, jetstream.WithPurgeSubject(filter)) })
}

// removeMessage removes one message.
func (h *History) removeMessage(ctx context.Context) error {
	h.Model.Lock()
	var held []uint64
	for _, m := range h.Model.All() {
		if m.Present() {
			held = append(held, m.Sequence)
		}
	}
	h.Model.Unlock()
	if len(held) == 0 {
		return nil
	}
	sequence := held[h.rand.IntN(len(held))]
	return h.writer.remove(ctx, func(m *model.Message) bool { return m.Sequence == sequence },
		func(s jetstream.Stream) error { return s.DeleteMsg(ctx, sequence) })
}

// unread removes the newest event of an app while the reader is stopped. The bucket has it, and the
// beginning of the stream mostly does not show it.
func (h *History) unread(ctx context.Context) error {
	if err := h.kill(ctx); err != nil {
		return err
	}
	if err := h.change(ctx); err != nil {
		return err
	}
	if err := h.writer.project(ctx, -1); err != nil {
		return err
	}
	h.Model.Lock()
	m := h.writer.lastEvent(h.writer.cluster.pick())
	h.Model.Unlock()
	if m != nil {
		if err := h.writer.remove(ctx, func(other *model.Message) bool { return other == m },
			func(s jetstream.Stream) error { return s.DeleteMsg(ctx, m.Sequence) }); err != nil {
			return err
		}
	}
	return h.start(ctx)
}

// another has the stream and the bucket replaced by new ones, with another id, while the reader is
// stopped: their sequences begin again at 1.
func (h *History) another(ctx context.Context) error {
	h.saved = nil
	return h.writer.another(ctx)
}

func (w *writer) another(ctx context.Context) error {
	w.inexact()
	w.model.Lock()
	err := w.box.js.DeleteStream(ctx, stream)
	w.model.Replace(0, true)
	w.model.Unlock()
	if err != nil {
		return err
	}
	if err := w.box.js.DeleteKeyValue(ctx, subjects.DefaultBucket); err != nil {
		return err
	}
	w.streamID += "-next"
	w.last, w.lost, w.carry = 0, nil, 0
	w.published, w.headers, w.records = map[subjects.AppID]record{}, map[uint64]header{}, map[uint64]record{}
	w.bucket = bucket{exactAt: ^uint64(0), entries: map[subjects.AppID]entry{}}
	if err := w.recreate(ctx, stream, 0, w.createStream); err != nil {
		return err
	}
	if err := w.recreate(ctx, bucketStream, 0, w.createBucket); err != nil {
		return err
	}
	for _, id := range w.cluster.ids {
		if err := w.owed(ctx, id); err != nil {
			return err
		}
	}
	w.settle()
	return nil
}

// recreate makes a stream again that was deleted, empty behind sequence last. The server may still
// remove what the old one left: then it refuses, or makes a stream that ends where the old one did.
func (w *writer) recreate(ctx context.Context, name string, last uint64, create func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := create(ctx)
		if err == nil {
			handle, err := w.box.js.Stream(ctx, name)
			if err != nil {
				return err
			}
			if state := handle.CachedInfo().State; state.LastSeq == last && state.Msgs == 0 {
				return nil
			}
			if err := w.box.js.DeleteStream(ctx, name); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}
