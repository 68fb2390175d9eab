package pods

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/logline"
)

const (
	// maxLineBytes is the length at which a line is cut: what Go programs that read lines tend to
	// accept at most.
	maxLineBytes = 128 << 10
	readBytes    = 64 << 10 // the size of the read buffer
	flushLines   = 512      // how many lines the Sink gets at a time
	// A request that takes longer than passTime or returns more than passBytes is followed by
	// another one: more may have been written meanwhile, and an API server that loses the
	// connection to the kubelet ends its response as if the log had ended.
	passTime  = time.Second
	passBytes = 4 << 20
	maxPasses = 5
)

// The errors of a read, other than those of the API server.
var (
	errLate   = errors.New("its node did not answer in time")
	errSilent = errors.New("nothing came for too long")
	errMoved  = errors.New("the container was started again meanwhile")
	errStale  = errors.New("the container does not run any more")
)

// sinkError is an error of the Sink, which ends the stream.
type sinkError struct{ error }

func (e sinkError) Unwrap() error { return e.error }

// openError is the error of a request that opens a log, and not of one that reads the pod.
type openError struct{ error }

func (e openError) Unwrap() error { return e.error }

// readOptions is one request for the log of an instance.
type readOptions struct {
	follow, previous bool
	live             bool // the lines are written after the stream began
	ends             bool // the container has ended: a last line without a line end is a line
	final            bool // it is a line even if no other request returned the same
}

// readResult is the result of one request.
type readResult struct {
	opened bool
	lines  int // lines that the Sink got
	bytes  int64
	took   time.Duration
	torn   bool   // the last line has no line end, and the Sink did not get it yet
	last   []byte // the last line with its time; nil: there is none with a line end
}

// cursor is the position in a log and the buffers for reading on from there.
type cursor struct {
	point   resumePoint
	scanner *logline.Scanner
	buf     []byte
	lines   []logsvc.Line
	// The last line of the last request if it had no line end.
	tornAt   time.Time
	tornSize int64
}

func newCursor(point resumePoint) *cursor {
	scanner := logline.NewScanner(maxLineBytes + logline.TimeBytes)
	return &cursor{point: point, scanner: scanner, buf: make([]byte, readBytes), lines: make([]logsvc.Line, 0, flushLines)}
}

// read requests the log and hands its new lines to the Sink. It returns nil at the end of the
// response, which may also be a connection that broke. An error of the Sink is a sinkError.
func (t *tailer) read(ctx context.Context, o readOptions) (pass readResult, err error) {
	began := time.Now()
	defer func() { pass.took = time.Since(began) }()
	// The Sink gets ctx: reading is also cancelled for reasons that do not end the stream.
	reading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if o.follow {
		t.followed.begin(t.progress.id, cancel)
		defer t.followed.end()
	}
	// The timeout runs only during reads: the time that the reader of the stream takes does not
	// count.
	silence := t.src.timing.silence
	if o.follow {
		silence = math.MaxInt64
	}
	timeout := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer timeout.Stop()

	opts := &corev1.PodLogOptions{Container: t.target.container, Follow: o.follow, Previous: o.previous, Timestamps: true}
	t.cursor.point.options(opts)
	// The caller retries.
	body, err := t.src.logs.Pods(t.target.pod.Namespace).GetLogs(t.target.pod.Name, opts).MaxRetries(0).Stream(reading)
	if err != nil {
		return pass, cmp.Or(context.Cause(reading), error(openError{fmt.Errorf("open the log: %w", err)}))
	}
	defer body.Close()
	if err := t.checkInstance(reading, o); err != nil {
		return pass, cmp.Or(context.Cause(reading), err)
	}
	pass.opened = true
	t.outage.end()

	c := t.cursor
	c.scanner.Reset()
	c.point.begin()
	for {
		timeout.Reset(silence)
		n, err := body.Read(c.buf)
		timeout.Stop()
		pass.bytes += int64(n)
		c.scanner.Feed(c.buf[:n])
		lines := 0
		for ; c.scanner.Next(); lines++ {
			c.add()
			if c.point.lost {
				if err := t.recheck(reading, o); err != nil {
					return pass, cmp.Or(context.Cause(reading), err)
				}
				c.point.accept()
				c.add()
			}
			if len(c.lines) == cap(c.lines) {
				if err := t.flush(ctx, o, &pass); err != nil {
					return pass, err
				}
			}
		}
		if err := t.flush(ctx, o, &pass); err != nil {
			return pass, err
		}
		switch {
		case err == nil:
			if err := t.src.throttle.wait(reading, t.q.App.Project, n, lines); err != nil {
				return pass, cmp.Or(context.Cause(reading), err)
			}
		case errors.Is(err, io.EOF):
			return pass, t.finish(ctx, o, &pass)
		default:
			return pass, cmp.Or(context.Cause(reading), fmt.Errorf("read the log: %w", err))
		}
	}
}

// checkInstance checks that the open log is that of the right instance: a request names only the
// pod.
func (t *tailer) checkInstance(ctx context.Context, o readOptions) error {
	state, err := t.state(ctx)
	if err != nil {
		return err
	}
	if state.instance(o.previous) != t.progress.id {
		return errMoved
	}
	return nil
}

// recheck confirms the instance for some time, when the log does not have the line that was read
// last. Either it was rotated, or the kubelet has restarted the container and not reported it yet.
func (t *tailer) recheck(ctx context.Context, o readOptions) error {
	limit, again := time.After(t.src.timing.report), time.Tick(t.src.timing.report/10)
	for {
		if err := t.checkInstance(ctx, o); err != nil {
			return err
		}
		select {
		case <-again:
		case <-limit:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *cursor) add() {
	at, text := logline.Parse(c.scanner.Line())
	if !c.point.take(at, text) {
		return
	}
	dropped := c.scanner.Cut()
	if len(text) > maxLineBytes {
		dropped += int64(len(text) - maxLineBytes)
		text = text[:maxLineBytes:maxLineBytes]
	}
	c.lines = append(c.lines, logsvc.Line{Time: at, Text: text, Cut: dropped})
}

func (t *tailer) flush(ctx context.Context, o readOptions, pass *readResult) error {
	c := t.cursor
	if len(c.lines) == 0 {
		return nil
	}
	pass.lines += len(c.lines)
	err := t.out.Lines(ctx, t.target.pod.Name, c.lines, o.live)
	c.lines = c.lines[:0]
	if err != nil {
		return sinkError{err}
	}
	return nil
}

// atEnd reports whether the last line of a pass is still the last of the log. It reads one line,
// where a request from the resume point may read two seconds of the log again. After an error it
// returns false.
func (t *tailer) atEnd(ctx context.Context, o readOptions, pass readResult) bool {
	if len(pass.last) == 0 {
		return false
	}
	one, most := int64(1), int64(len(pass.last)+2)
	opts := &corev1.PodLogOptions{Container: t.target.container, Previous: o.previous, Timestamps: true, TailLines: &one, LimitBytes: &most}
	var text []byte
	err := t.src.call(ctx, t.q.App.Project, func(ctx context.Context) (err error) {
		text, err = t.src.logs.Pods(t.target.pod.Namespace).GetLogs(t.target.pod.Name, opts).MaxRetries(0).DoRaw(ctx)
		return err
	})
	line, ended := bytes.CutSuffix(text, []byte("\n"))
	return err == nil && ended && bytes.Equal(line, pass.last)
}

// finish handles a last line without a line end. While the container runs, the next request reads
// it as a whole. When the container has ended it is a line, as soon as a second request returns
// the same: a response may break off anywhere.
func (t *tailer) finish(ctx context.Context, o readOptions, pass *readResult) error {
	c := t.cursor
	if line := c.scanner.Line(); c.scanner.Cut() == 0 {
		pass.last = bytes.Clone(line)
	}
	if !c.scanner.Rest() || !o.ends {
		c.tornSize = 0
		return nil
	}
	pass.last = nil
	at, _ := logline.Parse(c.scanner.Line())
	size := int64(len(c.scanner.Line())) + c.scanner.Cut()
	if !o.final && (c.tornSize != size || !c.tornAt.Equal(at)) {
		c.tornAt, c.tornSize = at, size
		pass.torn = true
		return nil
	}
	c.tornSize = 0
	c.add()
	return t.flush(ctx, o, pass)
}
