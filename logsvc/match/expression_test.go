package match

import (
	"regexp/syntax"
	"strings"
	"testing"
)

// An expression costs little, however it is written, and one that costs much is refused
// before it is compiled.
func TestExpressions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"error|panic": true, `^\d{4}-\d\d`: true, "(?i)timeout": true, `(?i)"level":\s*"(error|warn)"`: true,
		`\p{L}+ \p{Greek}`: true, `[\x80-\xff]`: true, `(\d{1,3}\.){3}\d{1,3}`: true,
		"(": false, strings.Repeat("x", 1025): false, ".{1000}": false, "(.{100}){10}": false,
		"(" + strings.Repeat("a", 1000) + "){1000}":                false,
		"((((a{10}){10}){10}))" + strings.Repeat("(a{1000})", 100): false,
		strings.Repeat("a{1000}", 140):                             false,
		"(?i)[" + strings.Repeat("!-\U00010000", 160) + "]":        false,
		"(?i)[" + strings.Repeat(`!-\x{10000}`, 80) + "]":          false,
		`(?i)[à-ÿ\x{100}-\x{17f}]`:                                 true, strings.Repeat(`[\x80-\xff]`, 16): true,
		"(?i)[" + strings.Repeat(`A-\x{1e942}`, 3) + "]": false, "(?:x(?si:[^A-\U0001e942a-\U0001e942b-\U0001e942]))": false,
		strings.Repeat(`\pL`, 340): false,
		`(\pL{100})`:               false,
		strings.Repeat("(", 500) + strings.Repeat(")", 500):           false,
		strings.Repeat("(?:a", 200) + "a" + strings.Repeat(")?", 200): false,
	} {
		if got := Compile(text) != nil; got != want {
			t.Errorf("%.40s: got %t, want %t", text, got, want)
		}
	}
}

// A refused expression has cost next to nothing.
func TestRefusedExpression(t *testing.T) { //nolint:paralleltest // counts allocations
	allocated := testing.AllocsPerRun(1, func() { Compile("(" + strings.Repeat("a", 1000) + "){1000}") })
	if allocated > 1000 {
		t.Errorf("%v allocations", allocated)
	}
}

// A line is seen as far as its cost is bounded.
func TestExpressionReach(t *testing.T) {
	t.Parallel()
	cheap, dear := Compile("needle"), Compile(strings.Repeat(".*", 100)+"needle")
	if cheap.maxBytes < 128<<10 {
		t.Errorf("needle sees %d bytes of a line", cheap.maxBytes)
	}
	line := []byte(strings.Repeat("x", 64<<10) + "needle\r")
	if !cheap.match(line) || dear.match(line) || !dear.match(line[len(line)-100:]) {
		t.Errorf("needle: %t, .*needle: %t", cheap.match(line), dear.match(line))
	}
}

// No expression has a longer program than was estimated.
func FuzzInstructions(f *testing.F) {
	for _, text := range []string{
		"a", "", "a*", "(a|b)*?", "(a*)*", "(?:a?){3,7}", "(a{2,}){3}", "(?i)ſk{2}", `\pL{3}|x`, "a{0}", "a{0,1}", "(?:){5}", "(|a)*", "(|a)+", "[^\\x00-\\x{10FFFF}]{4}",
		"abc|abd|ab?", `^$\b\Ba{1,}`, "(?s).{2}", "((a{3}){3}b){3}", "x{2,}?", "(?:ab){0,}",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := syntax.Parse(text, syntax.Perl)
		if err != nil || len(text) > 50 {
			return
		}
		n := instructions(parsed) + 2
		if n > 100_000 {
			return
		}
		program, err := syntax.Compile(parsed.Simplify())
		if err == nil && len(program.Inst) > n {
			t.Errorf("%q: estimated %d, compiled to %d instructions", text, n, len(program.Inst))
		}
	})
}
