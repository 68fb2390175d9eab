package watch

import (
	"context"
	"iter"
	"time"

	"github.com/appbridge/appbridge/subjects/appwatch"
)

// exact are the items of the reader up to a mark that is exact, and those behind it. A snapshot that
// may lack an app, or have a state that is lost, is read again: [appwatch.Position.Owed]. Only ctx
// bounds how long that takes, since a bridge has to repair a loss.
func (w *watch) exact(ctx context.Context) iter.Seq2[appwatch.Item, error] {
	return func(yield func(appwatch.Item, error) bool) {
		reader := w.Reader
		for again := false; ; again = true {
			reader.From = w.untilOwed(ctx, reader, again, yield)
			if reader.From.IsZero() {
				return
			}
			reader.Since, w.owed = time.Time{}, true
		}
	}
}

// untilOwed yields items up to the mark of a snapshot that has to be read again, and returns its
// position, zero when nothing more is to be read. again: the reader resumes at such a position.
func (w *watch) untilOwed(ctx context.Context, reader appwatch.Options, again bool, yield func(appwatch.Item, error) bool) appwatch.Position {
	for it, err := range appwatch.Watch(ctx, w.js, reader) {
		owed := err == nil && it.Type == appwatch.Mark && it.Position.Owed
		switch {
		case owed && again:
			continue // the present is reached; the Restart follows
		case owed:
			// A reader that goes on gets a Restart only if something differs, one that resumes always.
			return it.Position
		case it.Type == appwatch.Restart && again:
			again, w.owed = false, false
			it.Reason = nil // nothing was shown that it replaces
		}
		if !yield(it, err) {
			return appwatch.Position{}
		}
	}
	return appwatch.Position{}
}
