package player

import (
	"cmp"
	"context"
	"fmt"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// step is one thing that happens in a history.
type step struct {
	name string
	do   func(*History, context.Context) error
}

type weighted struct {
	step
	weight int
	when   func(*History) bool
}

// When a step is possible.
var (
	healthy = func(h *History) bool { return !h.broken }
	broken  = func(h *History) bool { return h.broken }
	runs    = func(h *History) bool { return h.runs }
	stopped = func(h *History) bool { return !h.runs }
	linked  = func(h *History) bool { return !h.cut }
	cut     = func(h *History) bool { return h.cut }
	reads   = func(h *History) bool { return h.runs && !h.cut && !h.broken }
	always  = func(*History) bool { return true }
	// A server tries again to copy a stream for many seconds, if that fails.
	near        = func(h *History) bool { return h.View == Origin }
	nearAndWell = func(h *History) bool { return h.View == Origin && !h.broken }
	canReplace  = func(h *History) bool { return nearAndWell(h) && !h.runs }
	canRollBack = func(h *History) bool { return nearAndWell(h) && len(h.saved) > 0 }
)

var steps = []weighted{
	{step{"change", (*History).change}, 40, healthy},
	{step{"project", (*History).project}, 10, healthy},
	{step{"catch up", (*History).caughtUp}, 18, reads},
	{step{"kill", (*History).kill}, 6, runs},
	{step{"start", (*History).start}, 25, stopped},
	{step{"fresh", (*History).fresh}, 4, always},
	{step{"cut", (*History).cutOff}, 4, linked},
	{step{"open", (*History).open}, 20, cut},
	{step{"hang", (*History).hang}, 1, linked},
	{step{"delete consumers", (*History).deleteConsumers}, 3, always},
	{step{"encoding", (*History).encoding}, 2, healthy},
	{step{"stranger", (*History).stranger}, 2, healthy},
	{step{"stale append", (*History).stale}, 2, healthy},
	{step{"expire markers", (*History).expire}, 3, healthy},
	{step{"rewrite entries", (*History).rewrite}, 2, healthy},
	{step{"purge", (*History).purge}, 3, healthy},
	{step{"retention", (*History).retention}, 3, healthy},
	{step{"purge an app", (*History).purgeApp}, 2, healthy},
	{step{"remove a message", (*History).removeMessage}, 2, healthy},
	{step{"restart", (*History).restart}, 2, near},
	{step{"save", (*History).save}, 3, nearAndWell},
	{step{"rollback", (*History).rollback}, 6, canRollBack},
	{step{"heal", (*History).heal}, 60, broken},
	{step{"delete the stream", (*History).deleteStream}, 1, nearAndWell},
	{step{"delete the bucket", (*History).deleteBucket}, 1, nearAndWell},
	{step{"delete both", (*History).deleteBoth}, 1, nearAndWell},
	{step{"another stream", (*History).another}, 6, canReplace},
	{step{"remove what is unread", (*History).unread}, 2, healthy},
}

// next chooses the next step.
func (h *History) next() step {
	total := 0
	for _, s := range steps {
		if s.when(h) {
			total += s.weight
		}
	}
	n := h.rand.IntN(total)
	for _, s := range steps {
		if !s.when(h) {
			continue
		}
		if n -= s.weight; n < 0 {
			return s.step
		}
	}
	panic("no step")
}

// change changes some apps.
func (h *History) change(ctx context.Context) error {
	w := h.writer
	for range 1 + h.rand.IntN(12) {
		id := w.cluster.pick()
		c := change{id: id, foreign: h.rand.IntN(15) == 0, synthesized: h.rand.IntN(10) == 0}
		switch n := h.rand.IntN(100); {
		case w.cluster.objects[id] == nil || n < 70:
			c.to = w.cluster.change(id)
			if h.rand.IntN(8) == 0 && w.published[id].exists {
				c.merged = 1 + h.rand.IntN(9)
			}
			if h.rand.IntN(10) == 0 {
				c.cut = h.cut0(w.published[id].exists)
			}
		case n < 85: // gone
			w.cluster.remove(id)
			c.unknown = h.rand.IntN(5) == 0
			if h.rand.IntN(10) == 0 {
				c.cut = []string{subjects.TruncatedSpec}
			}
		default: // another object with the same id
			w.cluster.remove(id)
			if err := w.append(ctx, c); err != nil {
				return err
			}
			c.to = w.cluster.change(id)
		}
		if err := w.append(ctx, c); err != nil {
			return err
		}
		if h.lag == 0 {
			if err := w.project(ctx, -1); err != nil {
				return err
			}
		}
	}
	return nil
}

// cut0 are fields that do not fit into the event of an app.
func (h *History) cut0(update bool) []string {
	switch {
	case !update:
		return []string{subjects.TruncatedSpec}
	case h.rand.IntN(2) == 0:
		return []string{subjects.TruncatedOldApp}
	default:
		return []string{subjects.TruncatedOldApp, subjects.TruncatedSpec}
	}
}

func (h *History) project(ctx context.Context) error {
	return h.writer.project(ctx, 1+h.rand.IntN(20))
}

func (h *History) caughtUp(ctx context.Context) error {
	if !h.runs || h.cut || h.broken {
		return nil
	}
	return h.reader.CaughtUp(ctx)
}

func (h *History) kill(context.Context) error {
	h.reader.Kill()
	h.runs = false
	return nil
}

func (h *History) start(context.Context) error {
	if h.runs {
		return nil
	}
	h.runs = true
	return h.reader.Start()
}

func (h *History) fresh(ctx context.Context) error {
	h.reader.Kill()
	h.reader.Forget()
	h.runs = false
	return h.start(ctx)
}

func (h *History) cutOff(ctx context.Context) error {
	h.writer.box.gate.cut()
	h.cut = true
	if h.rand.IntN(2) == 0 {
		return h.open(ctx)
	}
	return nil
}

func (h *History) open(context.Context) error {
	h.writer.box.gate.open()
	if h.cut {
		h.reader.Reachable("a cut connection")
	}
	h.cut = false
	return nil
}

// hang is a link that swallows bytes until it breaks.
func (h *History) hang(ctx context.Context) error {
	h.writer.box.gate.hang()
	if err := h.change0(ctx); err != nil {
		return err
	}
	return h.cutOff(ctx)
}

func (h *History) change0(ctx context.Context) error {
	if h.broken {
		return nil
	}
	return h.change(ctx)
}

// deleteConsumers is an operator who cleans up.
func (h *History) deleteConsumers(ctx context.Context) error {
	names := h.Names()
	for _, of := range []string{names.Stream, cmp.Or(names.BucketStream, bucketStream)} {
		handle, err := h.writer.box.js.Stream(ctx, of)
		if err != nil {
			return err
		}
		consumers := handle.ConsumerNames(ctx)
		for name := range consumers.Name() {
			// It may have gone by itself.
			_ = handle.DeleteConsumer(ctx, name)
		}
	}
	return nil
}

func (h *History) encoding(context.Context) error {
	if h.writer.form == subjects.ContentTypeJSON {
		h.writer.form = subjects.ContentTypeProtobuf
	} else {
		h.writer.form = subjects.ContentTypeJSON
	}
	return nil
}

// stranger appends a message that belongs to no app and that a reader does not know.
func (h *History) stranger(ctx context.Context) error {
	subject := h.writer.names.Prefix() + ".events." + []string{"future", "lost.and.found", "a.b"}[h.rand.IntN(3)]
	h.Model.Lock()
	defer h.Model.Unlock()
	if err := h.writer.plain(ctx, subject, nil); err != nil {
		return err
	}
	h.Model.Append(&model.Message{Sequence: h.writer.last})
	return nil
}

func (h *History) stale(ctx context.Context) error { return h.writer.stale(ctx) }

func (h *History) expire(ctx context.Context) error { return h.writer.expire(ctx) }

// rewrite writes entries again, as a repair does.
func (h *History) rewrite(ctx context.Context) error {
	w := h.writer
	for _, id := range w.cluster.ids {
		if e, has := w.bucket.entries[id]; has && h.rand.IntN(3) == 0 {
			if err := w.write(ctx, e.event); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *History) restart(context.Context) error {
	if err := h.writer.restart(nil); err != nil {
		return err
	}
	h.back()
	return nil
}

func (h *History) back() {
	if !h.cut {
		h.reader.Reachable("a restart of the server")
	}
}

func (h *History) save(context.Context) error {
	s, err := h.writer.save(h.copyName())
	if err != nil {
		return err
	}
	h.saved = append(h.saved, s)
	h.back()
	return nil
}

// rollback puts the stream, the bucket or both back to an earlier copy.
func (h *History) rollback(ctx context.Context) error {
	if h.rand.IntN(2) == 0 {
		if err := h.caughtUp(ctx); err != nil {
			return err
		}
	}
	n := h.rand.IntN(len(h.saved))
	s, what := h.saved[n], h.rand.IntN(4)
	h.saved = h.saved[:n+1] // later copies are of a history that is over
	if err := h.writer.rollback(s, what != 0, what != 1); err != nil {
		return err
	}
	h.Steps[len(h.Steps)-1] = fmt.Sprintf("rollback to %d (stream: %t, bucket: %t)", s.last, what != 0, what != 1)
	h.broken = true
	h.back()
	return nil
}

// heal is the bridge that finds out.
func (h *History) heal(ctx context.Context) error {
	if !h.broken {
		return nil
	}
	h.broken = false
	between := func() error {
		if h.rand.IntN(6) > 0 {
			return nil
		}
		return []func(*History, context.Context) error{
			(*History).kill, (*History).start, (*History).fresh, (*History).cutOff, (*History).open,
		}[h.rand.IntN(5)](h, ctx)
	}
	return h.writer.heal(ctx, between, h.rand.IntN(3) == 0)
}

func (h *History) deleteStream(ctx context.Context) error {
	h.saved = nil // a copy of a stream that is gone is put back with it or not at all
	return h.writer.deleteStream(ctx)
}

func (h *History) deleteBucket(ctx context.Context) error {
	h.saved = nil
	return h.writer.deleteBucket(ctx)
}

func (h *History) deleteBoth(ctx context.Context) error {
	h.saved = nil
	h.writer.inexact()
	if err := h.writer.deleteStream(ctx); err != nil {
		return err
	}
	return h.writer.deleteBucket(ctx)
}
