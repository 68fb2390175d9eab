package subjects_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

func TestAppIDKey(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		id   subjects.AppID
		want string
	}{
		{"plain", subjects.AppID{Project: "shop", Domain: "production", Name: "checkout"}, "shop.production.checkout"},
		{"name with slashes", subjects.AppID{Project: "p", Domain: "d", Name: "a/b"}, "p.d.a=2Fb"},
		{"dots and wildcards", subjects.AppID{Project: "p.q", Domain: "*", Name: ">"}, "p=2Eq.=2A.=3E"},
		{"not UTF-8", subjects.AppID{Project: "\xc3", Domain: "\xa9", Name: "é"}, "=C3.=A9.=C3=A9"},
		{
			"as long as it may be",
			subjects.AppID{Project: "p", Domain: "d", Name: strings.Repeat("n", subjects.MaxKeyBytes-4)},
			"p.d." + strings.Repeat("n", subjects.MaxKeyBytes-4),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if err := tc.id.Validate(); err != nil {
				t.Fatalf("Validate: %v", err)
			}
			got, err := tc.id.Key()
			if err != nil || got != tc.want {
				t.Fatalf("Key() = %q, %v, want %q", got, err, tc.want)
			}
			back, err := subjects.ParseKey(got)
			if err != nil || back != tc.id {
				t.Fatalf("ParseKey(%q) = %v, %v, want %v", got, back, err, tc.id)
			}
		})
	}
}

func TestAppIDRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		id   subjects.AppID
		is   error
		text string
	}{
		{"zero value", subjects.AppID{}, subjects.ErrEmptyPart, `app id "//": project, domain, name: empty part`},
		{"no project", subjects.AppID{Domain: "d", Name: "n"}, subjects.ErrEmptyPart, `app id "/d/n": project: empty part`},
		{"no domain", subjects.AppID{Project: "p", Name: "n"}, subjects.ErrEmptyPart, `app id "p//n": domain: empty part`},
		{"no name", subjects.AppID{Project: "p", Domain: "d"}, subjects.ErrEmptyPart, `app id "p/d/": name: empty part`},
		{
			"one byte too long",
			subjects.AppID{Project: "p", Domain: "d", Name: strings.Repeat("n", subjects.MaxKeyBytes-3)},
			subjects.ErrTooLong, "2049 bytes when escaped, at most 2048",
		},
		{
			"too long by escapes",
			subjects.AppID{Project: "p", Domain: "d", Name: strings.Repeat(".", subjects.MaxKeyBytes/3)},
			subjects.ErrTooLong, "2050 bytes when escaped",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := tc.id.Validate()
			if !errors.Is(got, tc.is) || !strings.Contains(got.Error(), tc.text) {
				t.Errorf("Validate() = %v, want %q", got, tc.text)
			}
			if got != nil && (len(got.Error()) > 400 || strings.Contains(got.Error(), "\n")) {
				t.Errorf("Validate() is no single short line: %v", got)
			}
			if key, err := tc.id.Key(); !errors.Is(err, tc.is) || key != "" {
				t.Errorf("Key() = %q, %v, want the error of Validate", key, err)
			}
		})
	}
}

func TestParseKeyRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, key string
	}{
		{"empty", ""},
		{"one part", "p"},
		{"two parts", "p.d"},
		{"four parts", "p.d.n.x"},
		{"empty part", "p..n"},
		{"leading dot", ".d.n"},
		{"trailing dot", "p.d."},
		{"wildcard", "p.d.*"},
		{"full wildcard", "p.d.>"},
		{"not canonical", "p.d.=6e"},
		{"slash", "p.d.a/b"},
		{"too long", "p.d." + strings.Repeat("n", subjects.MaxKeyBytes)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := subjects.ParseKey(tc.key)
			if !errors.Is(err, subjects.ErrMalformed) || got != (subjects.AppID{}) {
				t.Fatalf("ParseKey(%q) = %v, %v, want ErrMalformed", tc.key, got, err)
			}
		})
	}
}

// What no two ids may share: parts that differ only in where one part ends and
// the next begins.
func TestKeysOfNeighboursDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]subjects.AppID{}
	for _, id := range []subjects.AppID{
		{Project: "a.b", Domain: "c", Name: "d"},
		{Project: "a", Domain: "b.c", Name: "d"},
		{Project: "a", Domain: "b", Name: "c.d"},
		{Project: "a/b", Domain: "c", Name: "d"},
		{Project: "a=2Eb", Domain: "c", Name: "d"},
		{Project: "a", Domain: "B", Name: "c"},
		{Project: "A", Domain: "b", Name: "c"},
		{Project: "a", Domain: "b", Name: "c"},
		{Project: "a", Domain: "b", Name: "c "},
	} {
		key, err := id.Key()
		if err != nil {
			t.Fatal(err)
		}
		if other, dup := seen[key]; dup {
			t.Errorf("%q and %q share the key %q", id, other, key)
		}
		seen[key] = id
	}
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"p.d.n", "p.d.=2E", "p..n", "p.d.*", "=00.=FF.=20", "a.b.c.d", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		id, err := subjects.ParseKey(key)
		if err != nil {
			if !errors.Is(err, subjects.ErrMalformed) {
				t.Fatalf("ParseKey(%q): %v does not wrap ErrMalformed", key, err)
			}
			return
		}
		again, err := id.Key()
		if err != nil || again != key {
			t.Fatalf("ParseKey(%q) = %q, whose key is %q, %v", key, id, again, err)
		}
	})
}
