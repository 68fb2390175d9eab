package subjects_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

func TestEscapeToken(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, in, want string
	}{
		{"plain", "checkout", "checkout"},
		{"every plain class", "aZ09-_", "aZ09-_"},
		{"dot", ".", "=2E"},
		{"star", "*", "=2A"},
		{"greater", ">", "=3E"},
		{"space", " ", "=20"},
		{"equals", "=", "=3D"},
		{"looks escaped", "=2E", "=3D2E"},
		{"slash", "a/b", "a=2Fb"},
		{"dollar", "$KV", "=24KV"},
		{"nul", "\x00", "=00"},
		{"newline", "a\r\nb", "a=0D=0Ab"},
		{"delete", "\x7f", "=7F"},
		{"two bytes of UTF-8", "é", "=C3=A9"},
		{"four bytes of UTF-8", "🚀", "=F0=9F=9A=80"},
		{"not UTF-8", "\xff\xfe", "=FF=FE"},
		{"percent", "%2E", "=252E"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := subjects.EscapeToken(tc.in)
			if err != nil || got != tc.want {
				t.Fatalf("EscapeToken(%q) = %q, %v, want %q", tc.in, got, err, tc.want)
			}
			back, err := subjects.UnescapeToken(got)
			if err != nil || back != tc.in {
				t.Fatalf("UnescapeToken(%q) = %q, %v, want %q", got, back, err, tc.in)
			}
		})
	}
}

func TestEscapeTokenRefusesEmpty(t *testing.T) {
	t.Parallel()
	got, err := subjects.EscapeToken("")
	if !errors.Is(err, subjects.ErrEmptyPart) {
		t.Fatalf("EscapeToken(\"\") = %q, %v, want ErrEmptyPart", got, err)
	}
}

func TestUnescapeTokenRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, token string
	}{
		{"empty", ""},
		{"lower-case hex", "=2e"},
		{"mixed-case hex", "=fE"},
		{"escape of a plain byte", "=61"},
		{"escape of a hyphen", "=2D"},
		{"lone equals", "="},
		{"cut escape", "a=2"},
		{"not hex", "=G0"},
		{"not hex in the second digit", "=0G"},
		{"two equals", "=="},
		{"dot", "a.b"},
		{"star", "*"},
		{"greater", ">"},
		{"space", "a b"},
		{"control", "a\x01"},
		{"not ASCII", "é"},
		{"slash", "a/b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := subjects.UnescapeToken(tc.token)
			if !errors.Is(err, subjects.ErrMalformed) {
				t.Fatalf("UnescapeToken(%q) = %q, %v, want ErrMalformed", tc.token, got, err)
			}
		})
	}
}

// Every single byte has one token, no two share one, and only the 64 plain ones
// and the canonical escapes of the other 192 are accepted.
func TestTokensOfSingleBytes(t *testing.T) {
	t.Parallel()
	seen := map[string]byte{}
	for i := range 256 {
		token, err := subjects.EscapeToken(string([]byte{byte(i)}))
		if err != nil {
			t.Fatalf("byte %#x: %v", i, err)
		}
		if other, dup := seen[token]; dup {
			t.Fatalf("bytes %#x and %#x share the token %q", i, other, token)
		}
		seen[token] = byte(i)
	}
	accepted := 0
	check := func(token string) {
		s, err := subjects.UnescapeToken(token)
		if err != nil {
			return
		}
		accepted++
		if len(s) != 1 || seen[token] != s[0] {
			t.Errorf("UnescapeToken(%q) = %q, which EscapeToken does not write so", token, s)
		}
	}
	for i := range 256 {
		check(string([]byte{byte(i)}))
		for j := range 256 {
			check(string([]byte{'=', byte(i), byte(j)}))
		}
	}
	if accepted != len(seen) {
		t.Errorf("accepted %d tokens of single bytes, want %d", accepted, len(seen))
	}
}

func FuzzToken(f *testing.F) {
	for _, s := range []string{"a", "a.b", "*", ">", " ", "=", "=2E", "é", "\xff", "\x00", "$KV"} {
		f.Add(s, "other")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		ta, err := subjects.EscapeToken(a)
		if a == "" {
			if !errors.Is(err, subjects.ErrEmptyPart) {
				t.Fatalf("EscapeToken(\"\"): %v, want ErrEmptyPart", err)
			}
			return
		}
		if err != nil {
			t.Fatalf("EscapeToken(%q): %v", a, err)
		}
		requireToken(t, ta)
		back, err := subjects.UnescapeToken(ta)
		if err != nil || back != a {
			t.Fatalf("UnescapeToken(%q) = %q, %v, want %q", ta, back, err, a)
		}
		if tb, err := subjects.EscapeToken(b); err == nil && (ta == tb) != (a == b) {
			t.Fatalf("%q and %q have the tokens %q and %q", a, b, ta, tb)
		}
	})
}

func FuzzUnescapeToken(f *testing.F) {
	for _, s := range []string{"a", "=2E", "=2e", "=61", "=", "=2", "==", "a.b", "", "é", "=FF=FE"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, token string) {
		s, err := subjects.UnescapeToken(token)
		if err != nil {
			if !errors.Is(err, subjects.ErrMalformed) {
				t.Fatalf("UnescapeToken(%q): %v does not wrap ErrMalformed", token, err)
			}
			return
		}
		requireToken(t, token)
		again, err := subjects.EscapeToken(s)
		if err != nil || again != token {
			t.Fatalf("UnescapeToken(%q) = %q, which is written %q, %v", token, s, again, err)
		}
	})
}

// requireToken fails unless s is a literal subject token and part of a KV key.
func requireToken(t *testing.T, s string) {
	t.Helper()
	if s == "" {
		t.Fatal("empty token")
	}
	const legal = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_="
	for i := range len(s) {
		if !strings.Contains(legal, s[i:i+1]) {
			t.Fatalf("token %q has the byte %q", s, s[i])
		}
	}
}
