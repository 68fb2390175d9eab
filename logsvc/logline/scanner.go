package logline

import "bytes"

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
