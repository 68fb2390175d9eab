package logsvc

import (
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/appbridge/appbridge/logsvc/logline"
)

const (
	// maxExpression, maxInstructions and maxWide bound what an expression costs: it is
	// compiled for each request and tried on every line.
	maxExpression   = 1 << 10
	maxInstructions = 500
	maxWide         = 16
	foldedRange     = 8
	// runesPerInstruction is how many runes of a class cost as much as one instruction.
	runesPerInstruction = 256
	// maxSteps bounds what trying an expression on one line costs, in instructions times
	// bytes, because a match cannot be interrupted: 0.1 s at worst. An expression of up
	// to 32 instructions sees the whole of the longest line.
	maxSteps = 4 << 20
)

// expression is the value of include or exclude.
type expression struct {
	re    *regexp.Regexp
	reach int // how many bytes of a line it sees
}

// compile is nil for an expression that is none, or that costs too much. What it costs
// is known before it is compiled: 1 KiB of nested repetitions is a million instructions.
func compile(text string) *expression {
	if len(text) > maxExpression || wide(text) > maxWide {
		return nil
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil
	}
	n := instructions(parsed) + 2 // it begins and ends with one
	if n > maxInstructions {
		return nil
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil
	}
	return &expression{re: re, reach: maxSteps / n}
}

// match reports whether the expression matches what it sees of a line.
func (e *expression) match(text []byte) bool {
	text = logline.TrimCR(text)
	return e.re.Match(text[:min(len(text), e.reach)])
}

// wide counts what may stand for thousands of runes: Unicode classes, and ranges that end
// beyond ASCII. Where case does not matter the parser visits each rune of a range, which
// therefore counts as foldedRange.
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

// instructions is at least the length of the program that a parsed expression is
// compiled to, and counts large classes as more. What is repeated counts as often as the
// compiler copies it. The parser bounds the product of nested repetitions and the depth.
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
