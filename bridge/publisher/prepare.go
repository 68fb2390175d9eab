package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// take takes the changes off the queue, in its order. For an app whose last event is not known it
// starts to read that event.
func (p *Publisher) take(ctx context.Context, taken chan<- *flight) error {
	var reads sync.WaitGroup
	defer reads.Wait()
	for {
		f, unread := p.queue.next()
		if f == nil || ctx.Err() != nil {
			return nil
		}
		if unread {
			f.read = make(chan struct{})
			reads.Go(func() {
				defer close(f.read)
				f.prev = p.readPublished(ctx, f.id)
			})
		}
		select {
		case taken <- f:
		case <-ctx.Done():
			return nil
		}
	}
}

// readPublished reads an app's last event. It tries again until it succeeds or ctx is done.
func (p *Publisher) readPublished(ctx context.Context, id subjects.AppID) (r *app.Record) {
	_ = retry.Do(ctx, func() (err error) {
		if p.nc.IsClosed() {
			return retry.Permanent(store.ErrClosed) // which ends the session
		}
		r, err = p.cfg.Published(ctx, id)
		return err
	}, func(err error, _ time.Duration) {
		p.noteTrouble(fmt.Errorf("read the last event of app %s: %w", id, err))
	})
	return r
}

// encode makes the events for the changes that were taken, in their order.
func (p *Publisher) encode(ctx context.Context, taken <-chan *flight, encoded chan<- *flight) error {
	for {
		var f *flight
		select {
		case f = <-taken:
		case <-ctx.Done():
			return nil
		}
		if f.read != nil {
			<-f.read
			if ctx.Err() != nil {
				return nil
			}
			if p.nc.IsClosed() {
				return store.ErrClosed
			}
			var ours bool
			// Behind another bridge's event the stream refuses the append, and readOutcomes reads why.
			if f.prev, ours = p.queue.noteRead(f.id, f.prev); ours && plan.Follows(f.prev, f.change, true) == plan.FitShown {
				p.cfg.KeyMissing(f.id) // the bucket should have an entry of the app
				p.finish(f, f.prev)
				continue
			}
		}
		if !p.prepare(f) {
			continue
		}
		select {
		case encoded <- f:
		case <-ctx.Done():
			return nil
		}
	}
}

// prepare makes the event of f. It returns false if there is nothing to send: the change is then off
// the queue, or the app waits.
func (p *Publisher) prepare(f *flight) bool {
	switch plan.Follows(f.prev, f.change, false) {
	case plan.FitNothing:
		p.finish(f, nil)
		return false
	case plan.FitGap:
		p.log.Warn("a state of another object follows without a delete; publishing the delete first", zap.Stringer("app", f.id),
			zap.String("uid", string(f.change.State.Service.UID)), zap.String("after", f.prev.UID))
		p.queue.precede(f.id, app.MissedDelete())
		return false
	}
	ev, err := p.encoder.Encode(f.id, f.change, f.prev)
	if err != nil {
		p.reject(f, err)
		return false
	}
	f.ev = ev
	return true
}

// remake encodes an event again that was refused for its size, under the present limits. No try of
// it may still be stored. It returns false if there is nothing to send.
func (p *Publisher) remake(f *flight, refusal error) bool {
	size := f.ev.Msg.Size()
	if !p.prepare(f) {
		return false
	}
	if f.ev.Msg.Size() < size {
		f.tries, f.answer = nil, answer{}
		return true
	}
	err := fmt.Errorf("%w: %d bytes: %w", app.ErrTooLarge, size, refusal)
	if f.change.Remove {
		err = fmt.Errorf("%w: %w", &app.TooLargeError{Size: size, Limit: p.encoder.MaxSize(), Smallest: size}, refusal)
	}
	p.reject(f, err)
	return false
}

// reject takes a change off the queue that cannot be published. After a delete that cannot be
// published nothing of its app can: it waits, with what follows, for the next session, which begins
// when a limit is raised.
func (p *Publisher) reject(f *flight, err error) {
	p.metrics.rejected.WithLabelValues(app.Reason(err)).Inc()
	if f.change.Remove {
		p.log.Error("a delete cannot be published; the app waits", zap.Stringer("app", f.id), zap.Error(err))
		for _, resynced := range p.queue.hold(f.id) {
			resynced()
		}
		p.unfit.note(f.id, err)
		return
	}
	p.log.Error("change rejected", zap.Stringer("app", f.id), zap.Error(err))
	p.finish(f, nil)
	if tooLarge, ok := errors.AsType[*app.TooLargeError](err); ok && tooLarge.Smallest > tooLarge.Limit {
		p.unfit.note(f.id, err)
	}
}

// finish takes the change of f off the queue. r is the app's new record, nil if nothing was
// published.
func (p *Publisher) finish(f *flight, r *app.Record) {
	p.unfit.forget(f.id)
	p.queue.done(f.id, r)
	if f.change.Resynced != nil {
		f.change.Resynced()
	}
}
