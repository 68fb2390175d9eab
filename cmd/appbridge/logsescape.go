package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"unicode/utf8"
)

// resetColor is appended to a line that changes colors, which are its own alone: the
// next one may be of another replica.
const resetColor = "\x1b[0m"

// forTerminal appends whole lines to out as a terminal may have them. An app may write anything,
// and a terminal obeys: it sets its title, answers questions as if somebody typed, writes the
// clipboard, goes back over what was printed. Colors (SGR sequences, ESC [ … m) and tabs pass.
// Other control characters (C0, DEL, C1), bytes that are not UTF-8, line separators and the
// controls that reorder text (bidirectional embeddings, overrides and isolates) are shown as in a
// Go string. Carriage returns at the end of a line go.
func forTerminal(out, body []byte) []byte {
	for line := range bytes.Lines(body) {
		line, ended := bytes.CutSuffix(line, []byte("\n"))
		if plain(line) {
			out = append(out, line...)
		} else {
			out = appendEscaped(out, bytes.TrimRight(line, "\r"))
		}
		if ended {
			out = append(out, '\n')
		}
	}
	return out
}

// plain reports whether a line is ASCII without control characters but tabs, as most are.
func plain(line []byte) bool {
	for _, c := range line {
		if (c < ' ' && c != '\t') || c > '~' {
			return false
		}
	}
	return true
}

func appendEscaped(out, line []byte) []byte {
	colored := false
	for len(line) > 0 {
		if line[0] == 0x1b {
			if sequence := sgr.Find(line); sequence != nil {
				colored = !isReset(sequence)
				out = append(out, sequence...)
				line = line[len(sequence):]
				continue
			}
		}
		r, n := utf8.DecodeRune(line)
		switch {
		case r == utf8.RuneError && n == 1, r < ' ' && r != '\t', r == 0x7f:
			out = fmt.Appendf(out, `\x%02x`, line[0])
		case reorders(r), r >= 0x80 && r < 0xa0:
			quoted := strconv.AppendQuoteRuneToASCII(nil, r)
			out = append(out, quoted[1:len(quoted)-1]...)
		default:
			out = append(out, line[:n]...)
		}
		line = line[n:]
	}
	if colored {
		out = append(out, resetColor...)
	}
	return out
}

// reorders reports whether a rune ends a line, or changes the order of the text
// around it, for a terminal that knows it.
func reorders(r rune) bool {
	return r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

// sgr is a sequence that sets colors.
var sgr = regexp.MustCompile(`^\x1b\[[0-9;:]*m`)

func isReset(sgr []byte) bool { return len(sgr) == len("\x1b[m") || string(sgr) == resetColor }
