package appwatch

import (
	"context"
	"errors"
	"strings"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch/internal/jetapi"
)

// locate finds the place in a stream with sources that is behind the position, a sequence of the
// origin. The messages of one origin have its order.
func (w *watcher) locate(ctx context.Context) error {
	if w.local > 0 {
		m, err := w.api.MessageAt(ctx, w.opts.Stream, w.local)
		if err != nil && !errors.Is(err, jetapi.ErrNoMessage) {
			return err
		}
		if err == nil {
			if strings.HasPrefix(m.Subject, w.opts.branch) && w.sequenceOf(m) == w.at.Sequence {
				return nil
			}
		}
	}
	first, err := w.search(ctx, func(m *jetapi.Message) bool { return w.sequenceOf(m) > w.at.Sequence })
	if err == nil {
		w.local = first - 1
	}
	return err
}

// search finds a sequence of the stream that follows an event which is not behind what is looked for, or
// begins the stream, and that the next event is behind of. Where all later events are behind as well,
// that is the first one.
func (w *watcher) search(ctx context.Context, behind func(*jetapi.Message) bool) (uint64, error) {
	low, high := max(w.info.State.FirstSeq, 1), w.info.State.LastSeq+1
	for low < high {
		middle := low + (high-low)/2
		m, err := w.api.NextMessage(ctx, w.opts.Stream, w.opts.names.Events(), middle)
		if err != nil && !errors.Is(err, jetapi.ErrNoMessage) {
			return 0, err
		}
		if err != nil || behind(m) {
			high = middle
		} else {
			low = m.Sequence + 1
		}
	}
	return low, nil
}

// sequenceOf is the sequence of a message in the stream of origin, 0 for a message that has none.
func (w *watcher) sequenceOf(m *jetapi.Message) uint64 {
	if !w.info.HasSources() {
		return m.Sequence
	}
	_, sequence, _ := parseSource(first(m.Header, subjects.HeaderStreamSource))
	return sequence
}

// newestOrigin is the newest sequence of the origin that a stream with sources has.
func (w *watcher) newestOrigin(ctx context.Context) (uint64, error) {
	m, err := w.api.LastMessage(ctx, w.opts.Stream, w.opts.names.Events())
	if errors.Is(err, jetapi.ErrNoMessage) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return w.sequenceOf(m), nil
}

// parseSource reads the header that a stream with sources adds: the stream of origin, and the
// sequence there.
func parseSource(header string) (origin string, sequence uint64, ok bool) {
	origin, rest, ok := strings.Cut(header, " ")
	word, _, _ := strings.Cut(rest, " ")
	n := number(word)
	return origin, n, ok && n > 0
}
