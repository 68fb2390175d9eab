package subjects_test

import (
	"errors"
	"math"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

func TestMessageID(t *testing.T) {
	t.Parallel()
	const uid = "3e0f8a52-58a4-44c6-a1b7-2a9c4f1d6b90"
	for _, tc := range []struct {
		name string
		id   subjects.MessageID
		want string
	}{
		{"first event", subjects.MessageID{UID: uid, ResourceVersion: "48213"}, uid + "/48213/0"},
		{"later event", subjects.MessageID{UID: uid, ResourceVersion: "48213", PreviousSequence: 17}, uid + "/48213/17"},
		{"highest sequence", subjects.MessageID{UID: "u", ResourceVersion: "1", PreviousSequence: math.MaxUint64}, "u/1/18446744073709551615"},
		{"other punctuation", subjects.MessageID{UID: "a.b:c", ResourceVersion: "v*>"}, "a.b:c/v*>/0"},
		{"what would break the form", subjects.MessageID{UID: "a/b", ResourceVersion: "=2F"}, "a=2Fb/=3D2F/0"},
		{"what a header cannot carry", subjects.MessageID{UID: "a\r\nb", ResourceVersion: "é \"%"}, "a=0D=0Ab/=C3=A9=20=22=25/0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := tc.id.String(); got != tc.want {
				t.Fatalf("String() = %q, want %q", got, tc.want)
			}
			back, err := subjects.ParseMessageID(tc.want)
			if err != nil || back != tc.id {
				t.Fatalf("ParseMessageID(%q) = %+v, %v, want %+v", tc.want, back, err, tc.id)
			}
		})
	}
}

func TestParseMessageIDRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, in string
		is       error
	}{
		{"empty", "", subjects.ErrMalformed},
		{"two parts", "u/1", subjects.ErrMalformed},
		{"four parts", "u/1/0/0", subjects.ErrMalformed},
		{"no uid", "/1/0", subjects.ErrEmptyPart},
		{"no version", "u//0", subjects.ErrEmptyPart},
		{"no sequence", "u/1/", subjects.ErrMalformed},
		{"negative sequence", "u/1/-1", subjects.ErrMalformed},
		{"plus sign", "u/1/+1", subjects.ErrMalformed},
		{"leading zero", "u/1/01", subjects.ErrMalformed},
		{"hex sequence", "u/1/0x1", subjects.ErrMalformed},
		{"sequence over 64 bits", "u/1/18446744073709551616", subjects.ErrMalformed},
		{"space", "u u/1/0", subjects.ErrMalformed},
		{"lower-case escape", "u=2f/1/0", subjects.ErrMalformed},
		{"needless escape", "=61/1/0", subjects.ErrMalformed},
		{"cut escape", "u=/1/0", subjects.ErrMalformed},
		{"not ASCII", "é/1/0", subjects.ErrMalformed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := subjects.ParseMessageID(tc.in)
			if !errors.Is(err, tc.is) || got != (subjects.MessageID{}) {
				t.Fatalf("ParseMessageID(%q) = %+v, %v, want %v", tc.in, got, err, tc.is)
			}
		})
	}
}

func FuzzMessageID(f *testing.F) {
	f.Add("uid", "1", uint64(0), "uid", "1", uint64(1))
	f.Add("a/b", "c", uint64(7), "a", "b/c", uint64(7))
	f.Add("\xff", "=", uint64(math.MaxUint64), "é", "\r\n", uint64(10))
	f.Fuzz(func(t *testing.T, uid, version string, seq uint64, uid2, version2 string, seq2 uint64) {
		a := subjects.MessageID{UID: uid, ResourceVersion: version, PreviousSequence: seq}
		b := subjects.MessageID{UID: uid2, ResourceVersion: version2, PreviousSequence: seq2}
		if (a.String() == b.String()) != (a == b) {
			t.Fatalf("%+v and %+v are written %q and %q", a, b, a, b)
		}
		for _, c := range []byte(a.String()) {
			if c <= ' ' || c > '~' || c == '"' || c == '%' {
				t.Fatalf("%q has the byte %q", a, c)
			}
		}
		back, err := subjects.ParseMessageID(a.String())
		if uid == "" || version == "" {
			if !errors.Is(err, subjects.ErrEmptyPart) {
				t.Fatalf("ParseMessageID(%q): %v, want ErrEmptyPart", a, err)
			}
			return
		}
		if err != nil || back != a {
			t.Fatalf("ParseMessageID(%q) = %+v, %v, want %+v", a, back, err, a)
		}
	})
}

func FuzzParseMessageID(f *testing.F) {
	for _, s := range []string{"u/1/0", "u/1/01", "u/1/18446744073709551615", "=2F/=20/9", "//", "u/1/0/0", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := subjects.ParseMessageID(s)
		if err == nil && id.String() != s {
			t.Fatalf("ParseMessageID(%q) = %+v, written %q", s, id, id)
		}
	})
}
