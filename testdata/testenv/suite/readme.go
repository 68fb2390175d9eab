package suite

import (
	"os"
	"strings"
	"testing"
)

// Line is a command line of a page, with the key of what is known of it.
type Line struct{ Text, Key string }

// Lines are the command lines in the blocks of a page's section. Each has to
// contain exactly one of the keys of known, and each key has to be in one of them.
func Lines[T any](tb testing.TB, file, heading string, known map[string]T) []Line {
	tb.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n"+heading+"\n")
	if !ok {
		tb.Fatalf("%s has no section %s", file, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var lines []Line
	used := map[string]bool{}
	for _, line := range commandLines(section) {
		var keys []string
		for key := range known {
			if strings.Contains(line, key) {
				keys = append(keys, key)
			}
		}
		if len(keys) != 1 {
			tb.Errorf("%s, %s: %d things are known of %s: %q, want one", file, heading, len(keys), line, keys)
			continue
		}
		used[keys[0]] = true
		lines = append(lines, Line{line, keys[0]})
	}
	for key := range known {
		if !used[key] {
			tb.Errorf("%s, %s: no line has %s", file, heading, key)
		}
	}
	return lines
}

// commandLines are the lines of all blocks but comments, with those that go on
// after a pipe joined.
func commandLines(section string) []string {
	var lines []string
	for i, block := range strings.Split(section, "```") {
		if i%2 == 0 {
			continue
		}
		block = strings.TrimPrefix(block, "sh\n")
		for line := range strings.SplitSeq(strings.ReplaceAll(block, "|\n", "| "), "\n") {
			if line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// Block is the block of a page that begins with some text.
func Block(tb testing.TB, file, begins string) string {
	tb.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n"+begins)
	block, _, closed := strings.Cut(rest, "\n```")
	if !found || !closed {
		tb.Fatalf("%s has no block that begins with %q", file, begins)
	}
	return begins + block
}
