package match

import (
	"bytes"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// MaxBytes is how long an expression may be.
const MaxBytes = 1 << 10

const (
	// maxInstructions and maxWide bound the cost of an expression, too: it is compiled for each
	// request and matched with every line.
	maxInstructions     = 500
	maxWide             = 16
	foldedRange         = 8
	runesPerInstruction = 256 // how many runes of a class cost as much as one instruction
	// maxSteps bounds the cost of matching one line, in instructions times bytes, because a match
	// cannot be interrupted: 0.1 s at worst. An expression of up to 32 instructions matches the
	// whole of the longest line.
	maxSteps = 4 << 20
)

// Expression is the value of include or exclude.
type Expression struct {
	re       *regexp.Regexp
	maxBytes int // how many bytes of a line are matched
}

// Compile returns nil for an expression that is invalid or costs too much. It checks the cost
// first: 1 KiB of nested repetitions compiles to a million instructions.
func Compile(text string) *Expression {
	if len(text) > MaxBytes || wide(text) > maxWide {
		return nil
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil
	}
	n := instructions(parsed) + 2 // one at the beginning and one at the end
	if n > maxInstructions {
		return nil
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil
	}
	return &Expression{re: re, maxBytes: maxSteps / n}
}

// match reports whether the expression matches the first maxBytes of a line.
func (e *Expression) match(text []byte) bool {
	text = bytes.TrimRight(text, "\r")
	return e.re.Match(text[:min(len(text), e.maxBytes)])
}

// wide counts the parts that may match thousands of runes: Unicode classes, and ranges that end
// beyond ASCII. In a case-insensitive expression a range counts as foldedRange, because the parser
// visits each of its runes.
func wide(text string) int {
	n, each := strings.Count(text, `\p`)+strings.Count(text, `\P`), 1
	for _, group := range strings.Split(text, "(?")[1:] {
		if flags := len(group) - len(strings.TrimLeft(group, "imsU")); strings.Contains(group[:flags], "i") {
			each = foldedRange
		}
	}
	for _, end := range strings.Split(text, "-")[1:] {
		if end != "" && (end[0] == '\\' || end[0] >= utf8.RuneSelf) {
			n += each
		}
	}
	return n
}

// instructions returns an upper bound of the length of the compiled program, in which large classes
// count as more. A repeated part counts as often as the compiler copies it. The parser bounds the
// product of nested repetitions and the depth.
func instructions(re *syntax.Regexp) int {
	n := 0
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	switch re.Op {
	case syntax.OpConcat:
		return max(n, 1)
	case syntax.OpLiteral:
		return max(len(re.Rune), 1)
	case syntax.OpCharClass:
		return 1 + len(re.Rune)/runesPerInstruction
	case syntax.OpAlternate:
		return n + len(re.Sub)
	case syntax.OpCapture, syntax.OpStar, syntax.OpPlus, syntax.OpQuest:
		return n + 2
	case syntax.OpRepeat:
		if re.Max < 0 {
			return max(re.Min, 1)*n + 2
		}
		return re.Min*n + (re.Max-re.Min)*(n+1) + 1
	default:
		return 1
	}
}
