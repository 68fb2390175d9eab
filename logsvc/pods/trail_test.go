package pods

import (
	"encoding"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/appbridge/appbridge/logsvc"
)

var epoch = time.Date(2026, 3, 14, 9, 26, 53, 0, time.UTC)

var _ interface {
	encoding.TextMarshaler
	encoding.TextUnmarshaler
} = (*position)(nil)

// at is a line some milliseconds after epoch.
func at(ms int, text string) logsvc.Line {
	return logsvc.Line{Time: epoch.Add(time.Duration(ms) * time.Millisecond), Text: []byte(text)}
}

func trailOf(lines ...logsvc.Line) *trail {
	tr := wholeTrail()
	for _, line := range lines {
		tr.add(markOf(line))
	}
	return &tr
}

// The form of a position is a contract: a client sends it back to another version of the service.
func TestPositionText(t *testing.T) {
	t.Parallel()
	p := trailOf(at(0, "one"), at(1, "two"), at(1, "")).position()
	text, err := p.MarshalText()
	const want = "7LYZiJqwtyaCFjtm27tv-YIWO2bbu2_5ghY7Ztu7b_mCFjtm27tv-RicqwoRCaRAAAAAAAAAAAUC"
	if err != nil || string(text) != want {
		t.Errorf("got %q, %v, want %q", text, err, want)
	}
	var got position
	if err := got.UnmarshalText(text); err != nil || got != p {
		t.Errorf("got %+v, %v, want %+v", got, err, p)
	}
	for _, bad := range []string{"", want + "A", want[1:], strings.Repeat("+", 76), strings.Repeat("=", 76)} {
		if err := got.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is a position", bad)
		}
	}
}

func FuzzPosition(f *testing.F) {
	f.Add(strings.Repeat("A", 76))
	f.Fuzz(func(t *testing.T, text string) {
		var p, again position
		if p.UnmarshalText([]byte(text)) != nil {
			return
		}
		out, err := p.MarshalText()
		if err != nil || string(out) != text {
			t.Fatalf("got %q, %v, want %q", out, err, text)
		}
		if err := again.UnmarshalText(out); err != nil || again != p {
			t.Fatalf("got %+v, %v, want %+v", again, err, p)
		}
	})
}

// Lines differ in their time, in each byte of their text and in the number of bytes that were cut.
func TestHashLine(t *testing.T) {
	t.Parallel()
	seen := map[uint64]string{}
	add := func(at int64, text string, cut int64) {
		t.Helper()
		what := fmt.Sprintf("%d %q %d", at, text, cut)
		h := hashLine(at, []byte(text), cut)
		if other, found := seen[h]; found {
			t.Errorf("%s and %s have one hash", what, other)
		}
		seen[h] = what
	}
	for n := range 70 {
		text := strings.Repeat("x", n)
		add(1, text, 0)
		add(2, text, 0)
		add(1, text, 7)
		for i := range n {
			add(1, text[:i]+"y"+text[i+1:], 0)
		}
		add(1, strings.Repeat("\x00", n+1), 0)
	}
}

// A trail keeps as much text as a view must hold, and the count of lines with the last time.
func TestTrail(t *testing.T) {
	t.Parallel()
	tr := trailOf()
	for i := range 1000 {
		tr.add(markOf(at(i/10, "x")))
	}
	if p := tr.position(); p.lines != trailLines || p.same != 10 || !p.begun || p.last != epoch.Add(99*time.Millisecond).UnixNano() {
		t.Errorf("got %+v", p)
	}
	long := strings.Repeat("x", 20<<10)
	for i := range 5 {
		tr.add(markOf(at(1000+i, long)))
	}
	if p := tr.position(); p.lines != 3 {
		t.Errorf("got %d lines of 20 KiB, want 3", p.lines)
	}
	tr.add(markOf(at(2000, strings.Repeat("x", 100<<10))))
	if p := tr.position(); p.lines != 1 {
		t.Errorf("got %d lines, want the last one", p.lines)
	}
	tr.add(markOf(at(2001, "x")))
	if p := tr.position(); p.lines != 1 {
		t.Errorf("got %d lines, want the last one", p.lines)
	}
	// The beginning of a response does not show how many lines have its time.
	for before, want := range []bool{true, false, false} {
		tr = &trail{before: before}
		tr.add(markOf(at(1, "a")))
		if got := tr.position().begun; got != want {
			t.Errorf("%d: got %v", before, got)
		}
	}
	tr = &trail{before: 2}
	for i, want := range []bool{false, false, true} {
		tr.add(markOf(at(i, "a")))
		if got := tr.position().begun; got != want {
			t.Errorf("line %d: got %v", i+1, got)
		}
	}
}

// resumed is what a tailer makes of a file: the lines after the position, by the views that it would
// take, and the note.
func resumed(want position, file []logsvc.Line) (rest []logsvc.Line, note string) {
	search := func(v view, rule *match) (*search, []logsvc.Line) {
		s := newSearch(want, v)
		s.rule = rule
		lines := file
		if !v.whole {
			lines = file[max(0, len(file)-int(v.tail)):]
		}
		for i, line := range lines {
			if s.take(markOf(line)) {
				return s, lines[i+1:]
			}
		}
		return s, nil
	}
	for n := int64(firstView); n < int64(len(file)); n *= widening {
		if s, rest := search(view{tail: n}, nil); s.found {
			return rest, ""
		}
	}
	s, rest := search(wholeFile, nil)
	if s.found {
		return rest, ""
	}
	rule, note := s.decide()
	if rule == nil {
		return file, note
	}
	_, rest = search(wholeFile, rule)
	return rest, note
}

// log makes n lines, one each millisecond from a time on.
func log(from, n int, text string) []logsvc.Line {
	var lines []logsvc.Line
	for i := range n {
		lines = append(lines, at(from+i, fmt.Sprintf(text, from+i)))
	}
	return lines
}

// same makes n lines of one time.
func same(ms, n int, text func(int) string) []logsvc.Line {
	var lines []logsvc.Line
	for i := range n {
		lines = append(lines, at(ms, text(i)))
	}
	return lines
}

func x(int) string { return "x" }

func TestSearch(t *testing.T) {
	t.Parallel()
	const (
		rotated   = "the log does not hold its last line"
		ambiguous = "the log was rotated between lines of one time; up to %d of them may be repeated here"
	)
	dump := func(i int) string { return fmt.Sprint("dump ", i%300) }
	for _, tt := range []struct {
		name    string
		read    []logsvc.Line // delivered
		from    int           // of these, the first that is still in the file
		written []logsvc.Line // after that
		repeats int           // lines that come twice
		note    string
	}{
		{name: "nothing new", read: log(0, 10, "line %d")},
		{name: "one new line", read: log(0, 10, "line %d"), written: log(10, 1, "line %d")},
		{name: "one line", read: log(0, 1, "line %d"), written: log(1, 5, "line %d")},
		{name: "far behind", read: log(0, 10, "line %d"), written: log(10, 9000, "line %d")},
		{name: "a step back of the clock", read: log(12000, 30, "tick"), written: log(12010, 30, "tick")},
		{name: "a step back before", read: slices.Concat(log(12000, 30, "tick"), log(12010, 30, "tick")), written: log(12040, 3, "tick")},
		{name: "identical lines of one time", read: append(log(0, 1, "before"), same(1, 50_000, x)...), written: same(1, 50_000, x)},
		{name: "a dump", read: same(1, 1500, dump), written: same(1, 450, dump)},
		{name: "rotated, some delivered", read: log(0, 1000, "line %d"), from: 970, written: log(1000, 50, "line %d")},
		{name: "rotated, one delivered", read: log(0, 1000, "line %d"), from: 999, written: log(1000, 50, "line %d")},
		{name: "rotated", read: log(0, 1000, "line %d"), from: 1000, written: log(1000, 50, "line %d"), note: rotated},
		{name: "rotated, empty", read: log(0, 1000, "line %d"), from: 1000, note: rotated},
		{name: "rotated within a block", read: append(log(0, 50, "line %d"), same(50, 60, func(i int) string { return fmt.Sprint("block ", i) })...), from: 80, written: same(50, 10, func(i int) string { return fmt.Sprint("more ", i) })},
		{name: "rotated within identical lines", read: same(1, 5000, x), from: 4000, written: same(1, 500, x), repeats: 1000, note: fmt.Sprintf(ambiguous, 1500)},
		{name: "rotated between identical lines", read: same(1, 4000, x), from: 4000, written: same(1, 1000, x), note: fmt.Sprintf(ambiguous, 1000)},
		{name: "empty lines", read: same(1, 6, func(i int) string { return []string{"", " at x"}[i%2] }), written: same(1, 7, func(i int) string { return []string{"", " at x"}[i%2] })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := append(slices.Clone(tt.read[tt.from:]), tt.written...)
			rest, note := resumed(trailOf(tt.read...).position(), file)
			if want := len(tt.written) + tt.repeats; len(rest) != want {
				t.Errorf("got %d lines, want %d", len(rest), want)
			}
			if !strings.HasPrefix(note, tt.note) || note != "" && tt.note == "" {
				t.Errorf("got the note %q, want %q", note, tt.note)
			}
		})
	}
}

// A search resumes a log that grows, from a position anywhere: with times that repeat and step back,
// few different texts, and rotations, also within a line. No line is lost without a note, nor repeated without one.
func TestSearchRandomly(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 7))
		texts, ms := 1+random.IntN(4), 0
		write := func(n int) (lines []logsvc.Line) {
			for range n {
				switch random.IntN(20) {
				case 0:
					ms -= random.IntN(3)
				case 1, 2, 3, 4, 5, 6, 7, 8:
					ms += 1 + random.IntN(3)
				}
				// Whole seconds that repeat cannot be distinguished: a step back comes with other texts.
				lines = append(lines, at(ms, fmt.Sprint("text ", random.IntN(texts), " ", len(lines)/50)))
			}
			return lines
		}
		file := write(1 + random.IntN(900))
		read := 1 + random.IntN(len(file))
		taken := 0
		if random.IntN(3) == 0 {
			taken = random.IntN(read) // behind it, a line may happen to be like the last one
		}
		cut := taken > 0 && taken+1 < read && random.IntN(2) == 0 // the rotation has cut a line
		if cut {
			file[taken].Text = []byte("a line")
		}
		tr := trailOf(file[:read]...)
		if cut {
			file[taken].Text = []byte("the rest")
			file[taken].Time = file[taken+random.IntN(2)].Time
		}
		file = append(file, write(random.IntN(300))...)
		rest, note := resumed(tr.position(), file[taken:])
		want := len(file) - read
		if note == "" && len(rest) != want || len(rest) < want {
			t.Fatalf("seed %d: %d lines, %d read, %d taken by a rotation: got %d, want %d, note %q", seed, len(file), read, taken, len(rest), want, note)
		}
	}
}

// TestHeldLines: lines without text take memory as well.
func TestHeldLines(t *testing.T) {
	t.Parallel()
	l := &lastLines{n: 1_000_000, large: countLarge}
	for range 100_000 {
		if err := l.hold(t.Context(), logsvc.Line{}); err != nil {
			t.Fatal(err)
		}
		if most := heldBytes/lineBytes + 1; len(l.held) > most {
			t.Fatalf("%d lines are held, want at most %d", len(l.held), most)
		}
		if l.counted {
			return
		}
	}
	t.Error("all lines are held")
}
