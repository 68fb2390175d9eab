package client

import (
	"bytes"
	"time"
)

const (
	// stampLayout is how the service writes the time before a line: in UTC and always
	// as long, so that times compare as text.
	stampLayout = "2006-01-02T15:04:05.000000000Z"
	// markBytes is enough of a line to know it by, together with its time.
	markBytes = 256
)

// stamp is a time in the form of stampLayout; zero: none.
type stamp [len(stampLayout)]byte

func stampAt(t time.Time) (s stamp) {
	copy(s[:], t.UTC().Format(stampLayout))
	return s
}

// time is zero for a stamp that is not a time.
func (s stamp) time() time.Time {
	t, err := time.Parse(stampLayout, string(s[:]))
	if err != nil {
		return time.Time{}
	}
	return t
}

// position is the last line of the log of one replica that the handler got. Its time, its text and
// the number of lines with the same time identify it. A resumed stream begins before it; all lines
// up to it are skipped, in the order of the log, since times may step back.
//
// Lines without a time belong to the line before them.
type position struct {
	any    bool // the handler got a line with a time
	last   stamp
	latest stamp  // of all lines
	top    int    // lines with the newest time
	text   []byte // the beginning of the last line with a time
	same   int    // lines with its time, itself included
	bare   int    // lines without a time after it
}

// passage is the progress of one stream.
type passage struct {
	position

	skipping bool  // lines up to the position
	met      int   // lines with the time of the last line
	skipBare int   // lines without a time that are still to be skipped
	least    stamp // lines before it are not wanted while the handler got none
	before   bool  // only lines before least are wanted
	// sure: this stream, or another one of the same attempt, had the last line. Later lines
	// follow it without a hole.
	sure bool
}

// read returns the new lines of a message, in the memory of body, and their number. hole reports
// that the log does not have the last line any more, so that lines before these may be missing.
func (p *passage) read(body []byte, timestamps bool) (out []byte, lines int, hole bool) {
	out = body[:0]
	text, marked := 0, 0 // where the last line with a time begins and ends in out
	for rest := body; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n') + 1
		if end == 0 {
			end = len(rest)
		}
		line := rest[:end]
		rest = rest[end:]
		at, timed := stampOf(line)
		if !timed {
			if p.takeBare() {
				out = append(out, line...)
				lines++
			}
			continue
		}
		const skip = len(stampLayout) + 1
		take, lost := p.take(at, line[skip:])
		hole = hole || lost
		if !take {
			continue
		}
		lines++
		p.note(at)
		if timestamps {
			out = append(out, line[:skip]...)
		}
		text = len(out)
		out = append(out, line[skip:]...)
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
func (p *passage) take(at stamp, text []byte) (take, lost bool) {
	older := bytes.Compare(at[:], p.least[:]) < 0
	switch {
	case p.before:
		return older, false
	case !p.skipping:
		p.skipBare = 0
		return p.any || !older, false
	}
	if at == p.last {
		p.met++
		if p.met >= p.same && bytes.Equal(text[:min(len(text), markBytes)], p.text) {
			p.skipping, p.sure, p.skipBare = false, true, p.bare
			return false, false
		}
	}
	if bytes.Compare(at[:], p.latest[:]) <= 0 {
		return false, false
	}
	lost = !p.sure
	p.skipping, p.sure = false, true
	return true, lost
}

// note records a new line with a time.
func (p *passage) note(at stamp) {
	order := bytes.Compare(at[:], p.latest[:])
	if order > 0 {
		p.latest, p.top = at, 0
	}
	switch {
	case order >= 0:
		p.top++
		p.same = p.top
	case at == p.last:
		p.same++
	default:
		p.same = 1
	}
	p.any, p.last, p.bare = true, at, 0
	p.sure = p.sure || p.before
}

// stampOf is the time that a line begins with. There is no line without a time whose
// text begins like this: the service reads lines by the same rule.
func stampOf(line []byte) (at stamp, timed bool) {
	const n = len(stampLayout)
	if len(line) <= n || line[n] != ' ' || line[n-1] != 'Z' || line[19] != '.' || line[16] != ':' || line[13] != ':' ||
		line[10] != 'T' || line[7] != '-' || line[4] != '-' {
		return stamp{}, false
	}
	at = stamp(line[:n])
	digits := 0
	for _, c := range at {
		if c-'0' <= 9 {
			digits++
		}
	}
	return at, digits == n-7 // all but the seven signs
}
