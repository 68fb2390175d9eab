package watch

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// history reads single events of the stream that were stored up to an instant.
type history struct {
	stream  singles
	names   subjects.Subjects
	at      time.Time
	bare    bool // without bodies
	sourced bool // the stream gives events sequences of its own
	// last and origin are the sequence of the newest event that is left and was stored at the instant
	// or before, in the stream and in its origin: different ones in a stream with sources. 0: none is
	// left.
	last, origin uint64
	whole        bool // nothing was stored since
}

// historyUpTo finds the end of the history.
func (w *watch) historyUpTo(ctx context.Context, at time.Time) (*history, error) {
	names, err := w.names()
	if err != nil {
		return nil, err
	}
	_, info, err := store.LookUp(ctx, w.js, w.streamName())
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", w.streamName(), err)
	}
	stream := singles{w.js, w.streamName()}
	h := &history{stream: stream, names: names, at: at, bare: w.Reader.HeadersOnly, sourced: len(info.Config.Sources) > 0, whole: !info.State.LastTime.After(at)}
	for low, high := max(info.State.FirstSeq, 1), info.State.LastSeq+1; low < high; {
		middle := low + (high-low)/2
		msg, err := stream.next(ctx, names.Events(), middle)
		switch {
		case err != nil && !errors.Is(err, store.ErrNoMessage):
			return nil, fmt.Errorf("read stream %s: %w", w.streamName(), err)
		case err != nil, msg.Stored.After(at):
			high = middle
		default:
			h.last, h.origin, low = msg.Sequence, h.originOf(msg), msg.Sequence+1
		}
	}
	return h, nil
}

// singles reads messages of a stream one by one, from its leader: a follower, or a mirror, may have less.
type singles struct {
	js     jetstream.JetStream
	stream string
}

// firstTry and longestTry bound how long an answer is waited for before the request is sent again.
const (
	firstTry   = 250 * time.Millisecond
	longestTry = 5 * time.Second
)

// at is the message at a sequence, next the first of a subject from a sequence on. See [store.MessageAt]
// and [store.NextMessage].
func (s singles) at(ctx context.Context, sequence uint64) (*store.Message, error) {
	return s.get(ctx, func(try context.Context) (*store.Message, error) {
		return store.MessageAt(try, s.js, s.stream, sequence)
	})
}

func (s singles) next(ctx context.Context, filter string, from uint64) (*store.Message, error) {
	return s.get(ctx, func(try context.Context) (*store.Message, error) {
		return store.NextMessage(try, s.js, s.stream, filter, from)
	})
}

// get reads until there is an answer, or ctx ends. A request that the server refuses has no answer: then
// the error wraps [appwatch.ErrDenied] and names the subject.
func (s singles) get(ctx context.Context, read func(context.Context) (*store.Message, error)) (*store.Message, error) {
	for wait := firstTry; ; wait = min(2*wait, longestTry) {
		try, cancel := context.WithTimeout(ctx, wait)
		msg, err := read(try)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
			return msg, err
		}
		if refusal := s.js.Conn().LastError(); errors.Is(refusal, nats.ErrPermissionViolation) {
			return nil, fmt.Errorf("%w: %w", appwatch.ErrDenied, refusal)
		}
		if ctx.Err() != nil {
			return nil, err
		}
	}
}

// originOf is the sequence of a message in the stream of origin, 0 if that is not known.
func (h *history) originOf(msg *store.Message) uint64 {
	if !h.sourced {
		return msg.Sequence
	}
	words := strings.Fields(msg.Header.Get(subjects.HeaderStreamSource)) // the stream, the sequence, and more
	if len(words) < 2 {
		return 0
	}
	sequence, err := strconv.ParseUint(words[1], 10, 64)
	if err != nil {
		return 0
	}
	return sequence
}

// covers reports whether the newest state of an app is that of the instant, if no event is left that
// was stored since: one could have been removed.
func (h *history) covers(a *appview.App) bool { return h.whole || a.Sequence <= h.origin }

// before is the state of an app before its first event behind the instant, nil if there was none. The
// event before has it. If that one was removed or is not readable, the event itself has what it led
// to; but where it was stored behind the instant, the state is not known.
func (h *history) before(ctx context.Context, it appwatch.Item) (a *appview.App, known bool) {
	previous := it.PreviousSequence()
	if previous > h.origin {
		return nil, false // removed, and perhaps stored since
	}
	if a := h.read(ctx, it.ID, previous); a != nil {
		return a, true
	}
	if it.Kind == subjects.Created {
		return nil, true // the first event, or after a delete
	}
	a = &appview.App{ID: it.ID, Kind: subjects.Updated, Sequence: previous, Status: it.PreviousStatus()}
	if h.bare {
		return a, true
	}
	old, err := it.Old()
	if err != nil || old == nil {
		return nil, false
	}
	a.Body = func() *appv1.App { return old }
	return a, true
}

// read is an app as of the event with a sequence of the origin, nil if that cannot be read. A stream
// with sources has the events of the origin at sequences that differ by the same number, unless some
// were not copied.
func (h *history) read(ctx context.Context, id subjects.AppID, origin uint64) *appview.App {
	sequence := origin + h.last - h.origin
	if origin == 0 || sequence == 0 || sequence > h.last {
		return nil
	}
	msg, err := h.stream.at(ctx, sequence)
	if err != nil || h.originOf(msg) != origin || msg.Stored.After(h.at) {
		return nil
	}
	of, kind, err := h.names.ParseEvent(msg.Subject)
	if err != nil || of != id {
		return nil
	}
	a := stored(id, kind, origin, msg)
	if h.bare {
		a.Body = nil
	}
	return a
}

// stored is the app as of an event that was read from the stream.
func stored(id subjects.AppID, kind subjects.EventKind, sequence uint64, msg *store.Message) *appview.App {
	a := &appview.App{
		ID: id, Kind: kind, Sequence: sequence, Stored: msg.Stored,
		MessageID: msg.Header.Get(subjects.CEID), Status: msg.Header.Get(subjects.HeaderAppStatus), PreviousStatus: msg.Header.Get(subjects.HeaderPreviousAppStatus),
	}
	a.Time, _ = time.Parse(time.RFC3339Nano, msg.Header.Get(subjects.CETime)) // zero without one
	readVersions(a, msg.Header)
	a.Body = func() *appv1.App {
		event := &appv1.WatchResponse{}
		if appv1.Decode(msg.Data, msg.Header.Get(subjects.CEDataContentType), event) != nil {
			return nil
		}
		if created := event.GetCreateEvent(); created != nil {
			return created.GetApp()
		}
		return event.GetUpdateEvent().GetUpdatedApp()
	}
	return a
}
