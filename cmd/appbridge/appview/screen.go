package appview

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Screen is what a live table shows.
type Screen struct {
	Style
	Rows   int    // of the terminal
	First  int    // index of the first app that is shown
	Filter string // which apps are watched; empty: all

	Position   uint64    // in the stream
	Reading    bool      // the snapshot is not complete yet
	Connection string    // empty: connected; else why there is no connection
	Failure    string    // empty: readable; else why nothing can be read although there is a connection
	Since      time.Time // of either
	Note       string    // the latest note, for example of a loss
	Keys       bool      // the keyboard is read
}

// Page is how many apps a screen has room for.
func (s Screen) Page() int { return max(s.Rows-2, 1) }

// Last is the greatest useful First for so many apps.
func (s Screen) Last(apps int) int { return max(apps-s.Page(), 0) }

// Lines are the lines of the screen: the titles, as many apps as fit, and the footer. apps are in
// the order of the table. Only those that are shown are decoded.
func (s Screen) Lines(apps []*App, counts map[string]int) []string {
	first := min(max(s.First, 0), s.Last(len(apps)))
	end := min(first+s.Page(), len(apps))
	lines := Table(apps[first:end], s.Style)
	for len(lines) < s.Rows-1 {
		lines = append(lines, "")
	}
	lines = lines[:max(s.Rows-1, 0)]
	return append(lines, s.paint(cut(s.footer(first, end, len(apps), counts), s.Columns), faint))
}

// footer is the last line: the most important comes first, since a narrow terminal cuts it.
func (s Screen) footer(first, end, apps int, counts map[string]int) string {
	var parts []string
	switch {
	case s.Connection != "":
		parts = append(parts, "no connection for "+Age(s.Now.Sub(s.Since))+": "+Safe(s.Connection))
	case s.Failure != "":
		parts = append(parts, "not readable for "+Age(s.Now.Sub(s.Since))+": "+Safe(s.Failure))
	}
	if s.Note != "" {
		parts = append(parts, Safe(s.Note))
	}
	if s.Reading {
		parts = append(parts, "reading")
	}
	parts = append(parts, Counted(counts))
	if end-first < apps {
		parts = append(parts, fmt.Sprintf("%d-%d shown", first+1, end))
	}
	if s.Filter != "" {
		parts = append(parts, Safe(s.Filter))
	}
	parts = append(parts, "sequence "+strconv.FormatUint(s.Position, 10))
	if s.Keys {
		if end-first < apps {
			parts = append(parts, "arrows scroll")
		}
		parts = append(parts, "q ends")
	}
	return strings.Join(parts, " · ")
}

// Counted is the number of apps, and of those of each status, the most frequent first.
func Counted(counts map[string]int) string {
	var words []string
	apps := 0
	for word, n := range counts {
		if apps += n; n > 0 {
			words = append(words, word)
		}
	}
	text := strconv.Itoa(apps) + " apps"
	if apps == 1 {
		text = "1 app"
	}
	slices.SortFunc(words, func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	})
	for i, word := range words {
		if word == "" {
			word = "without status"
		}
		words[i] = strconv.Itoa(counts[words[i]]) + " " + Safe(word)
	}
	if len(words) == 0 {
		return text
	}
	return text + ": " + strings.Join(words, ", ")
}

// Sequences that a terminal obeys. The alternate screen keeps what the shell printed before.
const (
	// Enter switches to the alternate screen, without a cursor and without wrapping.
	Enter = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	// Leave restores the terminal as it was before Enter.
	Leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"

	home      = "\x1b[H"
	clearLine = "\x1b[K"
)

// Paint is the text that makes a terminal show the lines and nothing else. It overwrites what is
// there and clears nothing before, so that it does not flicker.
func Paint(lines []string) string {
	var out strings.Builder
	out.WriteString(home)
	for i, line := range lines {
		if i > 0 {
			out.WriteString("\r\n")
		}
		out.WriteString(clearLine) // before the text: behind a full line it would clear its end
		out.WriteString(line)
	}
	return out.String()
}
