package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// ErrRemoved is returned for an instant of which the stream does not know enough any more.
var ErrRemoved = errors.New("the stream does not have the events of that time any more")

// concurrentReads of single events are under way at one time.
const concurrentReads = 32

// instant prints the apps as they were. The time is that of the stream: when the server stored the
// events. An app that did not change since is as the bucket has it; any other one is what its first
// event since then changed. So it costs the events since then, and not those before.
func (w *watch) instant(ctx context.Context) error {
	states, position, err := w.snapshot(ctx)
	if err != nil || states == nil {
		return err
	}
	w.done = false
	first, removed, err := w.firstSince(ctx)
	if err != nil || first == nil {
		return err
	}
	if err := w.reaches(ctx); err != nil {
		return err
	}
	unknown, err := w.rewind(ctx, states, first)
	if err != nil {
		return err
	}
	w.done = true
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return fmt.Errorf("%w: %s", ErrRemoved, someOf(unknown))
	}
	if removed != nil {
		return fmt.Errorf("%w: %w", ErrRemoved, removed)
	}
	return w.list(states, position.String(), w.At)
}

// maxNamed is how many apps an error names.
const maxNamed = 10

func someOf(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// firstSince is the first event of each app behind the instant, nil if ctx ended. removed is why events
// behind it are missing that no later one names: an app may have been there until one of them.
func (w *watch) firstSince(ctx context.Context) (first map[subjects.AppID]appwatch.Item, removed, err error) {
	first = map[subjects.AppID]appwatch.Item{}
	named := map[uint64]bool{} // as an event's predecessor
	var losses []appwatch.Item
	reader := w.Reader
	reader.Since, reader.NoSnapshot = w.At.Add(1), true
	reader.Kinds, reader.Statuses, reader.Latest = nil, nil, false // every event
	for it, err := range appwatch.Watch(ctx, w.js, reader) {
		switch {
		case err != nil:
			return nil, nil, err
		case it.Type == appwatch.Mark:
			for _, loss := range losses {
				if !allIn(named, loss.Lost) {
					return first, loss.Reason, nil
				}
			}
			return first, nil, nil
		case it.Type == appwatch.Loss && !errors.Is(it.Reason, appwatch.ErrNotice): // a bridge has published again what counts
			losses = append(losses, it)
		case it.Type == appwatch.Event:
			named[it.PreviousSequence()] = true
			if _, known := first[it.ID]; !known {
				first[it.ID] = it
			}
		}
	}
	return nil, nil, nil
}

// allIn reports whether a set has each sequence of a range, which is not empty.
func allIn(set map[uint64]bool, r subjects.LostRange) bool {
	if r.From == 0 || r.To-r.From >= uint64(len(set)) {
		return false
	}
	for sequence := r.From; sequence <= r.To; sequence++ {
		if !set[sequence] {
			return false
		}
	}
	return true
}

// reaches returns an error if the stream has lost events behind the instant to retention or a purge.
// It is called after the events were read, so that what they lack is noticed.
func (w *watch) reaches(ctx context.Context) error {
	_, info, err := store.LookUp(ctx, w.js, w.streamName())
	if err != nil {
		return fmt.Errorf("read the state of stream %s: %w", w.streamName(), err)
	}
	state := info.State
	switch {
	case state.FirstSeq <= 1 && len(info.Config.Sources) == 0, state.Msgs == 0 && !state.LastTime.After(w.At):
		return nil
	case state.Msgs > 0 && state.FirstTime.After(w.At):
		return fmt.Errorf("%w: it begins at %s, with sequence %d", ErrRemoved, appview.Instant(state.FirstTime), state.FirstSeq)
	case state.Msgs == 0:
		return fmt.Errorf("%w: it is empty, and its last event was stored at %s", ErrRemoved, appview.Instant(state.LastTime))
	}
	return nil
}

func (w *watch) streamName() string { return cmp.Or(w.Reader.Stream, subjects.DefaultStream) }

// rewind replaces the states of apps by those before their first event since. It returns the apps of
// which that is not known.
func (w *watch) rewind(ctx context.Context, states map[subjects.AppID]*appview.App, first map[subjects.AppID]appwatch.Item) (unknown []string, err error) {
	h, err := w.historyUpTo(ctx, w.At)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // of states and unknown
	var reads errgroup.Group
	reads.SetLimit(concurrentReads)
	for id, a := range states {
		if _, changed := first[id]; !changed && !h.covers(a) {
			unknown = append(unknown, id.String())
		}
	}
	for id, it := range first {
		reads.Go(func() error {
			a, known := h.before(ctx, it)
			mu.Lock()
			defer mu.Unlock()
			delete(states, id)
			switch {
			case !known:
				unknown = append(unknown, id.String())
			case a != nil && !a.Gone() && w.passes(a):
				states[id] = a
			}
			return ctx.Err()
		})
	}
	return unknown, reads.Wait()
}

// passes reports whether an app has one of the statuses that are watched.
func (w *watch) passes(a *appview.App) bool {
	return len(w.Reader.Statuses) == 0 || slices.Contains(w.Reader.Statuses, a.Status)
}
