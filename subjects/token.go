package subjects

import (
	"fmt"
	"strings"
)

const upperHex = "0123456789ABCDEF"

// EscapeToken writes s as one subject token that is also one part of a KV key: bytes of
// [A-Za-z0-9_-] stay, every other byte becomes "=XX" with two upper-case hex digits. It works on
// bytes, so s need not be valid UTF-8, and two different strings never give the same token. An
// empty s gives an error that wraps ErrEmptyPart.
func EscapeToken(s string) (string, error) {
	if s == "" {
		return "", fmt.Errorf("escape token: %w", ErrEmptyPart)
	}
	return escape(s, '=', isWord), nil
}

// UnescapeToken is the inverse of EscapeToken. It accepts canonical form only, that is, what
// EscapeToken writes: for every token it accepts, EscapeToken(UnescapeToken(token)) is token again.
// Lower-case hex digits, an escape of a byte that needs none, a cut escape, any byte outside
// [A-Za-z0-9_=-] and the empty token give an error that wraps ErrMalformed.
func UnescapeToken(token string) (string, error) {
	if token == "" {
		return "", fmt.Errorf("unescape token: %w: empty token", ErrMalformed)
	}
	s, err := unescape(token, isWord)
	if err != nil {
		return "", fmt.Errorf("unescape token %s: %w", quote(token), err)
	}
	return s, nil
}

// isWord reports whether c stands for itself in a token.
func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// escape writes the bytes that keep refuses as mark and two upper-case hex
// digits. The result is reversible as long as keep refuses mark itself.
func escape(s string, mark byte, keep func(byte) bool) string {
	n := escapedLen(s, keep)
	if n == len(s) {
		return s
	}
	var b strings.Builder
	b.Grow(n)
	for i := range len(s) {
		if c := s[i]; keep(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte(mark)
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&0x0f])
		}
	}
	return b.String()
}

// escapedLen is the length of escape's result.
func escapedLen(s string, keep func(byte) bool) int {
	n := len(s)
	for i := range len(s) {
		if !keep(s[i]) {
			n += 2
		}
	}
	return n
}

// unescape reverses escape with the mark '='.
func unescape(s string, keep func(byte) bool) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case keep(c):
			b.WriteByte(c)
		case c != '=':
			return "", fmt.Errorf("%w: byte %q at %d must be escaped", ErrMalformed, c, i)
		case i+2 >= len(s):
			return "", fmt.Errorf("%w: cut escape at %d", ErrMalformed, i)
		default:
			hi := strings.IndexByte(upperHex, s[i+1])
			lo := strings.IndexByte(upperHex, s[i+2])
			if hi < 0 || lo < 0 {
				return "", fmt.Errorf("%w: escape at %d is not two upper-case hex digits", ErrMalformed, i)
			}
			raw := byte(hi<<4 | lo)
			if keep(raw) {
				return "", fmt.Errorf("%w: escape at %d stands for %q, which needs none", ErrMalformed, i, raw)
			}
			b.WriteByte(raw)
			i += 2
		}
	}
	return b.String(), nil
}

// part is one piece of identity on its way into a subject, with the name that an error calls it by.
type part struct{ name, value string }

// joinTokens escapes the parts and joins them with dots.
func joinTokens(parts ...part) (string, error) {
	if err := checkParts(parts...); err != nil {
		return "", err
	}
	tokens := make([]string, len(parts))
	for i, p := range parts {
		tokens[i] = escape(p.value, '=', isWord)
	}
	return strings.Join(tokens, "."), nil
}

// checkParts reports every empty part by name, and parts that are together too long for a key.
func checkParts(parts ...part) error {
	var empty []string
	n := len(parts) - 1 // the dots
	for _, p := range parts {
		if p.value == "" {
			empty = append(empty, p.name)
		}
		n += escapedLen(p.value, isWord)
	}
	if len(empty) > 0 {
		return fmt.Errorf("%s: %w", strings.Join(empty, ", "), ErrEmptyPart)
	}
	if n > MaxKeyBytes {
		return fmt.Errorf("%w: %d bytes when escaped, at most %d", ErrTooLong, n, MaxKeyBytes)
	}
	return nil
}

// splitTokens reverses joinTokens for exactly n parts.
func splitTokens(s string, n int) ([]string, error) {
	if len(s) > MaxKeyBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrMalformed, len(s), MaxKeyBytes)
	}
	if got := strings.Count(s, ".") + 1; got != n {
		return nil, fmt.Errorf("%w: %d tokens instead of %d", ErrMalformed, got, n)
	}
	parts := strings.Split(s, ".")
	for i, token := range parts {
		value, err := UnescapeToken(token)
		if err != nil {
			return nil, err
		}
		parts[i] = value
	}
	return parts, nil
}

// quote makes foreign text fit for an error message: printable, on one line,
// and short however long the text is.
func quote(s string) string {
	const limit = 200
	if len(s) > limit {
		return fmt.Sprintf("%q... (%d bytes)", s[:limit], len(s))
	}
	return fmt.Sprintf("%q", s)
}
