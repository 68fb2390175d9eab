package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/appbridge/appbridge/subjects"
)

// screen writes for a reader: in colour on a terminal, plain text elsewhere.
// It may be used from several goroutines.
type screen struct {
	mu     sync.Mutex
	out    io.Writer
	colour bool
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	if file, ok := out.(*os.File); ok && os.Getenv("NO_COLOR") == "" {
		info, err := file.Stat()
		s.colour = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return s
}

// Colours of the terminal, as SGR parameters.
const (
	bold   = "1"
	faint  = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

func (s *screen) paint(code, text string) string {
	if !s.colour || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// line writes one line. A terminal that is gone is noticed by its signal.
func (s *screen) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintln(s.out, text)
}

func (s *screen) heading(text string) { s.line("\n" + s.paint(bold, "== "+text)) }

func (s *screen) note(format string, args ...any) {
	s.line("   " + fmt.Sprintf(format, args...))
}

// action announces what happens in the cluster.
func (s *screen) action(text string) { s.line(s.paint(faint, "-- "+text)) }

// event writes time, subject and what changed.
func (s *screen) event(e event) {
	colours := map[subjects.EventKind]string{
		subjects.Created: green, subjects.Updated: yellow, subjects.Deleted: red,
	}
	subject, kind := cutLast(e.subject, ".")
	changes := strings.Join(describe(e), ", ")
	s.line(fmt.Sprintf("%s  %s%s  %s",
		e.time.Local().Format("15:04:05.000"), s.paint(cyan, subject), s.paint(colours[e.kind], kind), changes))
}

// cutLast cuts before the last separator.
func cutLast(text, sep string) (before, after string) {
	i := strings.LastIndex(text, sep)
	if i < 0 {
		return text, ""
	}
	return text[:i], text[i:]
}

// table writes rows in columns; the first row is the heading.
func (s *screen) table(rows [][]string) {
	widths := map[int]int{}
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	for n, row := range rows {
		var text strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&text, "%-*s  ", widths[i], cell)
		}
		line := "   " + strings.TrimRight(text.String(), " ")
		if n == 0 {
			line = s.paint(bold, line)
		}
		s.line(line)
	}
	s.line("")
}
