package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// screen writes for an operator who watches. It may be used from several
// goroutines.
type screen struct {
	mu    sync.Mutex
	out   io.Writer
	began time.Time
}

func newScreen(out io.Writer) *screen { return &screen{out: out, began: time.Now()} }

// line writes one line. An output that is gone is noticed by its signal.
func (s *screen) line(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintf(s.out, format+"\n", args...)
}

// heading starts a new part.
func (s *screen) heading(format string, args ...any) { s.line("\n== "+format, args...) }

// now writes one line with the time since the start.
func (s *screen) now(format string, args ...any) {
	s.line("%7.1fs  %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}
