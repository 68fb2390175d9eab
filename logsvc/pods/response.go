package pods

import (
	"cmp"
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/logline"
)

const (
	// maxLineBytes is the length at which a line is cut: what Go programs that read lines tend to
	// accept at most.
	maxLineBytes = 128 << 10
	readBytes    = 32 << 10 // the size of a read buffer; a response has two
	untimedBytes = 1 << 10  // how much of a line without a time is kept
)

// errQuiet is the result of a wait for bytes that do not come.
var errQuiet = errors.New("nothing came")

// kubeletError is what a kubelet writes into a response whose status it has sent before.
type kubeletError struct{ text string }

func (e kubeletError) Error() string { return "its kubelet answers: " + e.text }

// response is the response to a request for a log. A goroutine opens and reads it, so that the one that
// uses it can wait for other events, too.
type response struct {
	scanner *logline.Scanner
	cancel  context.CancelFunc
	events  chan event  // closed when the goroutine has ended
	free    chan []byte // buffers to read into
	data    []byte      // of the last event
	bytes   int64
	lines   int64  // with a time
	untimed string // the beginning of the first line without one
	opened  bool
	timer   *time.Timer
}

// event is the first one, of a response whose header came, or bytes. No event comes after an error.
type event struct {
	data []byte
	err  error
}

// openResponse begins a request. The first event is that its header came.
func openResponse(ctx context.Context, open func(context.Context) (io.ReadCloser, error)) *response {
	ctx, cancel := context.WithCancel(ctx)
	r := &response{
		scanner: logline.NewScanner(maxLineBytes + logline.TimeBytes), cancel: cancel,
		events: make(chan event, 3), free: make(chan []byte, 2), timer: time.NewTimer(time.Hour),
	}
	r.free <- make([]byte, readBytes)
	r.free <- make([]byte, readBytes)
	go r.read(ctx, open)
	return r
}

// read never waits for the one that uses the response: there is room for all events.
func (r *response) read(ctx context.Context, open func(context.Context) (io.ReadCloser, error)) {
	defer close(r.events)
	body, err := open(ctx)
	r.events <- event{err: err}
	if err != nil {
		return
	}
	defer body.Close()
	for buf := range r.free {
		n, err := body.Read(buf)
		r.events <- event{buf[:n], err}
		if err != nil {
			return
		}
	}
}

// close ends the request, and returns when its goroutine has ended.
func (r *response) close() {
	r.cancel()
	close(r.free)
	for range r.events {
	}
	r.timer.Stop()
}

// next waits for the next event; there is none after an error. The time that the caller takes between
// two calls does not count. other may be nil; a receive from it ends the wait with errQuiet, too.
func (r *response) next(ctx context.Context, wait time.Duration, other <-chan struct{}) (event, error) {
	if cap(r.data) > 0 {
		r.free <- r.data[:cap(r.data)]
		r.data = nil
	}
	r.timer.Reset(wait)
	select {
	case e := <-r.events:
		r.data, r.bytes = e.data, r.bytes+int64(len(e.data))
		r.opened = r.opened || e.err == nil
		return e, nil
	case <-r.timer.C:
	case <-other:
	case <-ctx.Done():
		return event{}, context.Cause(ctx)
	}
	return event{}, errQuiet
}

// each calls take for every line of the last event that has a time, and returns how many there were. What
// has none is not a line: it is the rest of one whose beginning was not requested.
func (r *response) each(take func(logsvc.Line) error) (lines int, err error) {
	r.scanner.Feed(r.data)
	for r.scanner.Next() {
		line, ok := r.line()
		if !ok {
			r.untimed = cmp.Or(r.untimed, string(line.Text[:min(len(line.Text), untimedBytes)]))
			continue
		}
		lines++
		r.lines++
		if err := take(line); err != nil {
			return lines, err
		}
	}
	return lines, nil
}

// rest returns what comes after the last line end. It may be the beginning of a line, which has a time,
// or the error text of the kubelet.
func (r *response) rest() (line logsvc.Line, found bool, err error) {
	if !r.scanner.Rest() {
		return logsvc.Line{}, false, nil
	}
	if line, found = r.line(); found || partOfTime(line.Text) {
		return line, found, nil
	}
	return logsvc.Line{}, false, kubeletError{string(line.Text)}
}

// line returns the scanner's line and whether it has a time.
func (r *response) line() (line logsvc.Line, timed bool) {
	at, text := logline.Parse(r.scanner.Line())
	cut := r.scanner.Cut()
	if len(text) > maxLineBytes {
		cut += int64(len(text) - maxLineBytes)
		text = text[:maxLineBytes:maxLineBytes]
	}
	return logsvc.Line{Time: at, Text: text, Cut: cut}, !at.IsZero()
}

// partOfTime reports whether a response that broke off inside a time may end with text.
func partOfTime(text []byte) bool {
	return len(text) < logline.TimeBytes && strings.Trim(string(text), "0123456789-+:.TZ") == ""
}
