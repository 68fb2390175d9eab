package pods

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/appbridge/appbridge/logsvc/logline"
)

// stamped is a line of a log on a disk.
type stamped struct {
	at   time.Time
	text string
}

// reopened is what a kubelet makes of a request for a log.
func reopened(log []stamped, p *resumePoint) []stamped {
	var o corev1.PodLogOptions
	p.options(&o)
	if o.TailLines != nil {
		log = log[max(0, len(log)-int(*o.TailLines)):]
	}
	var out []stamped
	for _, line := range log {
		if o.SinceTime == nil || !line.at.Before(o.SinceTime.Truncate(time.Second)) {
			out = append(out, line)
		}
	}
	return out
}

// taken is what of an answer is new.
func taken(p *resumePoint, lines []stamped) []string {
	var out []string
	p.begin()
	for _, line := range lines {
		ok := p.take(line.at, []byte(line.text))
		if p.lost {
			p.accept()
			ok = p.take(line.at, []byte(line.text))
		}
		if ok {
			out = append(out, line.text)
		}
	}
	return out
}

var epoch = time.Date(2026, 3, 14, 9, 26, 53, 0, time.UTC)

// logOf makes a log from "a@1.5 b@1.5 c@2": a line and its time in seconds.
func logOf(t *testing.T, lines string) []stamped {
	t.Helper()
	var out []stamped
	for _, field := range strings.Fields(lines) {
		text, at, _ := strings.Cut(field, "@")
		d, err := time.ParseDuration(at + "s")
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, stamped{epoch.Add(d), text})
	}
	return out
}

func TestResumePoint(t *testing.T) {
	tests := []struct {
		name  string
		tail  int64
		since float64 // seconds
		reads [2]string
		want  [2]string
	}{
		{name: "nothing new", tail: -1, reads: [2]string{"a@1 b@2", "a@1 b@2"}, want: [2]string{"a b", ""}},
		{name: "one more", tail: -1, reads: [2]string{"a@1 b@2", "a@1 b@2 c@2"}, want: [2]string{"a b", "c"}},
		{name: "the same time", tail: -1, reads: [2]string{"a@1 b@1", "a@1 b@1 c@1 d@1"}, want: [2]string{"a b", "c d"}},
		{name: "the same line", tail: -1, reads: [2]string{"a@1 a@1", "a@1 a@1 a@1"}, want: [2]string{"a a", "a"}},
		{name: "older seconds are not asked for", tail: -1, reads: [2]string{"a@1 b@5", "a@1 b@5 c@6"}, want: [2]string{"a b", "c"}},
		{name: "tail in the middle of a second", tail: 1, reads: [2]string{"a@1.1 b@1.2 c@1.3", "a@1.1 b@1.2 c@1.3 d@1.4"}, want: [2]string{"c", "d"}},
		{name: "tail of nothing", tail: 0, reads: [2]string{"a@1.1 b@1.2", "a@1.1 b@1.2 c@1.2"}, want: [2]string{"", "c"}},
		{name: "since in the middle of a second", tail: -1, since: 1.2, reads: [2]string{"a@1.1 b@1.2", "a@1.1 b@1.2 c@1.3"}, want: [2]string{"b", "c"}},
		{name: "a rotation took some", tail: -1, reads: [2]string{"a@1.1 b@1.2 c@1.3", "c@1.3 d@1.4"}, want: [2]string{"a b c", "d"}},
		{name: "a rotation took all", tail: -1, reads: [2]string{"a@1.1 b@1.2", "c@1.3 d@1.4"}, want: [2]string{"a b", "c d"}},
		{name: "out of order", tail: -1, reads: [2]string{"a@1.1 b@1.3 c@1.2", "a@1.1 b@1.3 c@1.2 d@1.25 e@1.4"}, want: [2]string{"a b c", "d e"}},
		{name: "out of order over a second", tail: -1, reads: [2]string{"a@0.5 b@2.01 c@1.99", "a@0.5 b@2.01 c@1.99 d@1.995 e@2.02"}, want: [2]string{"a b c", "d e"}},
		{name: "late twice", tail: -1, reads: [2]string{"a@1 b@2 c@1.9 d@3", "a@1 b@2 c@1.9 d@3 e@2.9"}, want: [2]string{"a b c d", "e"}},
		{name: "the clock was put back", tail: -1, reads: [2]string{"a@100 b@101 c@10 d@11", "a@100 b@101 c@10 d@11 e@12 f@13"}, want: [2]string{"a b c d", "e f"}},
		{name: "part of a long line", tail: -1, reads: [2]string{"a@1 b@3", "rest-of-a@2.1 b@3 c@3"}, want: [2]string{"a b", "c"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := resumePoint{tail: tt.tail, silent: tt.tail == 0, opened: epoch.Add(time.Hour)}
			if tt.since > 0 {
				p.since = epoch.Add(time.Duration(tt.since * float64(time.Second)))
			}
			for i, read := range tt.reads {
				got := strings.Join(taken(&p, reopened(logOf(t, read), &p)), " ")
				if got != tt.want[i] {
					t.Errorf("read %d: got %q, want %q", i+1, got, tt.want[i])
				}
			}
		})
	}
}

// cri is a record of a container's log file as containerd writes it: a line over 16 KiB is several
// records, each with a time of its own.
type cri struct {
	at      time.Time
	partial bool
	text    string
}

// criLog reads such a file as the kubelet does: records before since are skipped one by one,
// and a time stands only before the first record of a line.
func criLog(log []cri, since time.Time) []byte {
	var out []byte
	first := true
	for _, r := range log {
		if !r.at.Before(since) {
			if first {
				out = r.at.AppendFormat(out, "2006-01-02T15:04:05.000000000Z07:00 ")
			}
			out = append(out, r.text...)
			if !r.partial {
				out = append(out, '\n')
			}
		}
		first = !r.partial
	}
	return out
}

// A request in the middle of a long line brings its end without a time, which was handed out.
func TestResumePointLongLine(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }
	log := []cri{{at(500), false, "first"}, {at(900), true, "LONG-"}, {at(999), true, "LONG-"}, {at(1001), true, "LONG-"}, {at(1002), false, "LINE"}, {at(2100), false, "second"}}
	var got []string
	p := fromBeginning()
	read := func() {
		var o corev1.PodLogOptions
		p.options(&o)
		var since time.Time
		if o.SinceTime != nil {
			since = o.SinceTime.Time
		}
		s := logline.NewScanner(1 << 10)
		p.begin()
		s.Feed(criLog(log, since))
		for s.Next() {
			if when, text := logline.Parse(s.Line()); p.take(when, text) {
				got = append(got, string(text))
			}
		}
	}
	read()
	log = append(log, cri{at(2200), false, "third"})
	read()
	read()
	if want := []string{"first", "LONG-LONG-LONG-LINE", "second", "third"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestResumePointWithoutTime(t *testing.T) {
	p := fromBeginning()
	log := []stamped{{epoch, "a"}, {time.Time{}, "b"}, {epoch.Add(time.Second), "c"}}
	if got := taken(&p, log); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("got %q", got)
	}
	log = append(log, stamped{epoch.Add(time.Second), "d"})
	if got := taken(&p, log); !slices.Equal(got, []string{"b", "d"}) {
		t.Errorf("read again: got %q, want the line without a time and the new one", got)
	}
}

// TestResumePointRandomly reads a log that grows while answers break off
// anywhere: each line comes once.
func TestResumePointRandomly(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 1))
		var log []stamped
		at := epoch
		tail := random.IntN(2) == 0
		grow := func() {
			for range random.IntN(6) {
				if random.IntN(3) > 0 {
					at = at.Add(time.Duration(random.IntN(700)) * time.Millisecond)
				}
				// Up to half a second out of order, as two outputs may be.
				skew := time.Duration(random.IntN(2)*random.IntN(500)) * time.Millisecond
				if tail {
					skew = 0
				}
				log = append(log, stamped{at.Add(-skew), fmt.Sprintf("line-%d", len(log))})
			}
		}
		grow()
		p := fromBeginning()
		first := 0
		if tail {
			p.tail = int64(random.IntN(4))
			p.silent, p.opened = p.tail == 0, epoch.AddDate(1, 0, 0)
			first = max(0, len(log)-int(p.tail))
		}
		if p.silent && len(log) == 0 {
			p = fromBeginning()
		}
		var got []string
		for range 12 {
			lines := reopened(log, &p)
			if p.any || p.tail < 0 { // the first answer of a tail is whole
				lines = lines[:random.IntN(len(lines)+1)]
			}
			got = append(got, taken(&p, lines)...)
			if !p.any {
				p = fromBeginning()
			}
			grow()
		}
		got = append(got, taken(&p, reopened(log, &p))...)
		var want []string
		for _, line := range log[first:] {
			want = append(want, line.text)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: \n got %q\nwant %q\nlog %v", seed, got, want, log)
		}
	}
}

// Of a tail of nothing what is older than the request is passed over; what was
// written between the request and the first look is not.
func TestResumePointMissed(t *testing.T) {
	t.Parallel()
	opened := time.Date(2026, 11, 21, 8, 0, 0, 5e8, time.UTC)
	p := resumePoint{silent: true, opened: opened}
	p.begin()
	if p.take(opened.Add(-time.Second), []byte("old")) || p.missed || !p.any {
		t.Errorf("an old line: %+v", p)
	}
	p = resumePoint{silent: true, opened: opened}
	p.begin()
	if p.take(opened.Add(time.Millisecond), []byte("new")) || !p.missed || p.any {
		t.Errorf("a new line: %+v", p)
	}
	p = fromTime(opened)
	p.begin()
	if p.take(opened.Add(-time.Millisecond), []byte("old")) || !p.take(opened.Add(time.Millisecond), []byte("new")) {
		t.Errorf("from then on: %+v", p)
	}
}
