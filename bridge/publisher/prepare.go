package publisher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
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
			if f.prev, ours = p.queue.noteRead(f.id, f.prev); ours && p.isStored(f) {
				p.cfg.KeyMissing(f.id)
				p.finish(f, f.prev)
				continue
			}
		}
		publish, err := p.prepare(f)
		if err != nil {
			return fmt.Errorf("app %s: %w", f.id, err)
		}
		if !publish {
			p.finish(f, nil)
			continue
		}
		select {
		case encoded <- f:
		case <-ctx.Done():
			return nil
		}
	}
}

// isStored reports whether the app's last event, which was just read, shows the state of f. The
// bucket should have an entry of that app.
func (p *Publisher) isStored(f *flight) bool {
	return !f.change.Remove && f.prev.Exists() && f.prev.UID == string(f.change.State.Service.UID) && app.IsPublished(f.change.State, f.prev)
}

// prepare makes the event of f. It returns false if there is nothing to publish.
func (p *Publisher) prepare(f *flight) (bool, error) {
	if f.change.Remove && !f.prev.Exists() {
		return false, nil
	}
	if !f.change.Remove && f.prev.Exists() && f.prev.UID != string(f.change.State.Service.UID) {
		return false, fmt.Errorf("state of %s follows one of %s without a delete", f.change.State.Service.UID, f.prev.UID)
	}
	ev, err := p.encoder.Encode(f.id, f.change, f.prev)
	if err != nil {
		p.reject(f.id, err)
		return false, nil
	}
	f.ev = ev
	return true, nil
}

// remake encodes an event again that was refused for its size, under the present limits. No try of
// it may still be stored. It returns false if there is nothing to send: f is then off the queue.
func (p *Publisher) remake(f *flight, refusal error) bool {
	size := f.ev.Msg.Size()
	publish, err := p.prepare(f)
	if err == nil && publish && f.ev.Msg.Size() < size {
		f.tries, f.answer = nil, answer{}
		return true
	}
	if err == nil && publish {
		p.reject(f.id, fmt.Errorf("%w: %d bytes: %w", app.ErrTooLarge, size, refusal))
	}
	p.finish(f, nil)
	return false
}

func (p *Publisher) reject(id subjects.AppID, err error) {
	p.metrics.rejected.WithLabelValues(app.Reason(err)).Inc()
	p.log.Error("change rejected", zap.Stringer("app", id), zap.Error(err))
}

// finish takes the change of f off the queue. r is the app's new record, nil if nothing was
// published.
func (p *Publisher) finish(f *flight, r *app.Record) {
	p.queue.done(f.id, r)
	if f.change.Resynced != nil {
		f.change.Resynced()
	}
}
