package decoder

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// errUnusual is what only client-go's decoder can read, or refuse.
var errUnusual = errors.New("unusual JSON")

// scanner reads JSON. After the first error its methods do nothing and return zero values.
type scanner struct {
	json    jsontext.Decoder
	buffer  bytes.Buffer
	scratch []byte
	known   map[string]string // the strings that repeat
	err     error
}

// Of repeated strings, so many of so many bytes are remembered.
const (
	maxKnown    = 4096
	maxKnownLen = 128
)

func (s *scanner) scan(document []byte) {
	s.buffer, s.err = *bytes.NewBuffer(document), nil
	s.read(&s.buffer)
}

// read begins to read a document. Names are checked here where that matters.
func (s *scanner) read(r io.Reader) {
	if s.known == nil {
		s.known = map[string]string{}
	}
	s.json.Reset(r, jsontext.AllowDuplicateNames(true))
}

func (s *scanner) unusual() {
	if s.err == nil {
		s.err = errUnusual
	}
}

// value reads the next value, or name. It is valid until the next call of a method.
func (s *scanner) value() []byte {
	if s.err != nil {
		return nil
	}
	value, err := s.json.ReadValue()
	s.err = err
	return value
}

// more reports whether there is another element before the end of an object or an array.
func (s *scanner) more(end jsontext.Kind) bool {
	return s.err == nil && s.json.PeekKind() != end
}

// delimiter reads the beginning or the end of an object or an array.
func (s *scanner) delimiter(want jsontext.Kind) {
	if s.err != nil {
		return
	}
	if s.json.PeekKind() != want {
		s.unusual()
		return
	}
	_, s.err = s.json.ReadToken()
}

// end expects the end of the document.
func (s *scanner) end() {
	if s.err == nil {
		if _, err := s.json.ReadToken(); !errors.Is(err, io.EOF) {
			s.unusual()
		}
	}
}

// fields reads an object. field reads the value of a name and returns a bit, 0 for a name that it
// does not know; a bit that returns is unusual. The name is valid until the next call of a method.
func (s *scanner) fields(field func(name []byte) (bit uint)) {
	var seen uint
	s.delimiter('{')
	for s.more('}') {
		name := s.value()
		if len(name) < 2 || bytes.IndexByte(name, '\\') >= 0 {
			s.unusual()
			return
		}
		bit := field(name[1 : len(name)-1])
		if seen&bit != 0 {
			s.unusual()
		}
		seen |= bit
	}
	s.delimiter('}')
}

func (s *scanner) each(element func()) {
	s.delimiter('[')
	for s.more(']') {
		element()
	}
	s.delimiter(']')
}

// raw reads a string, valid until the next call of a method.
func (s *scanner) raw() []byte {
	quoted := s.value()
	switch {
	case len(quoted) < 2 || quoted[0] != '"':
		s.unusual()
		return nil
	case bytes.IndexByte(quoted, '\\') < 0:
		return quoted[1 : len(quoted)-1]
	}
	s.scratch, s.err = jsontext.AppendUnquote(s.scratch[:0], quoted)
	return s.scratch
}

func (s *scanner) text() string { return string(s.raw()) }

// word reads a string that repeats.
func (s *scanner) word() string { return s.intern(s.raw()) }

func (s *scanner) intern(text []byte) string {
	if known, ok := s.known[string(text)]; ok {
		return known
	}
	word := string(text)
	if len(word) <= maxKnownLen && len(s.known) < maxKnown {
		s.known[word] = word
	}
	return word
}

func (s *scanner) number() int64 {
	n, err := strconv.ParseInt(string(s.value()), 10, 64)
	if err != nil {
		s.unusual()
	}
	return n
}

// time reads a time, which is stricter here than elsewhere.
func (s *scanner) time() (t time.Time) {
	if t.UnmarshalText(s.raw()) != nil {
		s.unusual()
	}
	return t
}

// pairs reads an object of strings and keeps those whose names keep wants, as read returns them.
func (s *scanner) pairs(keep func(name string) bool, read func() string) (kept map[string]string) {
	s.fields(func(name []byte) uint {
		key := s.intern(name)
		if !keep(key) {
			s.raw()
			return 0
		}
		if _, twice := kept[key]; twice {
			s.unusual()
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = read()
		return 0
	})
	return kept
}
