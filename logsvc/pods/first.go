package pods

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/appbridge/appbridge/logsvc"
)

// endOnly is the number of last lines where only the end of a log is wanted.
const endOnly = -1

const (
	// heldBytes is how much of the last lines is kept until it is known which of them are wanted. A line takes
	// lineBytes beside its text.
	heldBytes = 128 << 10
	lineBytes = 64
	// lastRecords is how many records more than lines are read, so that the place before the lines is known.
	lastRecords = 16
)

// readFirst reads the lines that exist, as far as the query wants them.
func (t *tailer) readFirst(ctx context.Context, o readOptions) (readResult, error) {
	c, v := t.cursor, view{tail: -1, since: t.q.Since, age: t.q.Age, opened: t.opened}
	pass, err := t.readWanted(ctx, o, v)
	switch {
	case err != nil || !t.following || !v.filtered():
		return pass, err
	case c.place != placeQuery:
		return pass, t.anchor(ctx, o)
	}
	// No line is late enough: a follow begins at the end of the log, unless one comes before that is found.
	end, err := t.readLast(ctx, o, view{}, endOnly)
	if err != nil || c.place == placeQuery {
		return end, err
	}
	last := c.trail
	c.place = placeQuery
	switch pass, err = t.readWanted(ctx, o, v); {
	case err != nil:
		return pass, err
	case c.place != placeQuery:
		return pass, t.anchor(ctx, o)
	}
	c.place, c.trail = placeTrail, last
	return end, nil
}

// anchor replaces the trail of a filter, which has only lines of the last time, by that of all lines up to there.
// The place is the last one in the log that matches: what was read ended there just now.
func (t *tailer) anchor(ctx context.Context, o readOptions) error {
	c, v := t.cursor, view{tail: firstView}
	s, found := newSearch(c.trail.position(), v), trail{}
	err := t.scan(ctx, readOptions{previous: o.previous}, v, func(line logsvc.Line) error {
		if s.found = false; s.take(markOf(line)) {
			found = s.seen
		}
		return nil
	})
	switch {
	case errors.As(err, new(kubeletError)):
		return nil
	case err == nil && found.added > 1:
		found.keep(found.added - 1) // the first one may be a part of a line
		c.trail = found
	}
	return err
}

func (t *tailer) readWanted(ctx context.Context, o readOptions, v view) (readResult, error) {
	if t.q.Tail >= 0 {
		return t.readLast(ctx, o, v, t.q.Tail)
	}
	return t.readEvery(ctx, o, v)
}

// every returns the view with all lines that it does not exclude as too old.
func (v view) every() view {
	if !v.whole {
		v.tail, v.whole = -1, !v.filtered()
	}
	return v
}

// readEvery reads all lines of such a view.
func (t *tailer) readEvery(ctx context.Context, o readOptions, v view) (readResult, error) {
	if !v.filtered() {
		t.cursor.start()
		return t.readStart(ctx, o)
	}
	t.cursor.trail = trail{filtered: true}
	return t.read(ctx, o, v, func(line logsvc.Line) error {
		if !line.Time.Before(t.q.Since) {
			t.cursor.add(line)
		}
		return nil
	})
}

// readStart reads the log from its first line.
func (t *tailer) readStart(ctx context.Context, o readOptions) (readResult, error) {
	v := wholeFile
	take := func(line logsvc.Line) error {
		t.cursor.add(line)
		return nil
	}
	pass, err := t.read(ctx, o, v, take)
	if t.cursor.place != placeStart || !errors.As(err, new(kubeletError)) {
		return pass, err
	}
	if v, err = t.widest(ctx, o, v, err); err != nil {
		return pass, err
	}
	return t.read(ctx, o, v, take)
}

// readLast reads the last n lines of a view, and puts the cursor at the end of the log. The kubelet
// counts records, of which a long line has several, and a view may begin inside a line: so n lines need
// n+1 records or more. For a follow a few more lines are read, so that their end can be found again. Lines that
// take too much memory are counted, and then read behind a place before them. With endOnly it adds no line for
// the Sink.
func (t *tailer) readLast(ctx context.Context, o readOptions, v view, n int64) (readResult, error) {
	v.tail = n + lastRecords
	if t.q.Positions || t.following && n < trailLines {
		v.tail = max(firstView, n+trailLines)
	}
	for large := holdLarge; ; {
		l := &lastLines{t: t, o: o, v: v, n: n, large: large, begins: v.whole, whole: v.whole}
		l.with = trail{whole: v.whole, filtered: v.filtered()}
		l.without = trail{before: 1, filtered: v.filtered()}
		l.count.trail = trail{before: 2, filtered: v.filtered()}
		if v.whole || v.tail < 0 {
			l.count.trail.before = 0
		}
		pass, err := t.read(ctx, o, v, func(line logsvc.Line) error { return l.take(ctx, line) })
		if err == nil && !pass.torn { // else the next request counts the torn line among the last ones
			err = l.end(ctx)
		}
		switch {
		case errors.Is(err, errHeld):
			large = passLarge
			if !v.whole || n < v.tail {
				v.tail, v.whole = n, false
			}
		case errors.Is(err, errPart):
			large, v.tail = countLarge, n+lastRecords
		case errors.Is(err, errCounted):
			if at, skip := l.count.before(n); at != nil {
				t.cursor.place, t.cursor.trail, t.cursor.sent = placeTrail, trailAt(*at), skip
				return t.readBehind(ctx, o, v.tail)
			}
			if err := l.learn(ctx); err != nil {
				return pass, err
			}
			switch {
			case !l.whole && v.tail > 0 && v.tail < maxView:
				v.tail *= widening
			case l.count.lines > n:
				v = v.every()
			default:
				return t.readEvery(ctx, o, v.every())
			}
		case errors.Is(err, errNarrow):
			large, v.tail = countLarge, v.tail*widening
		case errors.As(err, new(kubeletError)) && l.seen == 0 && !v.whole:
			if v, err = t.widest(ctx, o, v, err); err != nil {
				return pass, err
			}
		case err != nil:
			return pass, err
		default:
			err = t.flush(ctx, o, &pass)
			return pass, err
		}
	}
}

// The results of a read whose lines take too much memory, of one of so many records as lines are wanted that is
// not all of the log, of one that has counted the lines instead, and of a view that holds too few.
var (
	errHeld    = errors.New("the lines take too much memory")
	errPart    = errors.New("the view does not begin the log")
	errCounted = errors.New("the lines are counted")
	errNarrow  = errors.New("the view holds too few lines")
)

// lineCount counts lines, and keeps some places of which the first is before the last n lines.
type lineCount struct {
	lines  int64
	trail  trail
	places []countedPlace
}

type countedPlace struct {
	lines int64 // up to there
	at    position
}

func (c *lineCount) add(m mark, n int64) {
	c.trail.add(m)
	c.lines++
	if last := len(c.places) - 1; c.trail.begun && (last < 0 || c.lines-c.places[last].lines > n/16) {
		c.places = append(c.places, countedPlace{c.lines, c.trail.position()})
	}
	for len(c.places) > 1 && c.places[1].lines <= c.lines-n {
		c.places = c.places[1:]
	}
}

// before returns a place and the number of lines between it and the last n lines, nil if it has none.
func (c *lineCount) before(n int64) (at *position, skip int) {
	if len(c.places) == 0 || c.places[0].lines > c.lines-n {
		return nil, 0
	}
	return &c.places[0].at, int(c.lines - n - c.places[0].lines)
}

// large is what to do with last lines that take more than heldBytes.
type large int

const (
	holdLarge  large = iota // end with errHeld: the view was read for few
	passLarge               // the view has n records: pass them on if it begins the log, else end with errPart
	countLarge              // count them
)

// lastLines takes the lines of a view, and adds the last ones for the Sink: those of the query, and for
// a follow all that were written since it was opened.
type lastLines struct {
	t     *tailer
	o     readOptions
	v     view
	n     int64
	large large

	seen  int64 // lines of the response
	first mark  // the first of them
	// head is how many lines at the beginning of the response have one time, and last is the number of
	// the first line of those with the last time.
	head, last int64
	lastTime   time.Time
	held       []logsvc.Line
	bytes      int
	begins     bool // the first line of the response is a line, and not a part of one
	whole      bool // no line comes before it: it begins the file, or is the first of a filter
	wanted     bool // the first line of the response is late enough
	passed     bool // lines are not held any more
	ended      bool // no line comes any more
	counted    bool // lines are only counted: the last n take too much memory
	count      lineCount
	// The lines before those that are held. with has the first line of the response, without does not.
	with, without trail
}

func (l *lastLines) take(ctx context.Context, line logsvc.Line) error {
	if l.seen++; l.seen == 1 {
		l.first = markOf(line)
	}
	if l.seen == 1 || !line.Time.Equal(l.lastTime) {
		l.last, l.lastTime = l.seen, line.Time
	}
	if l.last == 1 {
		l.head = l.seen
	}
	if line.Time.Before(l.v.since) {
		return nil
	}
	if !l.passed && l.t.following && l.n != endOnly && l.isNew(line.Time) {
		if err := l.endOld(ctx); err != nil {
			return err
		}
	}
	if !l.passed && l.large == countLarge && l.n > 0 {
		l.count.add(markOf(line), l.n)
	}
	switch {
	case l.counted:
	case !l.passed:
		l.wanted = l.wanted || l.seen == 1
		return l.hold(ctx, line)
	case l.seen > 1 || l.begins:
		l.t.cursor.add(line)
	}
	return nil
}

// isNew reports whether a line was written since the stream was opened. The time is that of its node: a
// time that has not come yet shows that its clock is wrong.
func (l *lastLines) isNew(at time.Time) bool {
	return !at.Before(l.t.opened) && !at.After(time.Now())
}

// endOld is called at the first line that is new: all of those before it are known, unless the log has grown by
// more than the view.
func (l *lastLines) endOld(ctx context.Context) error {
	if l.counted {
		return errCounted
	}
	if l.seen <= l.n+1 && l.v.tail < maxView {
		if err := l.learn(ctx); err != nil {
			return err
		}
		if !l.whole {
			return errNarrow
		}
	}
	return l.pass(ctx)
}

func (l *lastLines) hold(ctx context.Context, line logsvc.Line) error {
	if l.n <= 0 {
		l.leave(line)
		return nil
	}
	if int64(len(l.held)) == l.n {
		l.leave(l.held[0])
		l.bytes -= len(l.held[0].Text) + lineBytes
		l.held[0] = logsvc.Line{}
		l.held = l.held[1:]
	}
	line.Text = bytes.Clone(line.Text)
	l.held = append(l.held, line)
	l.bytes += len(line.Text) + lineBytes
	if l.bytes <= heldBytes {
		return nil
	}
	switch l.large {
	case holdLarge:
		return errHeld
	case passLarge:
		return l.passAll(ctx)
	}
	l.held, l.counted = nil, true
	return nil
}

// passAll passes the lines of a view with n records, which has to begin the log.
func (l *lastLines) passAll(ctx context.Context) error {
	if err := l.learn(ctx); err != nil {
		return err
	}
	if !l.whole {
		return errPart
	}
	return l.pass(ctx)
}

// leave adds a line to those that come before the lines that are held.
func (l *lastLines) leave(line logsvc.Line) {
	m := markOf(line)
	if !l.holdsFirst() {
		l.without.add(m)
	}
	l.with.add(m)
}

// holdsFirst reports whether the first line of the response comes next among the lines that are held.
func (l *lastLines) holdsFirst() bool { return l.wanted && l.with.added == 0 }

// pass adds the lines that are held, and has all that follow added as they come.
func (l *lastLines) pass(ctx context.Context) error {
	first := l.holdsFirst()
	if first || l.seen == 1 {
		if err := l.learn(ctx); err != nil {
			return err
		}
	}
	c := l.t.cursor
	c.trail = l.with
	if !l.begins {
		c.trail = l.without
		if first && len(l.held) > 0 {
			l.held = l.held[1:]
		}
	}
	if c.trail.added > 0 {
		c.place = placeTrail
	}
	for _, line := range l.held {
		c.add(line)
	}
	l.held, l.passed = nil, true
	return nil
}

// The results of a comparison of two beginnings.
var (
	errSame  = errors.New("they are the same")
	errOther = errors.New("they are not")
)

// learn compares the first lines of the response with those of the whole file, or of the filter. If the
// file begins with the same line, that line is not a part of one. If as many lines in a row have its time,
// no line comes before it.
func (l *lastLines) learn(ctx context.Context) error {
	if l.begins || l.seen == 0 {
		return nil
	}
	v, head := l.v, l.head
	v.tail = -1
	more := head == l.seen && !l.ended // lines with the time of the first one may come
	if more {
		head = l.v.tail
	}
	var lines int64 // with the time of the first one; a last line without a line end is not among them
	err := l.t.scan(ctx, readOptions{previous: l.o.previous}, v, func(line logsvc.Line) error {
		switch m := markOf(line); {
		case lines == 0 && m != l.first:
			return errOther
		case m.at != l.first.at:
			return errSame
		}
		if lines++; lines > head {
			return errOther
		}
		return nil
	})
	switch {
	case err == nil:
		l.begins = lines > 0 || l.o.ends
		l.whole = l.begins
	case errors.Is(err, errSame), errors.Is(err, errOther):
		l.begins = lines > 0
		l.whole = errors.Is(err, errSame)
	case !errors.As(err, new(kubeletError)):
		return err
	}
	if l.whole && more {
		if l.whole, err = l.hasHead(ctx, lines); err != nil {
			return err
		}
	}
	l.with.whole = l.whole && !l.v.filtered()
	if l.begins && !l.whole {
		l.with.before = 1
		l.with.begun = l.with.begun && l.with.same < uint64(l.with.added)
	}
	return nil
}

// hasHead reports whether the view has so many lines with the time of the first one.
func (l *lastLines) hasHead(ctx context.Context, lines int64) (bool, error) {
	err := l.t.scan(ctx, readOptions{previous: l.o.previous}, l.v, func(line logsvc.Line) error {
		switch {
		case markOf(line).at != l.first.at:
			return errOther
		case lines <= 1:
			return errSame
		}
		lines--
		return nil
	})
	if errors.Is(err, errOther) || errors.As(err, new(kubeletError)) {
		err = nil
	}
	if errors.Is(err, errSame) {
		return true, nil
	}
	return false, err
}

// end is called at the end of the response.
func (l *lastLines) end(ctx context.Context) error {
	l.ended = true
	switch {
	case l.counted:
		return errCounted
	case l.passed, l.seen == 0:
		return nil
	}
	if l.large == passLarge {
		return l.passAll(ctx)
	}
	few := l.seen <= max(l.n, 1)
	if few || l.t.following && l.seen < l.v.tail {
		if err := l.learn(ctx); err != nil {
			return err
		}
	}
	if l.v.tail < maxView && (few && !l.whole || l.t.following && !l.knowsLast()) {
		return errNarrow
	}
	return l.pass(ctx)
}

// knowsLast reports whether the first of the lines with the last time is known. A follow that does not know
// it cannot tell them apart when it looks for its place.
func (l *lastLines) knowsLast() bool {
	return l.whole || l.last > 2 || l.last == 2 && l.begins
}
