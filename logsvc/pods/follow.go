package pods

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"time"

	"github.com/appbridge/appbridge/logsvc"
)

const (
	// searchQuiet is how long a follow may be silent before its position is found. All lines that
	// existed have come by then.
	searchQuiet = 500 * time.Millisecond
	// searchTime is how long a follow searches while lines come: longer with each one in a row that does not
	// find its position, so that a slow kubelet can send what it has to.
	searchTime = time.Second
	// A follow that is silent for checkQuiet is compared with the end of the log, and again recheckQuiet
	// later if they differ: a kubelet that finds no end of the file before a rotation stays in the
	// old file for ever.
	checkQuiet   = time.Second
	recheckQuiet = 500 * time.Millisecond
)

// followRead is one request that follows a log. First it finds its place, then it hands on what comes.
type followRead struct {
	t        *tailer
	response *response
	search   *search   // nil: the place is found
	opened   time.Time // when the header came
	// check compares the log's end with the place; nil: it does not run.
	check   *endCheck
	checked bool // they were the same
	differs bool // they were not, the last time
	waited  time.Duration
}

// endCheck is a comparison in another goroutine.
type endCheck struct {
	cancel context.CancelFunc
	done   chan struct{} // closed at its end
	atEnd  bool
	err    error
}

// readFollow follows the log until the response ends. It returns errBehind if it does not find its place,
// and errStuck if the follow stands still where the log goes on.
func (t *tailer) readFollow(ctx context.Context) (pass readResult, err error) {
	began := time.Now()
	// The Sink gets ctx: reading is also cancelled for reasons that do not end the stream.
	reading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t.followed.begin(t.progress.id, cancel)
	defer t.followed.end()
	o, v := readOptions{follow: true}, t.cursor.followView()
	f := &followRead{t: t, response: t.open(reading, o, v)}
	defer f.response.close()
	defer f.endCheck()
	defer func() { pass.opened, pass.bytes, pass.took = f.response.opened, f.response.bytes, time.Since(began) }()
	if t.cursor.place == placeTrail {
		f.search = newSearch(t.cursor.trail.position(), v)
	}
	for {
		e, err := f.next(ctx, reading)
		switch {
		case errors.Is(err, errQuiet):
			continue
		case err != nil:
			return pass, cmp.Or(context.Cause(reading), err)
		case len(e.data) == 0 && e.err == nil: // the header
			f.opened = time.Now()
			if err := t.checkInstance(reading, o); err != nil {
				return pass, cmp.Or(context.Cause(reading), err)
			}
			continue
		}
		if err := t.forward(ctx, f.response, o, &pass, f.take); err != nil {
			return pass, err
		}
		switch {
		case errors.Is(e.err, io.EOF):
			return pass, t.finish(ctx, f.response, o, &pass, f.take)
		case e.err != nil:
			return pass, cmp.Or(context.Cause(reading), e.err)
		}
	}
}

// followView is the view of a follow: a small one, unless it is known not to hold the trail.
func (c *cursor) followView() view {
	switch {
	case c.found.whole:
		return c.found
	case c.place == placeStart:
		return wholeFile
	}
	v := view{tail: firstView}
	for v.tail < maxView && (v.tail <= max(c.found.tail, c.behind) || uint64(v.tail) < c.trail.same+2) {
		v.tail *= widening
	}
	if c.trail.whole && int64(c.trail.added) < v.tail {
		return wholeFile
	}
	return v
}

func (f *followRead) take(line logsvc.Line) error {
	c := f.t.cursor
	switch s := f.search; {
	case s == nil:
		c.add(line)
	case s.take(markOf(line)):
		c.resume(s)
		c.found, c.behind = view{}, 0
		f.search, f.t.astray = nil, 0
	case time.Since(f.opened) > searchTime<<min(f.t.astray, 10):
		f.t.astray++
		return errBehind
	case !s.view.whole && int64(s.seen.added) > s.view.tail, s.view.whole && s.seen.added > c.trail.added:
		return errBehind
	}
	return nil
}

// next waits for the next event, and does what has to be done when none comes.
func (f *followRead) next(ctx, reading context.Context) (event, error) {
	var other <-chan struct{}
	if f.check != nil {
		other = f.check.done
	}
	wait, quiet := f.patience()
	e, err := f.response.next(reading, wait, other)
	if err == nil {
		f.endCheck() // it compares with a place that is left
		f.differs, f.waited = false, 0
		return e, nil
	}
	if errors.Is(err, errQuiet) && f.check != nil {
		return e, f.verdict()
	}
	if errors.Is(err, errQuiet) {
		f.waited += wait
		if err := quiet(ctx, reading); err != nil {
			return e, err
		}
	}
	return e, err
}

// patience returns how long to wait for the next event, and what to do when none comes.
func (f *followRead) patience() (time.Duration, func(ctx, reading context.Context) error) {
	timing, c := f.t.src.timing, f.t.cursor
	known := c.place == placeTrail // the log is known to hold a line
	switch {
	case f.check != nil:
		return math.MaxInt64, nil
	case !f.response.opened:
		limit := timing.silence
		if known {
			limit = min(limit, timing.unanswered<<min(f.t.silent+1, 10))
		}
		if f.waited == 0 {
			return min(timing.unanswered, limit), func(ctx, _ context.Context) error { return f.t.reportOutage(ctx, errLate) }
		}
		return limit, func(context.Context, context.Context) error {
			f.t.silent++
			return errSilent
		}
	case f.search != nil:
		return searchQuiet, func(context.Context, context.Context) error { return errBehind }
	case f.checked:
		return math.MaxInt64, func(context.Context, context.Context) error { return nil }
	case f.differs:
		return recheckQuiet, f.startCheck
	}
	return checkQuiet, f.startCheck
}

func (f *followRead) startCheck(_, reading context.Context) error {
	ctx, cancel := context.WithCancel(reading)
	check := &endCheck{cancel: cancel, done: make(chan struct{})}
	f.check = check
	t, place, want := f.t, f.t.cursor.place, position{}
	if place == placeTrail {
		want = t.cursor.trail.position()
	}
	go func() {
		defer close(check.done)
		if place == placeTrail {
			check.atEnd, check.err = t.atEnd(ctx, readOptions{}, want)
			return
		}
		var text []byte
		text, check.err = t.probe(ctx, readOptions{}, wholeFile)
		check.atEnd = len(text) == 0
	}()
	return nil
}

// endCheck ends a check that runs.
func (f *followRead) endCheck() {
	if f.check != nil {
		f.check.cancel()
		<-f.check.done
		f.check = nil
	}
}

// verdict is called at the end of a check. It returns errBehind at the second difference in a row.
func (f *followRead) verdict() error {
	check := f.check
	f.endCheck()
	switch {
	case check.err != nil: // the next silence brings another one
	case check.atEnd:
		f.checked = true
		f.t.outage.end()
	case f.differs:
		return errStuck
	default:
		f.differs = true
	}
	return errQuiet
}
