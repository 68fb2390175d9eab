// Package logline reads the lines of container logs as Kubernetes returns them: bytes that end
// with "\n", each line after its time. It does no I/O. All functions are safe for concurrent use.
package logline

import (
	"bytes"
	"time"
)

// Line is one line of a log.
type Line struct {
	// Time is when it was written; zero when it carries no time.
	Time time.Time
	// Text is the line without its line end: any bytes.
	Text []byte
	// Cut is how many bytes after Text are missing because the line was too long.
	Cut int64
}

// TimeBytes is the length of the longest time that Kubernetes writes before a line, with the space
// after it.
const TimeBytes = len("2006-01-02T15:04:05.000000000+07:00 ")

// Parse splits a line into the time when it was written, in UTC, and its message, a part of line. A
// line has a time when the text before its first space is an RFC 3339 time as the standard library
// accepts it. Any other line is a message as a whole and its time is zero. (The first instant of
// the year 1 is a zero time, too, but its message is shorter than the line.)
func Parse(line []byte) (t time.Time, message []byte) {
	end := bytes.IndexByte(line, ' ')
	// Most lines without a time need no attempt to parse it.
	if end < len("2006-01-02T5:04:05Z") || line[4] != '-' || line[7] != '-' || line[10] != 'T' || line[0]-'0' > 9 {
		return time.Time{}, line
	}
	t, err := time.Parse(time.RFC3339Nano, string(line[:end]))
	if err != nil {
		return time.Time{}, line
	}
	return t.UTC(), line[end+1:]
}

// Scanner splits a stream of bytes into lines. It keeps no more of a line than its limit. Lines
// are parts of the chunks, except for a line that spans several chunks, which is a copy.
//
//	s.Feed(chunk)
//	for s.Next() {
//		use(s.Line(), s.Cut())
//	}
//
// It is for one goroutine.
type Scanner struct {
	limit int
	chunk []byte // the rest of the chunk

	line []byte
	cut  int64

	// The beginning of a line whose end has not come.
	rest    []byte
	restCut int64
	open    bool
	// The memory of the previous line, which may still be in use.
	spare []byte
}

// NewScanner makes a Scanner whose lines have at most limit bytes. The limit is at least 1.
func NewScanner(limit int) *Scanner { return &Scanner{limit: max(limit, 1)} }

// Feed sets the next chunk of the stream. Before that, Next must have returned false. Lines are
// valid until the next call, and the chunk must not change until then.
func (s *Scanner) Feed(chunk []byte) { s.chunk = chunk }

// Next advances to the next line that ends in the chunk, and returns false if there is none.
func (s *Scanner) Next() bool {
	if len(s.chunk) == 0 {
		return false
	}
	end := bytes.IndexByte(s.chunk, '\n')
	if end < 0 {
		s.keep(s.chunk)
		s.chunk = nil
		return false
	}
	text := s.chunk[:end]
	s.chunk = s.chunk[end+1:]
	if s.open {
		s.keep(text)
		s.take()
		return true
	}
	s.line, s.cut = text, 0
	if end > s.limit {
		s.line, s.cut = text[:s.limit:s.limit], int64(end-s.limit)
	}
	return true
}

// keep appends to the line whose end has not come.
func (s *Scanner) keep(text []byte) {
	s.open = true
	room := min(s.limit-len(s.rest), len(text))
	s.rest = append(s.rest, text[:room]...)
	s.restCut += int64(len(text) - room)
}

// take makes the kept line the current one.
func (s *Scanner) take() {
	s.line, s.cut = s.rest, s.restCut
	s.rest, s.spare = s.spare[:0], s.rest
	s.restCut, s.open = 0, false
}

// Line is the current line without its end.
func (s *Scanner) Line() []byte { return s.line }

// Cut counts the bytes of the current line beyond the limit.
func (s *Scanner) Cut() int64 { return s.cut }

// Rest makes the bytes after the last "\n" the current line, at the end of the stream. It returns
// false if there are none.
func (s *Scanner) Rest() bool {
	if !s.open {
		return false
	}
	s.take()
	return true
}

// Reset prepares the Scanner for another stream.
func (s *Scanner) Reset() {
	*s = Scanner{limit: s.limit, rest: s.rest[:0], spare: s.spare}
}
