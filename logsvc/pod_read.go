package logsvc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/appbridge/appbridge/logsvc/logline"
)

const (
	// readBytes is what is read of a log at once.
	readBytes = 64 << 10
	// handLines is how many lines are handed out at once at most.
	handLines = 512
	// A pass over a log that is longer than this is followed by another one:
	// more may have been written meanwhile, and an API server that loses the
	// kubelet in the middle ends its answer as if the log had ended.
	passTime  = time.Second
	passBytes = 4 << 20
	maxPasses = 5
)

// Why a log cannot be read on, apart from what Kubernetes says.
var (
	errSilent = errors.New("nothing came for too long")
	errMoved  = errors.New("the container was started again meanwhile")
	errStale  = errors.New("the container does not run any more")
)

// sinkError is an error of the Sink: the stream is over.
type sinkError struct{ error }

func (e sinkError) Unwrap() error { return e.error }

// podRead is one request for the log of an instance.
type podRead struct {
	follow, previous bool
	live             bool // what it brings came after the stream began
	ends             bool // a last line without an end counts, for no more of it will come
	final            bool // it counts even if no other request brought the same
}

// podPass is what one request brought.
type podPass struct {
	opened bool
	lines  int // that were handed out
	bytes  int64
	took   time.Duration
	torn   bool   // the last line has no end, counts, and was not handed out yet
	last   []byte // the last line, its time included; nil: there was none, or no whole one
}

// podCursor is the place in a log, and what it takes to read on from there.
type podCursor struct {
	point   resumePoint
	scanner *logline.Scanner
	maxLine int
	buf     []byte
	lines   []Line
	// The last line of the last request when it had no end.
	tornAt   time.Time
	tornSize int64
}

func newPodCursor(maxLine int) *podCursor {
	return &podCursor{
		scanner: logline.NewScanner(maxLine + logline.TimeBytes),
		maxLine: maxLine,
		buf:     make([]byte, readBytes),
		lines:   make([]Line, 0, handLines),
	}
}

// read opens the log and hands out what is new in it, to its end: nil when that
// came cleanly, as it may for a broken answer too. An error of the Sink is a
// sinkError.
func (r *podReader) read(ctx context.Context, o podRead) (pass podPass, err error) {
	began := time.Now()
	defer func() { pass.took = time.Since(began) }()
	// The Sink is not given this one, which ends for reasons that are not its own.
	reading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if o.follow {
		// A log that is followed may be silent as long as it likes.
		r.followed.begin(r.progress.id, cancel)
		defer r.followed.end()
	}
	dog := newWatchdog(r.k.pace.silence, o.follow, cancel)
	defer dog.stop()

	opts := &corev1.PodLogOptions{Container: r.target.container, Follow: o.follow, Previous: o.previous, Timestamps: true}
	r.cursor.point.options(opts)
	// How and when to try again is for the caller to say.
	body, err := r.k.logs.Pods(r.target.pod.Namespace).GetLogs(r.target.pod.Name, opts).MaxRetries(0).Stream(reading)
	if err != nil {
		return pass, cmp.Or(cut(reading), fmt.Errorf("open the log: %w", err))
	}
	defer body.Close()
	if err := r.confirm(reading, o); err != nil {
		return pass, cmp.Or(cut(reading), err)
	}
	pass.opened = true
	r.outage.end()

	c := r.cursor
	c.scanner.Reset()
	c.point.begin()
	for {
		dog.start()
		n, err := body.Read(c.buf)
		dog.stop()
		pass.bytes += int64(n)
		c.scanner.Feed(c.buf[:n])
		lines := 0
		for ; c.scanner.Next(); lines++ {
			c.add()
			if c.point.lost {
				if err := r.doubt(reading, o); err != nil {
					return pass, cmp.Or(cut(reading), err)
				}
				c.point.accept()
				c.add()
			}
			if len(c.lines) == cap(c.lines) {
				if err := r.hand(ctx, o, &pass); err != nil {
					return pass, err
				}
			}
		}
		if err := r.hand(ctx, o, &pass); err != nil {
			return pass, err
		}
		switch {
		case err == nil:
			if err := r.k.throttle.wait(reading, r.q.App.Project, n, lines); err != nil {
				return pass, cmp.Or(cut(reading), err)
			}
		case errors.Is(err, io.EOF):
			return pass, r.finish(ctx, o, &pass)
		default:
			return pass, cmp.Or(cut(reading), fmt.Errorf("read the log: %w", err))
		}
	}
}

// cut is why reading was given up, nil when it was not.
func cut(reading context.Context) error {
	if reading.Err() == nil {
		return nil
	}
	return context.Cause(reading)
}

// confirm makes sure that the log just opened is that of the instance that is
// meant: only the name of its pod could be asked for.
func (r *podReader) confirm(ctx context.Context, o podRead) error {
	state, err := r.state(ctx)
	if err != nil {
		return err
	}
	id := state.current
	if o.previous {
		id = state.last
	}
	if id != r.progress.id {
		return errMoved
	}
	return nil
}

// doubt makes sure once more that the log is the right one, when it does not hold
// what was read last. A rotation does that, and so does a kubelet that started the
// container again and has not reported it yet.
func (r *podReader) doubt(ctx context.Context, o podRead) error {
	limit := time.NewTimer(r.k.pace.report)
	defer limit.Stop()
	again := time.NewTicker(r.k.pace.report / 10)
	defer again.Stop()
	for {
		if err := r.confirm(ctx, o); err != nil {
			return err
		}
		select {
		case <-again.C:
		case <-limit.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// add takes the scanner's line if it is new.
func (c *podCursor) add() {
	at, text := logline.Parse(c.scanner.Line())
	if !c.point.take(at, text) {
		return
	}
	dropped := c.scanner.Cut()
	if len(text) > c.maxLine {
		dropped += int64(len(text) - c.maxLine)
		text = text[:c.maxLine:c.maxLine]
	}
	c.lines = append(c.lines, Line{Time: at, Text: text, Cut: dropped})
}

// hand hands out the lines that were taken.
func (r *podReader) hand(ctx context.Context, o podRead, pass *podPass) error {
	c := r.cursor
	if len(c.lines) == 0 {
		return nil
	}
	pass.lines += len(c.lines)
	err := r.out.Lines(ctx, r.target.pod.Name, c.lines, o.live)
	c.lines = c.lines[:0]
	if err != nil {
		return sinkError{err}
	}
	return nil
}

// atEnd tells whether the last line of a pass is still the last of the log. It
// costs one line, where reading on from the resume point may bring two seconds of
// a log again. What cannot be told is not so.
func (r *podReader) atEnd(ctx context.Context, o podRead, pass podPass) bool {
	if len(pass.last) == 0 {
		return false
	}
	one, most := int64(1), int64(len(pass.last)+2)
	opts := &corev1.PodLogOptions{Container: r.target.container, Previous: o.previous, Timestamps: true, TailLines: &one, LimitBytes: &most}
	var text []byte
	err := r.k.call(ctx, r.q.App.Project, func(ctx context.Context) (err error) {
		text, err = r.k.logs.Pods(r.target.pod.Namespace).GetLogs(r.target.pod.Name, opts).MaxRetries(0).DoRaw(ctx)
		return err
	})
	line, ended := bytes.CutSuffix(text, []byte("\n"))
	return err == nil && ended && bytes.Equal(line, pass.last)
}

// finish decides what becomes of a last line without an end. In a log that goes
// on, all of it will be read another time. Where a log ends, it is a line once a
// second request brought the same, because an answer may break off anywhere.
func (r *podReader) finish(ctx context.Context, o podRead, pass *podPass) error {
	c := r.cursor
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
	return r.hand(ctx, o, pass)
}
