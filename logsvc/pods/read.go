package pods

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/logline"
)

const (
	flushLines = 512 // how many lines the Sink gets at a time
	// A request that takes longer than passTime or returns more than passBytes is followed by
	// another one: more may have been written meanwhile, and an API server that loses the
	// connection to the kubelet ends its response as if the log had ended.
	passTime  = time.Second
	passBytes = 4 << 20
	maxPasses = 5
	// probeBytes are enough of a log's first line to know it again: its time and some text.
	probeBytes = 64
)

// The errors of a read, other than those of the API server.
var (
	errNoAnswer = errors.New("the connection ended without an answer")
	errLate     = errors.New("its node did not answer in time")
	errSilent   = errors.New("nothing came for too long")
	errMoved    = errors.New("the container was started again meanwhile")
	errStale    = errors.New("the container does not run any more")
	errBehind   = errors.New("the log does not hold the last line where it was expected")
	errStuck    = errors.New("the follow stands still where the log goes on")
)

// sinkError is an error of the Sink, which ends the stream.
type sinkError struct{ error }

func (e sinkError) Unwrap() error { return e.error }

// openError is the error of a request that opens a log, and not of one that reads the pod.
type openError struct{ error }

func (e openError) Unwrap() error { return e.error }

// readOptions select the log of an instance.
type readOptions struct {
	follow, previous bool
	ends             bool // the container has ended: a last line without a line end is a line
	final            bool // it is a line even if no other request returned the same
	stuck            bool // a follow stands still: the instance runs, and its file was likely rotated
}

// view is the part of a log's file that is requested.
type view struct {
	tail  int64 // the last records, of which a long line has several; negative: all
	whole bool  // it begins with the first line of the file
	// since and age exclude older lines. Zero: neither does. The age of a line is that when the stream was
	// opened, by the clock of the node.
	since  time.Time
	age    time.Duration
	opened time.Time
}

// wholeFile is all of the current file: the kubelet reads no other.
var wholeFile = view{tail: -1, whole: true}

func (v view) filtered() bool { return !v.since.IsZero() || v.age > 0 }

func (v view) options(container string, o readOptions) *corev1.PodLogOptions {
	opts := &corev1.PodLogOptions{Container: container, Follow: o.follow, Previous: o.previous, Timestamps: true}
	if v.tail >= 0 {
		opts.TailLines = &v.tail
	}
	if !v.since.IsZero() {
		opts.SinceTime = &metav1.Time{Time: v.since}
	}
	if v.age > 0 {
		seconds := int64((v.age+time.Second-1)/time.Second + time.Since(v.opened)/time.Second)
		opts.SinceSeconds = &seconds
	}
	return opts
}

// readResult is the result of one request.
type readResult struct {
	opened bool
	lines  int // lines that the Sink got
	bytes  int64
	took   time.Duration
	torn   bool // the last line has no line end, and the Sink did not get it yet
}

// place is where a tailer reads on.
type place int

const (
	placeQuery place = iota // nothing was read yet: where the query begins
	placeStart              // before the first line of the log
	placeTrail              // behind the trail
)

// cursor is the place in a log, and the lines for the Sink.
type cursor struct {
	place place
	trail trail
	// found is the view in which the last search found the trail, and behind how many lines came after
	// it. A follow that finds it resets both.
	found  view
	behind int64
	// doubtful: the trail may be that of another instance.
	doubtful bool
	// sent is how many lines behind the place the reader has already.
	sent  int
	lines []logsvc.Line
	// positions: the Sink gets places. placed: it has one of this log. With the first lines it also gets
	// the place behind the first one of them.
	positions, placed bool
	first             position
	// The last line of the last request if it had no line end.
	torn mark
}

func newCursor(positions bool) *cursor {
	return &cursor{lines: make([]logsvc.Line, 0, flushLines), positions: positions}
}

// start puts the cursor before the first line of a log.
func (c *cursor) start() {
	c.place, c.trail, c.doubtful, c.sent = placeStart, wholeTrail(), false, 0
	c.found, c.behind = view{}, 0
	c.placed = false
}

// add adds a line for the Sink.
func (c *cursor) add(line logsvc.Line) {
	c.trail.add(markOf(line))
	c.place = placeTrail
	if c.sent > 0 {
		c.sent--
		return
	}
	if c.positions && !c.placed && len(c.lines) == 0 {
		c.first = c.trail.position()
	}
	c.lines = append(c.lines, line)
}

// open requests a log.
func (t *tailer) open(ctx context.Context, o readOptions, v view) *response {
	opts := v.options(t.target.container, o)
	return openResponse(ctx, func(ctx context.Context) (io.ReadCloser, error) { return t.stream(ctx, opts) })
}

func (t *tailer) stream(ctx context.Context, opts *corev1.PodLogOptions) (io.ReadCloser, error) {
	// The caller retries.
	body, err := t.src.logs.Pods(t.target.pod.Namespace).GetLogs(t.target.pod.Name, opts).MaxRetries(0).Stream(ctx)
	if errors.Is(err, io.EOF) { // which is not the end of the log
		err = errNoAnswer
	}
	if err != nil {
		return nil, openError{fmt.Errorf("open the log: %w", err)}
	}
	return body, nil
}

// read requests a log that is not followed, and has take add its lines for the Sink. It returns nil at
// the end of the response, which may also be a connection that broke. An error of the Sink is a
// sinkError.
func (t *tailer) read(ctx context.Context, o readOptions, v view, take func(logsvc.Line) error) (pass readResult, err error) {
	began := time.Now()
	r := t.open(ctx, o, v)
	defer r.close()
	defer func() { pass.opened, pass.bytes, pass.took = r.opened, r.bytes, time.Since(began) }()
	for first := true; ; first = false {
		e, err := t.await(ctx, r)
		if err != nil {
			return pass, err
		}
		if first && e.err == nil {
			e.err = t.checkInstance(ctx, o)
		}
		if err := t.forward(ctx, r, o, &pass, take); err != nil {
			return pass, err
		}
		switch {
		case errors.Is(e.err, io.EOF):
			return pass, t.finish(ctx, r, o, &pass, take)
		case e.err != nil:
			return pass, cmp.Or(context.Cause(ctx), e.err)
		}
	}
}

// scan requests a log that is not followed, and has take called for each line. It may run while another
// goroutine reads the log.
func (t *tailer) scan(ctx context.Context, o readOptions, v view, take func(logsvc.Line) error) error {
	r := t.open(ctx, o, v)
	defer r.close()
	for {
		e, err := r.next(ctx, t.src.timing.silence, nil)
		if err != nil {
			return err
		}
		lines, err := r.each(take)
		switch {
		case err != nil:
			return err
		case errors.Is(e.err, io.EOF):
			_, _, err := r.rest()
			return err
		case e.err != nil:
			return e.err
		}
		if err := t.src.throttle.wait(ctx, t.q.App.Project, len(e.data), lines); err != nil {
			return err
		}
	}
}

// await waits for the next event of a response that is not followed.
func (t *tailer) await(ctx context.Context, r *response) (event, error) {
	wait := t.src.timing.silence
	if r.bytes == 0 && t.src.timing.unanswered < wait {
		e, err := r.next(ctx, t.src.timing.unanswered, nil)
		if !errors.Is(err, errQuiet) {
			return e, err
		}
		if err := t.reportOutage(ctx, errLate); err != nil {
			return event{}, err
		}
		wait -= t.src.timing.unanswered
	}
	e, err := r.next(ctx, wait, nil)
	if errors.Is(err, errQuiet) {
		err = errSilent
	}
	return e, err
}

// forward hands the lines of the last event to take, then those that it adds to the Sink.
func (t *tailer) forward(ctx context.Context, r *response, o readOptions, pass *readResult, take func(logsvc.Line) error) error {
	c := t.cursor
	lines, err := r.each(func(line logsvc.Line) error {
		if err := take(line); err != nil {
			return err
		}
		if len(c.lines) < flushLines {
			return nil
		}
		return t.flush(ctx, o, pass)
	})
	if err != nil {
		return err
	}
	if lines > 0 {
		t.silent = 0
		if o.follow {
			t.outage.end()
		}
	}
	if err := t.flush(ctx, o, pass); err != nil {
		return err
	}
	if o.follow {
		// It never waits: a kubelet whose reader waits rotates the log in silence.
		t.src.throttle.spend(len(r.data), lines)
		return nil
	}
	return t.src.throttle.wait(ctx, t.q.App.Project, len(r.data), lines)
}

func (t *tailer) flush(ctx context.Context, o readOptions, pass *readResult) error {
	c := t.cursor
	if len(c.lines) == 0 {
		return nil
	}
	// Without lines for the Sink a log may break off at the same place again and again.
	t.outage.end()
	pass.lines += len(c.lines)
	lines := c.lines
	c.lines = c.lines[:0]
	if c.positions && !c.placed && len(lines) > 1 {
		if err := t.hand(ctx, lines[:1], o.follow, t.placeAt(&c.first)); err != nil {
			return err
		}
		lines = lines[1:]
	}
	return t.hand(ctx, lines, o.follow, t.placeNow())
}

// finish handles the end of a response. A last line without a line end is read as a whole by the next
// request while the container runs. When the container has ended it is a line, as soon as a second
// request returns the same: a response may break off anywhere.
func (t *tailer) finish(ctx context.Context, r *response, o readOptions, pass *readResult, take func(logsvc.Line) error) error {
	c := t.cursor
	line, found, err := r.rest()
	if err == nil && r.untimed != "" && r.lines == 0 {
		err = t.checkText(ctx, r, o)
	}
	if err != nil {
		return err
	}
	t.outage.end()
	if !found || !o.ends {
		c.torn = mark{}
		return nil
	}
	if m := markOf(line); !o.final && c.torn != m {
		c.torn = m
		pass.torn = true
		return nil
	}
	c.torn = mark{}
	if err := take(line); err != nil {
		return err
	}
	return t.flush(ctx, o, pass)
}

// checkText is called for a response without a line that has a time. Where the log has one, it is the rest
// of a line, else the text of a kubelet.
func (t *tailer) checkText(ctx context.Context, r *response, o readOptions) error {
	_, err := t.probe(ctx, o, wholeFile)
	if errors.As(err, new(kubeletError)) {
		return kubeletError{r.untimed}
	}
	return err
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

// probe returns the first bytes of a view. It returns none and no error if the log is empty.
func (t *tailer) probe(ctx context.Context, o readOptions, v view) (text []byte, err error) {
	opts, most := v.options(t.target.container, readOptions{previous: o.previous}), int64(probeBytes)
	opts.LimitBytes = &most
	// Its node may hang: it takes no place from the requests that the API server answers itself.
	ctx, cancel := t.src.bounded(ctx)
	defer cancel()
	body, err := t.stream(ctx, opts)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	// Not every kubelet knows the limit. To its end, so that the connection is used again.
	if text, err = io.ReadAll(io.LimitReader(body, most+1)); err != nil {
		return nil, openError{fmt.Errorf("open the log: %w", err)}
	}
	if len(text) > 0 && timeOf(text).IsZero() && !partOfTime(text) {
		return nil, kubeletError{string(text)}
	}
	return text, nil
}

// sameStart reports whether two responses begin alike, as far as both are known.
func sameStart(a, b []byte) bool {
	n := min(len(a), len(b), probeBytes)
	return n > 0 && bytes.Equal(a[:n], b[:n])
}

// timeOf returns the time at the beginning of a response, zero if there is none.
func timeOf(text []byte) time.Time {
	at, _ := logline.Parse(text)
	return at
}

// widest returns the largest view that the kubelet can read, where its response to v is an error: it
// reads none that begins with a record whose beginning is in another file. cause is that error.
func (t *tailer) widest(ctx context.Context, o readOptions, v view, cause error) (view, error) {
	readable := func(records int64) (bool, error) {
		v.tail = records
		_, err := t.probe(ctx, o, v)
		if errors.As(err, new(kubeletError)) {
			return false, nil
		}
		return err == nil, err
	}
	low, high, found := int64(0), v.tail, v.tail >= 0
	if !found {
		high = firstView
	}
	for low+1 < high {
		next := (low + high) / 2
		if !found {
			next = high
		}
		ok, err := readable(next)
		switch {
		case err != nil:
			return view{}, err
		case !ok:
			high, found = next, true
		case found:
			low = next
		case next < maxView:
			low, high = next, next*widening
		default:
			high = low + 1 // it can be read by now
		}
	}
	if low == 0 {
		return view{}, cause
	}
	v.tail, v.whole = low, true
	return v, nil
}
