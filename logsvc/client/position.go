package client

import (
	"bytes"
	"time"

	"github.com/appbridge/appbridge/logsvc/logline"
)

// markBytes is enough of a line to know it by, together with its time.
const markBytes = 256

// position is the last line of the log of one replica that the handler got. Its time, its text and
// the number of lines with the same time identify it. A resumed stream begins before it; all lines
// up to it are skipped, in the order of the log, since times may step back.
//
// Lines without a time belong to the line before them.
type position struct {
	any    bool // the handler got a line with a time
	last   time.Time
	latest time.Time // of all lines
	top    int       // lines with the newest time
	text   []byte    // the beginning of the last line with a time
	same   int       // lines with its time, itself included
	bare   int       // lines without a time after it
}

// passage is the progress of one stream.
type passage struct {
	position

	skipping bool      // lines up to the position
	met      int       // lines with the time of the last line
	skipBare int       // lines without a time that are still to be skipped
	least    time.Time // lines before it are not wanted while the handler got none
	before   bool      // only lines before least are wanted
	// sure: this stream, or another one of the same attempt, had the last line. Later lines
	// follow it without a hole.
	sure bool
}

// read returns the new lines of a message, in the memory of body, and their number. hole reports
// that the log does not have the last line any more, so that lines before these may be missing.
func (p *passage) read(body []byte, timestamps bool) (out []byte, lines int, hole bool) {
	out = body[:0]
	text, marked := 0, 0 // where the last line with a time begins and ends in out
	for line := range bytes.Lines(body) {
		at, message := logline.Parse(line)
		if len(message) == len(line) { // no time
			if p.takeBare() {
				out = append(out, line...)
				lines++
			}
			continue
		}
		take, lost := p.take(at, message)
		hole = hole || lost
		if !take {
			continue
		}
		lines++
		p.note(at)
		if timestamps {
			out = append(out, line[:len(line)-len(message)]...)
		}
		text = len(out)
		out = append(out, message...)
		marked = len(out)
	}
	if marked > 0 {
		p.text = mark(out[text:marked])
	}
	return out, lines, hole
}

func mark(text []byte) []byte { return bytes.Clone(text[:min(len(text), markBytes)]) }

// takeBare reports whether a line without a time is new, and counts it.
func (p *passage) takeBare() bool {
	switch {
	case p.skipping || p.before:
		return false
	case p.skipBare > 0:
		p.skipBare--
		return false
	}
	p.bare++
	return true
}

// take reports whether a line is new, and whether the log does not have the last line any more.
func (p *passage) take(at time.Time, text []byte) (take, lost bool) {
	older := at.Before(p.least)
	switch {
	case p.before:
		return older, false
	case !p.skipping:
		p.skipBare = 0
		return p.any || !older, false
	}
	if at.Equal(p.last) {
		p.met++
		if p.met >= p.same && bytes.Equal(text[:min(len(text), markBytes)], p.text) {
			p.skipping, p.sure, p.skipBare = false, true, p.bare
			return false, false
		}
	}
	if !at.After(p.latest) {
		return false, false
	}
	lost = !p.sure
	p.skipping, p.sure = false, true
	return true, lost
}

func (p *passage) note(at time.Time) {
	order := at.Compare(p.latest)
	if order > 0 {
		p.latest, p.top = at, 0
	}
	switch {
	case order >= 0:
		p.top++
		p.same = p.top
	case at.Equal(p.last):
		p.same++
	default:
		p.same = 1
	}
	p.any, p.last, p.bare = true, at, 0
	p.sure = p.sure || p.before
}
