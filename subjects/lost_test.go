package subjects_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

func TestNotice(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, from, to string
		want           subjects.LostRange
		is             error
	}{
		{"one sequence", "1", "1", subjects.LostRange{From: 1, To: 1}, nil},
		{"several", "9", "10", subjects.LostRange{From: 9, To: 10}, nil},
		{"the highest", "1", "18446744073709551615", subjects.LostRange{From: 1, To: math.MaxUint64}, nil},
		{"nothing", "", "", subjects.LostRange{}, subjects.ErrMalformed},
		{"no end", "1", "", subjects.LostRange{}, subjects.ErrMalformed},
		{"no start", "", "1", subjects.LostRange{}, subjects.ErrMalformed},
		{"zero", "0", "1", subjects.LostRange{}, subjects.ErrMalformed},
		{"backwards", "2", "1", subjects.LostRange{}, subjects.ErrMalformed},
		{"leading zero", "01", "2", subjects.LostRange{}, subjects.ErrMalformed},
		{"sign", "+1", "2", subjects.LostRange{}, subjects.ErrMalformed},
		{"negative", "-1", "2", subjects.LostRange{}, subjects.ErrMalformed},
		{"space", "1", " 2", subjects.LostRange{}, subjects.ErrMalformed},
		{"hex", "0x1", "2", subjects.LostRange{}, subjects.ErrMalformed},
		{"too high", "1", "18446744073709551616", subjects.LostRange{}, subjects.ErrMalformed},
		{"a range", "1-2", "3", subjects.LostRange{}, subjects.ErrMalformed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := subjects.ParseNotice(tc.from, tc.to)
			if got != tc.want || !errors.Is(err, tc.is) {
				t.Fatalf("got %v, %v, want %v, %v", got, err, tc.want, tc.is)
			}
			if err != nil {
				return
			}
			if from, to := subjects.FormatNotice(got); from != tc.from || to != tc.to {
				t.Errorf("FormatNotice(%v) = %q, %q, want %q, %q", got, from, to, tc.from, tc.to)
			}
		})
	}
}

func TestLostRanges(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, value string
		want        []subjects.LostRange
		is          error
	}{
		{"none", "", nil, nil},
		{"one", "7-9", []subjects.LostRange{{From: 7, To: 9}}, nil},
		{"several", "7-9,1-3,4-4", []subjects.LostRange{{From: 7, To: 9}, {From: 1, To: 3}, {From: 4, To: 4}}, nil},
		{"empty word", "7-9,", nil, subjects.ErrMalformed},
		{"leading comma", ",7-9", nil, subjects.ErrMalformed},
		{"comma alone", ",", nil, subjects.ErrMalformed},
		{"no end", "7", nil, subjects.ErrMalformed},
		{"two dashes", "7-8-9", nil, subjects.ErrMalformed},
		{"a space", "7-9, 1-3", nil, subjects.ErrMalformed},
		{"one of them backwards", "7-9,3-1", nil, subjects.ErrMalformed},
		{"zero", "0-3", nil, subjects.ErrMalformed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := subjects.ParseLostRanges(tc.value)
			if !slices.Equal(got, tc.want) || !errors.Is(err, tc.is) {
				t.Fatalf("got %v, %v, want %v, %v", got, err, tc.want, tc.is)
			}
			one, err := subjects.ParseLostRange(tc.value)
			switch {
			case len(tc.want) == 1 && (err != nil || one != tc.want[0]):
				t.Errorf("one range is %v, %v, want %v", one, err, tc.want[0])
			case len(tc.want) != 1 && !errors.Is(err, subjects.ErrMalformed):
				t.Errorf("one range is %v, %v, want %v", one, err, subjects.ErrMalformed)
			}
		})
	}
}

func TestLostRangeContains(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		lost     subjects.LostRange
		sequence uint64
		want     bool
	}{
		{"before", subjects.LostRange{From: 5, To: 7}, 4, false},
		{"first", subjects.LostRange{From: 5, To: 7}, 5, true},
		{"inside", subjects.LostRange{From: 5, To: 7}, 6, true},
		{"last", subjects.LostRange{From: 5, To: 7}, 7, true},
		{"after", subjects.LostRange{From: 5, To: 7}, 8, false},
		{"one", subjects.LostRange{From: 5, To: 5}, 5, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := tc.lost.Contains(tc.sequence); got != tc.want {
				t.Fatalf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// What is accepted is what would be written, and what is written for a range that is not empty is
// accepted.
func FuzzNotice(f *testing.F) {
	f.Add("1", "2")
	f.Add("2", "1")
	f.Add("0", "18446744073709551616")
	f.Add("01", "+1")
	f.Fuzz(func(t *testing.T, from, to string) {
		got, err := subjects.ParseNotice(from, to)
		if err != nil {
			if !errors.Is(err, subjects.ErrMalformed) || got != (subjects.LostRange{}) {
				t.Fatalf("ParseNotice(%q, %q) = %v, %v", from, to, got, err)
			}
			return
		}
		if got.From == 0 || got.From > got.To {
			t.Errorf("ParseNotice(%q, %q) accepts the empty range %v", from, to, got)
		}
		if againFrom, againTo := subjects.FormatNotice(got); againFrom != from || againTo != to {
			t.Errorf("ParseNotice(%q, %q) is written %q, %q", from, to, againFrom, againTo)
		}
		if again, err := subjects.ParseLostRange(got.String()); err != nil || again != got {
			t.Errorf("ParseLostRange(%q) = %v, %v", got, again, err)
		}
	})
}

func FuzzLostRanges(f *testing.F) {
	f.Add("")
	f.Add("1-2,3-4")
	f.Add("1-2-3,4")
	f.Add(",-")
	f.Add("18446744073709551615-18446744073709551616")
	f.Fuzz(func(t *testing.T, value string) {
		got, err := subjects.ParseLostRanges(value)
		if err != nil {
			if !errors.Is(err, subjects.ErrMalformed) || got != nil {
				t.Fatalf("ParseLostRanges(%q) = %v, %v", value, got, err)
			}
			return
		}
		if again := subjects.FormatLostRanges(got); again != value {
			t.Errorf("ParseLostRanges(%q) is written %q", value, again)
		}
		for _, r := range got {
			if r.From == 0 || r.From > r.To {
				t.Errorf("ParseLostRanges(%q) accepts the empty range %v", value, r)
			}
		}
	})
}

// The other way round: every list of ranges comes back.
func FuzzLostRangesRoundTrip(f *testing.F) {
	f.Add(uint64(1), uint64(1), uint64(2), uint64(9))
	f.Add(uint64(7), uint64(3), uint64(1), uint64(math.MaxUint64))
	f.Fuzz(func(t *testing.T, a, b, c, d uint64) {
		want := []subjects.LostRange{{From: a, To: b}, {From: c, To: d}}
		empty := slices.ContainsFunc(want, func(r subjects.LostRange) bool { return r.From == 0 || r.From > r.To })
		got, err := subjects.ParseLostRanges(subjects.FormatLostRanges(want))
		if empty != (err != nil) || !empty && !slices.Equal(got, want) {
			t.Errorf("%v comes back as %v, %v", want, got, err)
		}
	})
}
