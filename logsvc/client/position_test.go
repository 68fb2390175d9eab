package client

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var testTime = time.Date(2026, 11, 21, 8, 51, 7, 0, time.UTC)

// stampAt is a time as the service writes it.
func stampAt(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000000Z") }

// stamped is a line as the service writes it; a negative time is none.
func stamped(ms int, text string) string {
	if ms < 0 {
		return text + "\n"
	}
	at := stampAt(testTime.Add(time.Duration(ms) * time.Millisecond))
	return at + " " + text + "\n"
}

func TestPosition(t *testing.T) {
	a, b, c := stamped(1, "a"), stamped(2, "b"), stamped(3, "c")
	for _, test := range []struct {
		name         string
		first, again string
		want         string
		hole         bool
	}{
		{"nothing new", a + b, a + b, "", false},
		{"from the last line on", a + b, b + c, "c\n", false},
		{"nothing before", "", a + b, "a\nb\n", false},
		{"same time, same text", a + a, a + a + a + b, "a\nb\n", false},
		{"same time, another text", stamped(1, "x") + stamped(1, "y") + stamped(1, "x"), stamped(1, "x") + stamped(1, "y") + stamped(1, "x") + stamped(1, "y"), "y\n", false},
		{"older lines that were dropped", a + c, a + b + c + stamped(4, "d"), "d\n", false},
		{"the last is older than the one before", b + a, b + a + stamped(1, "later"), "later\n", false},
		{"a clock that was put back", c, c + a + b, "a\nb\n", false},
		{"the last line is gone", a + b, c, "c\n", true},
		{"another text in its place", b, stamped(2, "x") + c, "c\n", true},
		{"lines without a time", a + stamped(-1, "p") + stamped(-1, "q"), stamped(-1, "o") + a + stamped(-1, "p") + stamped(-1, "q") + stamped(-1, "r") + b, "r\nb\n", false},
		{"only lines without a time", stamped(-1, "p"), stamped(-1, "p") + a, "p\na\n", false},
		{"empty text", stamped(1, ""), stamped(1, "") + stamped(1, ""), "\n", false},
		{"bytes and a carriage return", stamped(1, "\xff\r"), stamped(1, "\xff\r") + stamped(2, "\x00\r"), "\x00\r\n", false},
		{"long line", stamped(1, strings.Repeat("x", 9999)+"y"), stamped(1, strings.Repeat("x", 9999)+"y") + b, "b\n", false},
		{"like a time", stamped(-1, "2026-11-21T08:51:07.000000000+ x"), a, "a\n", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &place{}
			p.begin(passFirst, false)
			if out, _, hole := p.passage.read([]byte(test.first), true); string(out) != test.first || hole {
				t.Fatalf("the first reading gave %q, hole %v", out, hole)
			}
			p.position = p.passage.position
			p.begin(passMain, false)
			out, lines, hole := p.passage.read([]byte(test.again), false)
			if string(out) != test.want || hole != test.hole || lines != strings.Count(test.want, "\n") {
				t.Errorf("got %q, %d lines, hole %v; want %q, hole %v", out, lines, hole, test.want, test.hole)
			}
		})
	}
}

// TestPositionAnywhere interrupts random logs at random lines again and again.
func TestPositionAnywhere(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		var log []string
		var times []int
		for i, at := 0, 1000; i < 200; i++ {
			at += random.IntN(3) * random.IntN(400)
			ms, text := at, fmt.Sprint(random.IntN(3))
			if random.IntN(2) == 0 {
				ms, text = at-random.IntN(50), fmt.Sprint("late ", i) // a little out of order
			}
			if random.IntN(20) == 0 && i > 0 {
				ms = -1
			}
			times = append(times, ms)
			log = append(log, stamped(ms, text))
		}
		var got, want strings.Builder
		for _, line := range log {
			_, text, timed := strings.Cut(line, "Z ")
			if !timed {
				text = line
			}
			want.WriteString(text)
		}
		p := &place{}
		for end := 0; end < len(log); {
			p.begin(passMain, false)
			start := 0
			if p.any {
				for from := p.from().Add(-2 * time.Second); start < len(log) && (times[start] < 0 || testTime.Add(time.Duration(times[start])*time.Millisecond).Before(from)); {
					start++
				}
			}
			end = max(end, min(start+random.IntN(90), len(log)))
			for start < end {
				n := min(1+random.IntN(20), end-start)
				out, _, hole := p.passage.read([]byte(strings.Join(log[start:start+n], "")), false)
				if hole {
					t.Fatalf("seed %d: a hole", seed)
				}
				got.Write(out)
				start += n
			}
			p.position = p.passage.position
		}
		if got.String() != want.String() {
			t.Fatalf("seed %d: got\n%q\nwant\n%q", seed, got.String(), want.String())
		}
	}
}

func BenchmarkPosition(b *testing.B) {
	var body strings.Builder
	for i := range 270 {
		body.WriteString(stamped(i, strings.Repeat("x", 119)))
	}
	text := []byte(body.String())
	buf := make([]byte, len(text))
	p := &place{}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		copy(buf, text)
		p.begin(passFirst, false)
		p.passage.read(buf, false)
	}
}
