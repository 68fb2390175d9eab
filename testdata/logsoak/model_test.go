package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	missing   = "# lines may be missing here"
	restarted = "# container app started again"
)

// Each fault that is planted into what the reader gets is found, and counted as what it is.
func TestModel(t *testing.T) {
	t.Parallel()
	const before = "write write-2 write 0 rotate write write write "
	for name, test := range map[string]struct {
		got  string
		want figures
	}{
		"all":                              {"1 same same 2 3 4 5", figures{lines: 8}},
		"lost":                             {"1 same same 2 4 5", figures{lines: 7, lost: 1}},
		"lost at a rotation":               {"1 same same 4 5", figures{lines: 6, lost: 2}},
		"a hole over a rotation":           {"1 same same;" + missing + ";4 5", figures{lines: 6, holes: 1, missing: 1, lost: 1, notes: 1}},
		"a hole up to a rotation":          {"1 same same;" + missing + ";3 4 5", figures{lines: 7, holes: 1, missing: 1, notes: 1}},
		"identical lines up to a rotation": {"1;" + missing + ";3 4 5", figures{lines: 5, holes: 1, missing: 1, notes: 1}},
		"a hole within a file":             {"1 same same 2 3;" + missing + ";5", figures{lines: 7, lost: 1, notes: 1}},
		"a hole with another note":         {"1 same same;" + restarted + ";3 4 5", figures{lines: 7, lost: 1, notes: 1}},
		"a note that is over":              {"1 same same;" + missing + ";2 4 5", figures{lines: 7, lost: 1, notes: 1}},
		"an identical line lost":           {"1 same 2 3 4 5", figures{lines: 7, lost: 1}},
		"an identical line repeated":       {"1 same same same 2 3 4 5", figures{lines: 9, repeated: 1}},
		"repeated":                         {"1 same same 2 3 2 3 4 5", figures{lines: 10, repeated: 2}},
		"repeated with a note":             {"1 same same 2 3;# up to 2 of them may be repeated;2 3 4 5", figures{lines: 10, notedRepeats: 2, notes: 1}},
		"out of order":                     {"1 same same 3 2 4 5", figures{lines: 8, lost: 1, disordered: 1}},
		"no line":                          {"1 same same 2 torn 3 4 5", figures{lines: 9, wrong: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := play(t, before+test.got); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// A hole is excused only if no reader could have had its lines.
func TestModelFollows(t *testing.T) {
	t.Parallel()
	excused, lost := figures{lines: 3, holes: 1, missing: 1, notes: 1}, figures{lines: 3, lost: 1, notes: 1}
	for name, test := range map[string]struct {
		script string
		want   figures
	}{
		"no follow is open":           {"write write 0 1 write rotate write;" + missing + ";3", excused},
		"it reads on":                 {"write 0 open end write 1 write rotate write;" + missing + ";3", lost},
		"it is cut":                   {"write 0 open end write 1 write rotate write cut close;" + missing + ";3", excused},
		"it is cut before":            {"write 0 open end write 1 write cut close rotate write;" + missing + ";3", excused},
		"the reader ends it":          {"write 0 open end write 1 write rotate write close;" + missing + ";3", lost},
		"not at the end of the file":  {"write 0 open write 1 write rotate write;" + missing + ";3", excused},
		"has not found its place":     {"write write 0 1 open end write rotate write;" + missing + ";3", excused},
		"another request has come":    {"write 0 open end other write 1 write rotate write;" + missing + ";3", excused},
		"the first file":              {"write refused 0 rotate write rotate write 1 2", figures{lines: 3}},
		"the first of a container":    {"write 0 restart write refused 1 rotate write 2", figures{lines: 3}},
		"nobody asks":                 {"write 0 rotate write rotate write refused;" + missing + ";2", figures{lines: 2, holes: 1, missing: 1, notes: 1}},
		"two rotations":               {"write 0 open end rotate write refused 1 rotate write 2", figures{lines: 3}},
		"two rotations without it":    {"write 0 open end rotate write close rotate write 1 2", figures{lines: 3}},
		"it was opened in the second": {"write 0 rotate write open end rotate write refused 1 2", figures{lines: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := play(t, test.script); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// play returns the figures after a script: notes that begin with #, between semicolons, and words. A number
// is that of a line that the reader gets.
func play(t *testing.T, script string) figures {
	t.Helper()
	m := newModel("log", t.Logf)
	event := func(step testenv.RequestStep, follow bool) {
		m.observe(testenv.RequestEvent{Step: step, Number: 1, Follow: follow})
	}
	for part := range strings.SplitSeq(script, ";") {
		if note, ok := strings.CutPrefix(part, "# "); ok {
			m.note(note, false)
			continue
		}
		for word := range strings.FieldsSeq(part) {
			switch word {
			case "write":
				m.add("", 0)
			case "write-2":
				m.add("", 2)
			case "rotate", "refused":
				if got, want := m.rotate(), word == "rotate"; got != want {
					t.Errorf("a rotation: got %t, want %t", got, want)
				}
			case "restart":
				m.restart()
			case "open":
				event(testenv.RequestOpened, true)
			case "end":
				event(testenv.RequestAtEnd, true)
			case "close":
				event(testenv.RequestEnded, true)
			case "other":
				event(testenv.RequestOpened, false)
			case "cut":
				m.breakFollows("cut")
			case "same":
				m.read([]byte(sameLine + "\n"))
			case "torn":
				m.read([]byte("half of a line\n"))
			default:
				m.read(fmt.Appendf(nil, "some text n=%s\n", word))
			}
		}
	}
	return m.figures()
}
