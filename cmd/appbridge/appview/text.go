package appview

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Safe is a text as a terminal may have it. Users choose the bytes of the names of apps, and
// a terminal obeys control sequences: it sets its title, answers questions as if somebody typed,
// overwrites what was printed. Control characters (C0, DEL, C1), bytes that are not UTF-8, line
// separators, the controls that reorder text and invisible characters are shown as in a Go string.
func Safe(text string) string {
	if plain(text) {
		return text
	}
	var out strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && invalid(text[i:]), r < 0x80 && unicode.IsControl(r):
			fmt.Fprintf(&out, `\x%02x`, text[i])
		case Unsafe(r):
			quoted := strconv.QuoteRuneToASCII(r)
			out.WriteString(quoted[1 : len(quoted)-1])
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

func plain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// invalid reports whether a text begins with a byte that is not UTF-8.
func invalid(text string) bool {
	_, n := utf8.DecodeRuneInString(text)
	return n <= 1
}

// Unsafe reports whether a terminal could obey a rune, or could show a text with it as another one.
// U+00AD and the format characters (zero width, bidirectional) are invisible; the joiner of emoji
// is one of them.
func Unsafe(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' || r == utf8.RuneError
}

// Width is how many columns of a terminal a safe text takes: two for wide characters, as of
// Chinese, Japanese and Korean, and for emoji, none for marks that combine with the one before.
func Width(text string) int {
	if plain(text) {
		return len(text)
	}
	columns := 0
	for _, r := range text {
		columns += runeWidth(r)
	}
	return columns
}

func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	default:
		return 1
	}
}

// cut is the beginning of a safe text that fits into columns. A text that does not fit ends with an
// ellipsis.
func cut(text string, columns int) string {
	if Width(text) <= columns {
		return text
	}
	if columns <= 0 {
		return ""
	}
	used := 0
	for i, r := range text {
		if used += runeWidth(r); used > columns-1 {
			return text[:i] + "…"
		}
	}
	return text
}

// padded is a safe text in exactly so many columns.
func padded(text string, columns int) string {
	text = cut(text, columns)
	return text + strings.Repeat(" ", columns-Width(text))
}
