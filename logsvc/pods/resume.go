package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/appbridge/appbridge/logsvc"
)

const (
	// firstView is how many records are searched first: an ordinary resume finds its place there.
	firstView = 512
	// widening is how much larger the next view is.
	widening = 4
	maxView  = 1 << 40
	// maxSearches is how often a log is searched while responses break off, or its file is rotated.
	maxSearches = 5
)

// readBehind searches the log for the trail, and reads what comes after it. records is how many are searched
// first.
func (t *tailer) readBehind(ctx context.Context, o readOptions, records int64) (readResult, error) {
	want := t.cursor.trail.position()
	for range maxSearches {
		pass, s, err := t.searchLog(ctx, o, want, records)
		if err != nil || s.found {
			return pass, err
		}
		if !s.complete {
			continue
		}
		rule, note := s.decide()
		if rule == nil {
			return t.readNew(ctx, o, note)
		}
		if note == "" && want.last%int64(time.Second) == 0 {
			// The clock may have whole seconds: then other lines can have the time and the text of the last ones.
			note = "the log was rotated, and its times are whole seconds; lines may be missing here"
		}
		again := newSearch(want, s.view)
		again.other, again.rule, again.note = s.other, rule, note
		if pass, err = t.searchView(ctx, o, again); err != nil || again.found {
			return pass, err
		}
	}
	return readResult{}, errBehind
}

// readNew reads a log that does not hold the trail: all of it is new. note says what this means.
func (t *tailer) readNew(ctx context.Context, o readOptions, note string) (readResult, error) {
	if !t.cursor.doubtful {
		if err := t.checkPrevious(ctx, o); err != nil {
			return readResult{}, err
		}
		if t.cursor.sent > 0 {
			note += fmt.Sprintf(", and up to %d repeated", t.cursor.sent)
		}
		if err := t.note(ctx, note); err != nil {
			return readResult{}, err
		}
	}
	t.cursor.start()
	return t.readStart(ctx, o)
}

// checkPrevious returns errMoved if the trail is in the log of the previous instance: the kubelet has
// started the container again, and the API server does not show it yet.
func (t *tailer) checkPrevious(ctx context.Context, o readOptions) error {
	if o.previous || o.stuck {
		return nil
	}
	found, _, err := t.inPrevious(ctx)
	if err == nil && found {
		return errMoved
	}
	return err
}

// inPrevious reports whether the trail is in the log of the previous instance: all of it, or its last lines
// where a rotation has taken the others.
func (t *tailer) inPrevious(ctx context.Context) (all, some bool, err error) {
	s, _, err := t.find(ctx, readOptions{previous: true}, t.cursor.trail.position())
	switch {
	case removed(err):
		return false, false, nil // there is none
	case err != nil || s.found:
		return s.found, s.found, err
	}
	rule, _ := s.decide()
	return false, rule != nil, nil
}

// searchLog searches ever larger views of a log, up to the whole file, until it finds the position.
func (t *tailer) searchLog(ctx context.Context, o readOptions, want position, records int64) (readResult, *search, error) {
	v := view{tail: max(firstView, records)}
	for {
		s := newSearch(want, v)
		s.other = o.stuck
		if v.whole {
			end, err := t.lastLine(ctx, o, v)
			if err != nil {
				return readResult{}, s, err
			}
			s.end, s.complete = end, end == 0
		}
		pass, err := t.searchView(ctx, o, s)
		if err != nil && !s.found && !v.whole && errors.As(err, new(kubeletError)) {
			if v, err = t.widest(ctx, o, v, err); err == nil {
				continue
			}
		}
		if err != nil || s.found || v.whole {
			return pass, s, err
		}
		if v, err = t.wider(ctx, o, want, v); err != nil {
			return pass, s, err
		}
	}
}

// atEnd reports whether a log ends with the position.
func (t *tailer) atEnd(ctx context.Context, o readOptions, want position) (bool, error) {
	s, after, err := t.find(ctx, o, want)
	switch {
	case err != nil:
		return false, err
	case s.found:
		return after == 0, nil
	}
	rule, note := s.decide()
	return rule != nil && note == "" && s.last == *rule, nil
}

// find searches a log, and returns how many lines come after the position. It reads nothing for the Sink, and
// may run while another goroutine follows the log.
func (t *tailer) find(ctx context.Context, o readOptions, want position) (s *search, after int, err error) {
	v := view{tail: firstView}
	for {
		s, after = newSearch(want, v), 0
		err := t.scan(ctx, o, v, func(line logsvc.Line) error {
			if s.found {
				after++
			} else {
				s.take(markOf(line))
			}
			return nil
		})
		switch {
		case errors.As(err, new(kubeletError)) && !v.whole:
			v, err = t.widest(ctx, o, v, err)
		case err != nil, s.found, v.whole:
			return s, after, err
		default:
			v, err = t.wider(ctx, o, want, v)
		}
		if err != nil {
			return s, 0, err
		}
	}
}

// lastLine returns the hash of the last line of a whole view, 0 if there is none. Of a view that is not
// whole the first line may be a part of one, so that two are needed.
func (t *tailer) lastLine(ctx context.Context, o readOptions, whole view) (hash uint64, err error) {
	v := view{tail: 2}
	for first := true; ; first = false {
		if v.tail > maxView || whole.tail >= 0 && v.tail >= whole.tail {
			v = whole
		}
		lines, before := 0, hash
		hash = 0
		err = t.scan(ctx, o, v, func(line logsvc.Line) error {
			hash = markOf(line).hash
			lines++
			return nil
		})
		if err != nil || lines > 1 || v.whole || !first && hash == before {
			return hash, err
		}
		v.tail *= widening
	}
}

// searchView searches one view, and adds the lines after the position for the Sink.
func (t *tailer) searchView(ctx context.Context, o readOptions, s *search) (readResult, error) {
	return t.read(ctx, o, s.view, func(line logsvc.Line) error {
		switch {
		case s.found:
			t.cursor.behind++
			t.cursor.add(line)
		case s.take(markOf(line)):
			t.cursor.resume(s)
			if s.note != "" {
				return t.note(ctx, s.note)
			}
		}
		return nil
	})
}

// resume puts the cursor behind the position that was found.
func (c *cursor) resume(s *search) {
	c.found, c.behind, c.doubtful = s.view, 0, false
	if s.seen.whole || c.trail.given != nil {
		c.trail = s.seen // it has the number of lines in this file
		c.trail.keep(s.want.lines)
	}
}

// wider returns the next view. Those that begin later than the position are passed over, unless they
// begin the file.
func (t *tailer) wider(ctx context.Context, o readOptions, want position, v view) (view, error) {
	head, err := t.probe(ctx, o, wholeFile)
	torn := errors.As(err, new(kubeletError))
	if err != nil && !torn {
		return view{}, err
	}
	for v.tail < maxView {
		v.tail *= widening
		first, err := t.probe(ctx, o, v)
		switch {
		case errors.As(err, new(kubeletError)):
			return t.widest(ctx, o, v, err)
		case err != nil:
			return view{}, err
		case timeOf(first).After(want.time()) && (torn || len(head) > 0 && !sameStart(first, head)):
		case sameStart(first, head) || len(first) == 0:
			return wholeFile, nil
		default:
			return v, nil
		}
	}
	return wholeFile, nil
}
