package appwatch

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

func TestPositions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		want Position
	}{
		{"", Position{}},
		{"pX2m/1047", Position{StreamID: "pX2m", Sequence: 1047}},
		{"a/b/1", Position{StreamID: "a/b", Sequence: 1}},
		{"/18446744073709551615!", Position{Sequence: math.MaxUint64, Owed: true}},
		{"pX2m/0", Position{StreamID: "pX2m"}},
		{"pX2m/1047.00c0ffee", Position{StreamID: "pX2m", Sequence: 1047, Check: 0xc0ffee}},
		{"a.b/2.ffffffff!", Position{StreamID: "a.b", Sequence: 2, Check: math.MaxUint32, Owed: true}},
	} {
		got, err := ParsePosition(tc.text)
		if err != nil || got != tc.want || got.String() != tc.text {
			t.Errorf("%q: got %v, %v", tc.text, got, err)
		}
		data, err := json.Marshal(got)
		var back Position
		if err != nil || json.Unmarshal(data, &back) != nil || back != tc.want {
			t.Errorf("%q: JSON %s, %v, back %v", tc.text, data, err, back)
		}
	}
	if p, err := ParsePosition("12"); err != nil || p != (Position{Sequence: 12}) {
		t.Errorf("got %v, %v", p, err)
	}
	for _, text := range []string{"/", "a", "a/", "a/-1", "a/01", "a/1!!", "a/1??", "a/1!?", "a/1.", "a/1.00000000", "a/1.C0FFEE00", "a/1.+0000001", "a/1.0000001", "a/1.000000001", "a/1!.00000001", "a b/1", "\x00/1", "/18446744073709551616", strings.Repeat("a", 129) + "/1"} {
		if p, err := ParsePosition(text); !errors.Is(err, subjects.ErrMalformed) {
			t.Errorf("%q: got %v, %v", text, p, err)
		}
	}
}

func FuzzParsePosition(f *testing.F) {
	for _, text := range []string{"", "a/1", "/1!", "/1?", "1", "a/b/2", "a/1.00c0ffee", "/1.ffffffff!"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePosition(text)
		if err != nil {
			return
		}
		if again, err := ParsePosition(p.String()); err != nil || again != p {
			t.Errorf("%q: got %v, then %v, %v", text, p, again, err)
		}
	})
}

func FuzzParseSource(f *testing.F) {
	for _, header := range []string{"", "FLYTE_APPS 12", "FLYTE_APPS 12 flyte.apps.events.> east.apps.events.> flyte.apps.events.lost", "a b", " 1"} {
		f.Add(header)
	}
	f.Fuzz(func(t *testing.T, header string) {
		_, n, ok := parseSource(header)
		if ok && (n == 0 || !strings.Contains(header, " ")) {
			t.Errorf("%q: got %d", header, n)
		}
	})
}

// A message of any content is handled without a panic, and only an event of the contract is one.
func FuzzEntry(f *testing.F) {
	f.Add("$KV.b.shop.production.a", "org.flyte.app.created.v1", "7", "")
	f.Add("$KV.b.shop.production.a", "org.flyte.app.deleted.v1", "7", "DEL")
	f.Add("$KV.b.shop", "x", "-1", "PURGE")
	f.Fuzz(func(t *testing.T, subject, ceType, sequence, operation string) {
		e := parseEntry("b", &nats.Msg{Subject: subject, Header: nats.Header{
			subjects.CEType: {ceType}, subjects.HeaderEventSequence: {sequence}, subjects.HeaderKVOperation: {operation},
		}}, 1)
		if e == nil {
			return
		}
		if key, err := e.id.Key(); err != nil || key != e.key || e.sequence == 0 || e.kind.Type() != ceType {
			t.Errorf("got %+v, %v", e, err)
		}
	})
}

func TestRanges(t *testing.T) {
	t.Parallel()
	r := func(from, to uint64) subjects.LostRange { return subjects.LostRange{From: from, To: to} }
	rs := ranges{r(5, 7), r(10, 10), r(20, math.MaxUint64)}
	for _, tc := range []struct {
		in   subjects.LostRange
		want ranges
	}{
		{r(1, 3), ranges{r(1, 3)}},
		{r(5, 7), nil},
		{r(6, 6), nil},
		{r(4, 11), ranges{r(4, 4), r(8, 9), r(11, 11)}},
		{r(7, 30), ranges{r(8, 9), r(11, 19)}},
		{r(25, math.MaxUint64), nil},
	} {
		if got := rs.without(tc.in); !slices.Equal(got, tc.want) {
			t.Errorf("%v: got %v, want %v", tc.in, got, tc.want)
		}
	}
	if got := rs.with(r(6, 7), r(30, 40), r(7, 8)); len(got) != len(rs)+1 {
		t.Errorf("got %v", got)
	}
}
