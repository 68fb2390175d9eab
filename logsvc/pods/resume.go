package pods

import (
	"bytes"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// resumePoint is a position in a log, from which the next request reads on. Kubernetes returns the
// lines since a whole second, so that a response begins with lines that were read before. These are
// skipped: all lines before the one that is remembered (which the tail may have excluded), and from
// there as many as were read. If the remembered line is not in the response, then all lines that
// are not later than the latest are skipped, and the first later line is only read after the
// caller has confirmed that this is the right log.
//
// The request goes back one second more than the latest line, because stdout and stderr of a
// container may be slightly out of order.
//
// A line of more than 16 KiB has several parts in the log, each with a time, and only that of the
// first is in the response. A response that begins in the middle of such a line begins without a
// time. That line was read already, because later lines were. Other lines without a time are
// never skipped.
type resumePoint struct {
	// tail and since are those of the query; a negative tail is no limit.
	tail  int64
	since time.Time
	// silent: the first request only finds the end of the log. Lines from before opened are
	// not wanted.
	silent bool
	opened time.Time
	missed bool // the silent request returned a line that is wanted

	any    bool      // a line was read
	latest time.Time // of all lines
	now    secondMark
	before secondMark // of the second before

	middle   bool // the answer may begin in the middle of a line
	skipping bool // skips lines that were read before
	anchored bool // the remembered line was found
	skipped  int
	lost     bool // a later line came before the remembered one: see accept
}

// secondMark remembers the first line of a second, and counts the lines from there on.
type secondMark struct {
	second int64
	at     time.Time
	text   []byte // the line's beginning
	lines  int    // of this second; 0: none is remembered
	late   int    // of the second before
}

// markBytes of a line identify it together with its time.
const markBytes = 256

func fromBeginning() resumePoint { return resumePoint{tail: -1} }

func fromTime(t time.Time) resumePoint { return resumePoint{tail: -1, since: t} }

// other is the resume point for another log, whose lines are new if they are later than those
// read from this one.
func (p *resumePoint) other() resumePoint {
	return resumePoint{tail: -1, any: true, latest: p.latest, now: secondMark{second: p.latest.Unix()}}
}

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

// begin is called before the lines of each response.
func (p *resumePoint) begin() {
	p.middle, p.skipping, p.anchored, p.skipped, p.lost = p.any, p.any, false, 0, false
	p.silent = p.silent && !p.any
}

// accept confirms that the log is the right one although the remembered line is not in it: it was
// rotated. The caller passes the rejected line to take again.
func (p *resumePoint) accept() {
	p.lost, p.skipping = false, false
	p.now.lines, p.before.lines = 0, 0
}

// take reports whether a line is new, and records it. It sets lost when that is uncertain.
func (p *resumePoint) take(at time.Time, text []byte) bool {
	middle := p.middle
	p.middle = false
	switch {
	case at.IsZero():
		return !p.silent && !middle
	case at.Before(p.since):
		return false
	case p.skipping && p.skip(at, text):
		return false
	case p.silent && !at.Before(p.opened):
		p.missed = true
		return false
	}
	p.skipping = false
	p.note(at, text)
	return !p.silent
}

func (p *resumePoint) skip(at time.Time, text []byte) bool {
	anchor, lines := &p.now, p.now.lines+p.now.late
	if p.before.lines > 0 {
		anchor, lines = &p.before, lines+p.before.lines
	}
	if p.anchored {
		p.skipped++
		return p.skipped <= lines
	}
	if anchor.is(at, text) {
		p.anchored, p.skipped = true, 1
		return true
	}
	newer := at.After(p.latest)
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
		// Usually later; earlier if the clock was set back.
		p.now, p.before = p.before, p.now
		if p.before.second != second-1 {
			p.before.lines = 0
		}
		p.now = secondMark{second: second, at: at, text: append(p.now.text[:0], text[:min(len(text), markBytes)]...), lines: 1}
	}
	p.any = true
	if at.After(p.latest) {
		p.latest = at
	}
}

func (m *secondMark) is(at time.Time, text []byte) bool {
	return m.at.Equal(at) && bytes.Equal(m.text, text[:min(len(text), markBytes)])
}
