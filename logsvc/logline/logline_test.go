package logline_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/appbridge/appbridge/logsvc/logline"
)

func TestParse(t *testing.T) {
	tests := []struct {
		line    string
		time    string // RFC 3339, empty: none
		message string
	}{
		{"2026-03-14T09:26:53.123456789Z hello world", "2026-03-14T09:26:53.123456789Z", "hello world"},
		{"2026-03-14T09:26:53.123456789+05:30 hello", "2026-03-14T03:56:53.123456789Z", "hello"},
		{"2026-03-14T09:26:53.123456789-00:30 ", "2026-03-14T09:56:53.123456789Z", ""},
		{"2026-03-14T09:26:53.123456789+24:00 hello", "2026-03-13T09:26:53.123456789Z", "hello"},
		{"2026-03-14T09:26:53,5Z hello", "2026-03-14T09:26:53.5Z", "hello"},
		{"2026-03-14T9:26:53Z hello", "2026-03-14T09:26:53Z", "hello"},
		{"2026-03-14T9:26:53Z  two spaces", "2026-03-14T09:26:53Z", " two spaces"},
		{"2026-03-14T09:26:53.0000000001Z x", "2026-03-14T09:26:53Z", "x"},
		{"2024-02-29T00:00:00.000000000Z leap", "2024-02-29T00:00:00Z", "leap"},
		{"2023-02-29T00:00:00.000000000Z no leap", "", "2023-02-29T00:00:00.000000000Z no leap"},
		{"2026-03-14T24:00:00.000000000Z x", "", "2026-03-14T24:00:00.000000000Z x"},
		{"2026-03-14T23:59:60.000000000Z x", "", "2026-03-14T23:59:60.000000000Z x"},
		{"2026-13-14T23:59:00.000000000Z x", "", "2026-13-14T23:59:00.000000000Z x"},
		{"2026-03-14T09:26:53.12345678xZ x", "", "2026-03-14T09:26:53.12345678xZ x"},
		{"2026-03-14T09:26:53.123456789z x", "", "2026-03-14T09:26:53.123456789z x"},
		{"2026-03-14T09:26:53.123456789Z\tx", "", "2026-03-14T09:26:53.123456789Z\tx"},
		{"2026-03-14T09:26:53.123456789Z", "", "2026-03-14T09:26:53.123456789Z"},
		{"2026-03-14T09:26:53.123456789+05:30", "", "2026-03-14T09:26:53.123456789+05:30"},
		{" 2026-03-14T09:26:53Z x", "", " 2026-03-14T09:26:53Z x"},
		{"", "", ""},
		{" ", "", " "},
		{"a line of text that is long enough to hold a time", "", "a line of text that is long enough to hold a time"},
	}
	for _, tt := range tests {
		got, message := logline.Parse([]byte(tt.line))
		var want time.Time
		if tt.time != "" {
			var err error
			if want, err = time.Parse(time.RFC3339Nano, tt.time); err != nil {
				t.Fatal(err)
			}
		}
		if !got.Equal(want) || got.IsZero() != (tt.time == "") || string(message) != tt.message {
			t.Errorf("%q: got %s %q, want %s %q", tt.line, got, message, want, tt.message)
		}
	}
}

// FuzzParse holds the fast path to the standard library's.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"2026-03-14T09:26:53.123456789Z hello", "2026-03-14T09:26:53.123456789+05:30 hello", "2026-02-30T09:26:53.123456789Z x",
		"0001-01-01T00:00:00.000000000Z x", "2026-03-14T09:26:53.123456789+23:60 x", "2026-03-14T9:26:53,1Z x", " ", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		wantTime, wantMessage := time.Time{}, line
		if i := bytes.IndexByte(line, ' '); i > 0 {
			if at, err := time.Parse(time.RFC3339Nano, string(line[:i])); err == nil {
				wantTime, wantMessage = at, line[i+1:]
			}
		}
		at, message := logline.Parse(line)
		if !at.Equal(wantTime) || !bytes.Equal(message, wantMessage) {
			t.Errorf("%q: got %s %q, want %s %q", line, at, message, wantTime, wantMessage)
		}
	})
}

type cutLine struct {
	Text string
	Cut  int64
}

// scan reads chunks to their end. It looks at the lines of a chunk only when the
// whole of it was scanned, as callers may.
func scan(limit int, chunks [][]byte) []cutLine {
	s := logline.NewScanner(limit)
	var out []cutLine
	for _, chunk := range chunks {
		chunk = bytes.Clone(chunk)
		s.Feed(chunk)
		var lines [][]byte
		var cuts []int64
		for s.Next() {
			lines, cuts = append(lines, s.Line()), append(cuts, s.Cut())
		}
		for i := range lines {
			out = append(out, cutLine{string(lines[i]), cuts[i]})
		}
		for i := range chunk { // nothing may be read from it any more
			chunk[i] = 'X'
		}
	}
	if s.Rest() {
		out = append(out, cutLine{string(s.Line()), s.Cut()})
	}
	return out
}

func wantLines(limit int, data []byte) []cutLine {
	var out []cutLine
	for len(data) > 0 {
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		keep := min(len(line), limit)
		out = append(out, cutLine{string(line[:keep]), int64(len(line) - keep)})
		data = rest
	}
	return out
}

func TestScanner(t *testing.T) {
	for _, input := range []string{"", "\n", "\n\n", "a", "a\n", "a\nb", "ab\r\n\nlong long line\nx", "\nlong line without end"} {
		for size := 1; size <= len(input)+1; size++ {
			got := scan(5, slices.Collect(slices.Chunk([]byte(input), size)))
			if diff := cmp.Diff(wantLines(5, []byte(input)), got); diff != "" {
				t.Errorf("%q in chunks of %d (-want +got):\n%s", input, size, diff)
			}
		}
	}
}

func TestScannerReset(t *testing.T) {
	s := logline.NewScanner(10)
	s.Feed([]byte("one\ntw"))
	for s.Next() {
		continue
	}
	s.Reset()
	if s.Rest() {
		t.Error("a line is left after Reset")
	}
	s.Feed([]byte("o\n"))
	if !s.Next() || string(s.Line()) != "o" {
		t.Errorf("got %q, want %q", s.Line(), "o")
	}
}

// TestScannerBounded feeds a line that never ends.
func TestScannerBounded(t *testing.T) {
	const size, limit = 100 << 20, 1 << 10
	chunk := bytes.Repeat([]byte("x"), 64<<10)
	s := logline.NewScanner(limit)
	allocated := testing.AllocsPerRun(1, func() {
		s.Reset()
		for range size / len(chunk) {
			s.Feed(chunk)
			if s.Next() {
				t.Error("a line ended")
			}
		}
	})
	if !s.Rest() || len(s.Line()) != limit || s.Cut() != size-limit {
		t.Errorf("got %d bytes and %d cut, want %d and %d", len(s.Line()), s.Cut(), limit, size-limit)
	}
	if allocated > 20 {
		t.Errorf("got %v allocations", allocated)
	}
}

// FuzzScanner: how the stream was cut into chunks does not show.
func FuzzScanner(f *testing.F) {
	f.Add([]byte("one\ntwo\r\n\nthree"), uint8(4), uint64(1))
	f.Add([]byte(strings.Repeat("a long line\n\n", 20)), uint8(3), uint64(2))
	f.Fuzz(func(t *testing.T, data []byte, limit uint8, seed uint64) {
		var chunks [][]byte
		random := rand.New(rand.NewPCG(seed, 0))
		for rest := data; len(rest) > 0; {
			n := random.IntN(min(len(rest), 20) + 1)
			chunks, rest = append(chunks, rest[:n]), rest[n:]
		}
		want := wantLines(max(int(limit), 1), data)
		if diff := cmp.Diff(want, scan(int(limit), chunks)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for name, line := range map[string]string{
		"fixed":  "2026-03-14T09:26:53.123456789Z hello",
		"offset": "2026-03-14T09:26:53.123456789+02:00 hello",
		"short":  "2026-03-14T09:26:53.5Z hello",
		"none":   "hello world",
	} {
		b.Run(name, func(b *testing.B) {
			line := []byte(line)
			b.ReportAllocs()
			for b.Loop() {
				logline.Parse(line)
			}
		})
	}
}

// BenchmarkScanner reads lines of 120 bytes and parses them, in chunks of 64 KiB.
func BenchmarkScanner(b *testing.B) {
	line := "2026-03-14T09:26:53.123456789Z " + strings.Repeat("x", 88) + "\n"
	chunk := []byte(strings.Repeat(line, 64<<10/len(line)+1))[:64<<10]
	s := logline.NewScanner(128 << 10)
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	lines := 0
	for b.Loop() {
		s.Feed(chunk)
		for s.Next() {
			if at, _ := logline.Parse(s.Line()); !at.IsZero() {
				lines++
			}
		}
	}
	b.ReportMetric(float64(lines)/b.Elapsed().Seconds(), "lines/s")
}
