package logsvc

import (
	"bytes"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// resumePoint is the place in a log up to which it was handed out, for a request
// that goes on there. Kubernetes can only be asked for lines since a whole
// second, so that the answer begins with lines that were handed out. They are
// passed over: what lies before a line that is remembered (the limit to
// the last lines may have left it out), and as many from there as were handed
// out. If the remembered line is not there, then what is not newer than all that was
// handed out is passed over, and the first line that is newer is not taken
// before somebody said that this is the right log.
//
// The request goes back one second more than the newest line, because the two
// outputs of a container may lie in the log a little out of order.
//
// A line of more than 16 KiB lies in the log in parts, each with a time of its own, of which
// only the first is in the answer. Where the answer begins in the middle of such a line, it
// begins without a time. That line was handed out: lines behind its first part were.
// Other lines without a time are never passed over.
type resumePoint struct {
	// What was asked for: how many lines to begin with, negative for no limit,
	// and since when.
	tail  int64
	since time.Time
	// silent: the first request is only to learn where the log ends, for what was
	// written before opened is not wanted.
	silent bool
	opened time.Time
	missed bool // the silent request met a line that is wanted

	any    bool      // a line was handed out
	newest time.Time // of all lines
	now    secondMark
	before secondMark // of the second before

	middle   bool // the answer may begin in the middle of a line
	passing  bool // over lines that were handed out
	anchored bool // the remembered line was found
	passed   int
	lost     bool // a newer line came before the remembered one: see accept
}

// secondMark remembers the first line of a second, and counts what was handed
// out from there on.
type secondMark struct {
	second int64
	at     time.Time
	text   []byte // the line's beginning
	lines  int    // of this second; 0: none is remembered
	late   int    // of the second before
}

// markBytes is enough of a line to know it by, together with its time.
const markBytes = 256

// fromBeginning is the resume point of a log that is read as a whole.
func fromBeginning() resumePoint { return resumePoint{tail: -1} }

// fromTime is that of a log that is read from a time on.
func fromTime(t time.Time) resumePoint { return resumePoint{tail: -1, since: t} }

// other is the resume point of another log, of which nothing is new that is not
// newer than what was handed out of this one.
func (p *resumePoint) other() resumePoint {
	return resumePoint{tail: -1, any: true, newest: p.newest, now: secondMark{second: p.newest.Unix()}}
}

// options completes a request.
func (p *resumePoint) options(o *corev1.PodLogOptions) {
	if p.any {
		o.SinceTime = &metav1.Time{Time: time.Unix(p.now.second-1, 0)}
		return
	}
	if p.tail >= 0 {
		tail := p.tail
		if p.silent {
			tail = 1
		}
		o.TailLines = &tail
	}
	if !p.since.IsZero() {
		o.SinceTime = &metav1.Time{Time: p.since}
	}
}

// begin is called before the lines of each answer.
func (p *resumePoint) begin() {
	p.middle, p.passing, p.anchored, p.passed, p.lost = p.any, p.any, false, 0, false
	p.silent = p.silent && !p.any
}

// accept takes the log for the right one although the remembered line is not in
// it: a rotation took it. The line that was not taken is to be tried again.
func (p *resumePoint) accept() {
	p.lost, p.passing = false, false
	p.now.lines, p.before.lines = 0, 0
}

// take tells whether a line is to be handed out, and notes that it is. It sets
// lost when that is in doubt.
func (p *resumePoint) take(at time.Time, text []byte) bool {
	middle := p.middle
	p.middle = false
	switch {
	case at.IsZero():
		return !p.silent && !middle
	case at.Before(p.since):
		return false
	case p.passing && p.passOver(at, text):
		return false
	case p.silent && !at.Before(p.opened):
		p.missed = true
		return false
	}
	p.passing = false
	p.note(at, text)
	return !p.silent
}

func (p *resumePoint) passOver(at time.Time, text []byte) bool {
	anchor, lines := &p.now, p.now.lines+p.now.late
	if p.before.lines > 0 {
		anchor, lines = &p.before, lines+p.before.lines
	}
	if p.anchored {
		p.passed++
		return p.passed <= lines
	}
	if anchor.is(at, text) {
		p.anchored, p.passed = true, 1
		return true
	}
	newer := at.After(p.newest)
	p.lost = newer && lines > 0
	return p.lost || !newer
}

func (p *resumePoint) note(at time.Time, text []byte) {
	switch second := at.Unix(); {
	case p.now.lines > 0 && second == p.now.second:
		p.now.lines++
	case p.now.lines > 0 && second == p.now.second-1:
		p.now.late++
	default:
		// Later, as a rule; earlier when the clock was put back.
		p.now, p.before = p.before, p.now
		if p.before.second != second-1 {
			p.before.lines = 0
		}
		p.now = secondMark{second: second, at: at, text: append(p.now.text[:0], text[:min(len(text), markBytes)]...), lines: 1}
	}
	p.any = true
	if at.After(p.newest) {
		p.newest = at
	}
}

func (m *secondMark) is(at time.Time, text []byte) bool {
	return m.at.Equal(at) && bytes.Equal(m.text, text[:min(len(text), markBytes)])
}
