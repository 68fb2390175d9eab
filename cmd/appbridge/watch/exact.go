package watch

import (
	"context"
	"iter"
	"time"

	"github.com/appbridge/appbridge/subjects/appwatch"
)

// exact are the items of the reader up to a mark that is exact and the present, and those behind it. A
// bucket may be behind the stream, so the events behind a snapshot belong to it, up to those that the
// stream holds. A snapshot that may lack an app, or have a state that is lost, is read again:
// [appwatch.Position.Owed]. Only ctx bounds how long that takes, since a bridge has to repair a loss.
func (w *watch) exact(ctx context.Context) iter.Seq2[appwatch.Item, error] {
	return func(yield func(appwatch.Item, error) bool) {
		reader := w.Reader
		reader.Kinds = nil // a state follows from every event
		for {
			reader.From = w.untilMark(ctx, reader, yield)
			if reader.From.IsZero() {
				return
			}
			reader.Since, w.owed = time.Time{}, reader.From.Owed
		}
	}
}

// untilMark yields items up to the mark of a snapshot, or one behind which a snapshot has to be read again,
// and returns its position, zero when nothing more is to be read.
func (w *watch) untilMark(ctx context.Context, reader appwatch.Options, yield func(appwatch.Item, error) bool) appwatch.Position {
	snapshot, owed := reader.From.IsZero() && reader.Since.IsZero(), reader.From.Owed
	for it, err := range appwatch.Watch(ctx, w.js, reader) {
		switch {
		case err != nil:
		case it.Type == appwatch.Mark && it.Position.Owed && owed:
			continue // the present is reached; the Restart follows
		case it.Type == appwatch.Mark && (it.Position.Owed || snapshot):
			// Of an owed one, a reader that goes on gets a Restart only if something differs, one that
			// resumes always.
			return it.Position
		case it.Type == appwatch.Restart:
			if snapshot = true; owed {
				owed, w.owed = false, false
				it.Reason = nil // nothing was shown that it replaces
			}
		}
		if !yield(it, err) {
			return appwatch.Position{}
		}
	}
	return appwatch.Position{}
}
